"""The small types that a config is a sum of: each variant carries its own settings, so that an impossible combination
cannot be written. A model with no positions has no field for their number."""

from dataclasses import dataclass

from pellucid.config.checks import activation, count, within
from pellucid.errors import InputError, near


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with gain and bias (Ba et al., 2016, arXiv:1607.06450)."""

    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        within("layer_norm_eps", self.layer_norm_eps, above=0.0, most=1.0)


@dataclass(frozen=True)
class Learned:
    """A table of positions that is learned: the first `max_position_embeddings` places, no more."""

    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        count("max_position_embeddings", self.max_position_embeddings)


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed waves of sine and cosine in turn (Vaswani et al., 2017, arXiv:1706.03762, section 3.5)."""

    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        count("max_position_embeddings", self.max_position_embeddings)


@dataclass(frozen=True)
class NoPosition:
    """No positions: the model cannot tell the order of its tokens."""


@dataclass(frozen=True)
class Plain:
    """Two linear maps with an activation between them, position by position."""

    intermediate_size: int = 3072
    hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        count("intermediate_size", self.intermediate_size)
        activation("hidden_act", self.hidden_act)


@dataclass(frozen=True)
class Dropout:
    """Shares of numbers set to zero in training; nothing is dropped in evaluation."""

    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                within(name, value, least=0.0, below=1.0)

    @property
    def classifier(self) -> float:
        """The head's own dropout; where it has none, the hidden one."""
        return self.hidden_dropout_prob if self.classifier_dropout is None else self.classifier_dropout


@dataclass(frozen=True)
class MaskedLM:
    """Logits over the vocabulary at every position: dense, activation, norm, then the (tied) token table."""

    name = "masked-lm"
    pooled = False


@dataclass(frozen=True)
class NextSentence:
    """Two logits from the pooled first token: does the second sentence follow the first?"""

    name = "next-sentence"
    pooled = True


@dataclass(frozen=True)
class SequenceClassification:
    """One logit per label from the pooled first token, or from the first token as it is (`pooled=False`)."""

    name = "sequence-classification"
    pooled: bool = True


@dataclass(frozen=True)
class TokenClassification:
    """One logit per label at every position."""

    name = "token-classification"
    pooled = False


@dataclass(frozen=True)
class QuestionAnswering:
    """Two logits at every position: the answer starts here, the answer ends here."""

    name = "question-answering"
    pooled = False


Position = Learned | Sinusoidal | NoPosition
Head = MaskedLM | NextSentence | SequenceClassification | TokenClassification | QuestionAnswering
HEADS: tuple[type[Head], ...] = (
    MaskedLM,
    NextSentence,
    SequenceClassification,
    TokenClassification,
    QuestionAnswering,
)


def head_named(name: str) -> Head:
    """The head that goes by `name`, with its default settings."""
    for kind in HEADS:
        if kind.name == name:
            return kind()
    names = [kind.name for kind in HEADS]
    raise InputError(f"unknown head {name!r}{near(name, names)}: choose one of {', '.join(names)}, or None")
