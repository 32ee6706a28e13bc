"""What a model predicts from its hidden states.

Each head type describes itself, so that no other code needs to test for its name:

- `answers`: what the logits are over: the vocabulary, the labels of the config, or the things named here;
- `per`: whether there are logits for every token or once for the whole text;
- `writes`: whether they predict the next token;
- `pooled`: whether they are computed from the pooled first token.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from pellucid.config.checks import check_activation, check_bool, check_choice
from pellucid.errors import InputError, did_you_mean, shorten

Answers = Literal["vocabulary", "labels"] | tuple[str, ...]
Per = Literal["token", "text"]


class _Description:
    """The description of a head, with the values that most heads share."""

    name: ClassVar[str]
    answers: ClassVar[Answers]
    per: ClassVar[Per] = "token"
    writes: ClassVar[bool] = False
    pooled: ClassVar[bool] = False


@dataclass(frozen=True)
class MaskedLM(_Description):
    """Logits over the vocabulary at every position: dense, activation, norm, then the (tied) token table.

    activation: by default that of the feed-forward block.
    """

    activation: str | None = None
    name = "masked-lm"
    answers = "vocabulary"

    def __post_init__(self) -> None:
        if self.activation is not None:
            check_activation("activation", self.activation)


@dataclass(frozen=True)
class CausalLM(_Description):
    """Logits over the vocabulary at every position, for the next token."""

    name = "causal-lm"
    answers = "vocabulary"
    writes = True


@dataclass(frozen=True)
class SequenceToSequenceLM(_Description):
    """Logits over the vocabulary at every position of the decoder, for the next token.

    logits_bias: whether a bias per token is added to the logits.  trainable_bias: whether it trains; BART's does not.
    """

    logits_bias: bool = False
    trainable_bias: bool = True
    name = "sequence-to-sequence-lm"
    answers = "vocabulary"
    writes = True

    def __post_init__(self) -> None:
        for name in ("logits_bias", "trainable_bias"):
            check_bool(name, getattr(self, name))


@dataclass(frozen=True)
class NextSentence(_Description):
    """Two logits from the pooled first token: does the second sentence follow the first?"""

    name = "next-sentence"
    answers = ("follows", "does not follow")
    per = "text"
    pooled = True


@dataclass(frozen=True)
class SequenceClassification(_Description):
    """One logit per label for the whole text, read from one position.

    pool: "pooler" (the first token through the model's pooler), "first" (the first token as it is), "last" (the last
        token that is not padding) or "eos" (the last end-of-sequence token).
    dense_activation: activation of a dense layer before the classifier; None for no such layer.
    """

    pool: Literal["pooler", "first", "last", "eos"] = "pooler"
    dense_activation: str | None = None
    classifier_bias: bool = True
    name = "sequence-classification"
    answers = "labels"
    per = "text"

    def __post_init__(self) -> None:
        check_choice("pool", self.pool, ("pooler", "first", "last", "eos"))
        check_bool("classifier_bias", self.classifier_bias)
        if self.dense_activation is not None:
            check_activation("dense_activation", self.dense_activation)

    @property
    def pooled(self) -> bool:  # pyrefly: ignore[bad-override]
        return self.pool == "pooler"


@dataclass(frozen=True)
class TokenClassification(_Description):
    """One logit per label at every position."""

    name = "token-classification"
    answers = "labels"


@dataclass(frozen=True)
class QuestionAnswering(_Description):
    """Two logits at every position: that the answer starts here, and that it ends here."""

    name = "question-answering"
    answers = ("start", "end")


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
"""Names of the heads that predict the next token."""
OF_TOKENS = tuple(kind.name for kind in HEADS if kind.answers == "vocabulary")
"""Names of the heads over the vocabulary."""


def head_named(name: str) -> Head:
    """The head called `name`, with its default settings. Raises InputError for an unknown name."""
    for kind in HEADS:
        if kind.name == name:
            return kind()
    names = [kind.name for kind in HEADS]
    raise InputError(
        f"unknown head {shorten(repr(name))}{did_you_mean(name, names)}: choose one of {', '.join(names)}, or None"
    )
