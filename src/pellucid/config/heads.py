"""What a model answers with, beside its hidden states.

Each kind says of itself, so that nobody else has to know its name:

- `answers`: what there is a logit of: each token of the vocabulary, each label of the config, or the things named here;
- `per`: whether every token has such logits, or the whole text once;
- `writes`: whether they are for the token that comes next;
- `pooled`: whether they are made from the pooled first token.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pellucid.config.checks import check_activation, check_bool, check_choice
from pellucid.errors import InputError, did_you_mean, shorten

Answers = Literal["vocabulary", "labels"] | tuple[str, ...]
Per = Literal["token", "text"]


@dataclass(frozen=True)
class MaskedLM:
    """Logits over the vocabulary at every position: dense, activation, norm, then the (tied) token table.

    activation: by default the feed-forward block's own.
    """

    activation: str | None = None
    name: ClassVar[str] = "masked-lm"
    answers: ClassVar[Answers] = "vocabulary"
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = False
    pooled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.activation is not None:
            check_activation("activation", self.activation)


@dataclass(frozen=True)
class CausalLM:
    """Logits over the vocabulary at every position, for the token that comes next."""

    name: ClassVar[str] = "causal-lm"
    answers: ClassVar[Answers] = "vocabulary"
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = True
    pooled: ClassVar[bool] = False


@dataclass(frozen=True)
class SequenceToSequenceLM:
    """Logits over the vocabulary at every position of the decoder.

    logits_bias: a summand per token stands behind the table.  bias_learns: whether it does; BART's stays as it is.
    """

    logits_bias: bool = False
    bias_learns: bool = True
    name: ClassVar[str] = "sequence-to-sequence-lm"
    answers: ClassVar[Answers] = "vocabulary"
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = True
    pooled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("logits_bias", "bias_learns"):
            check_bool(name, getattr(self, name))


@dataclass(frozen=True)
class NextSentence:
    """Two logits from the pooled first token: does the second sentence follow the first?"""

    name: ClassVar[str] = "next-sentence"
    answers: ClassVar[Answers] = ("follows", "does not follow")
    per: ClassVar[Per] = "text"
    writes: ClassVar[bool] = False
    pooled: ClassVar[bool] = True


@dataclass(frozen=True)
class SequenceClassification:
    """One logit per label for the whole text, from one position of it.

    pool: "pooler" (the first token through the model's pooler), "first" (the first token as it is), "last" (the last
        token that is not padding) or "eos" (the last end-of-sequence token).
    dense_activation: a dense layer with this activation stands before the classifier; None for none.
    """

    pool: Literal["pooler", "first", "last", "eos"] = "pooler"
    dense_activation: str | None = None
    classifier_bias: bool = True
    name: ClassVar[str] = "sequence-classification"
    answers: ClassVar[Answers] = "labels"
    per: ClassVar[Per] = "text"
    writes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, ("pooler", "first", "last", "eos"))
        check_bool("classifier_bias", self.classifier_bias)
        if self.dense_activation is not None:
            check_activation("dense_activation", self.dense_activation)

    @property
    def pooled(self) -> bool:
        return self.pool == "pooler"


@dataclass(frozen=True)
class TokenClassification:
    """One logit per label at every position."""

    name: ClassVar[str] = "token-classification"
    answers: ClassVar[Answers] = "labels"
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = False
    pooled: ClassVar[bool] = False


@dataclass(frozen=True)
class QuestionAnswering:
    """Two logits at every position: the answer starts here, the answer ends here."""

    name: ClassVar[str] = "question-answering"
    answers: ClassVar[Answers] = ("start", "end")
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = False
    pooled: ClassVar[bool] = False


Head = (
    MaskedLM
    | CausalLM
    | SequenceToSequenceLM
    | NextSentence
    | SequenceClassification
    | TokenClassification
    | QuestionAnswering
)
HEADS: tuple[type[Head], ...] = get_args(Head)
WRITING = tuple(kind.name for kind in HEADS if kind.writes)
"""The names of heads for the token that comes next."""
OF_TOKENS = tuple(kind.name for kind in HEADS if kind.answers == "vocabulary")
"""The names of heads that answer with tokens."""


def head_named(name: str) -> Head:
    """The head that goes by `name`, with its default settings."""
    for kind in HEADS:
        if kind.name == name:
            return kind()
    names = [kind.name for kind in HEADS]
    raise InputError(
        f"unknown head {shorten(repr(name))}{did_you_mean(name, names)}: choose one of {', '.join(names)}, or None"
    )
