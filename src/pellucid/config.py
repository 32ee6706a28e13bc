"""What a model is: frozen facts, and nothing that computes.

A `Config` is a sum of small types, each carrying its own settings, so that an impossible combination cannot be written:
a model with sinusoidal positions has no field for a learned table. Scalar facts keep the names that the field uses
(`hidden_size`, `num_attention_heads`, ...) and can be read from the top: `config.intermediate_size`.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pellucid.errors import InputError, near

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


# -- what a value may be -----------------------------------------------------------------------------------------------


def _count(name: str, value: object, most: int = 100_000_000) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InputError(f"{name} is {value!r}, expected a whole number from 1 to {most:,}")


def _within(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{name} is {value!r}, expected a finite number")
    if not (least <= value <= most and above < value < below):
        low = f"at least {least:g}" if least > -math.inf else f"above {above:g}"
        high = f"at most {most:g}" if most < math.inf else f"below {below:g}"
        raise InputError(f"{name} is {value!r}, expected {low} and {high}")


def _activation(name: str, value: object) -> None:
    if value not in ACTIVATIONS:
        raise InputError(
            f"{name} is {value!r}, expected one of {', '.join(ACTIVATIONS)}{near(str(value), ACTIVATIONS)}"
        )


# -- the small types ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation with gain and bias (Ba et al., 2016, arXiv:1607.06450)."""

    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        _within("layer_norm_eps", self.layer_norm_eps, above=0.0, most=1.0)


@dataclass(frozen=True)
class Learned:
    """A table of positions that is learned: the first `max_position_embeddings` places, no more."""

    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        _count("max_position_embeddings", self.max_position_embeddings)


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed waves of sine and cosine in turn (Vaswani et al., 2017, arXiv:1706.03762, section 3.5)."""

    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        _count("max_position_embeddings", self.max_position_embeddings)


@dataclass(frozen=True)
class NoPosition:
    """No positions: the model cannot tell the order of its tokens."""


@dataclass(frozen=True)
class Plain:
    """Two linear maps with an activation between them, position by position."""

    intermediate_size: int = 3072
    hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        _count("intermediate_size", self.intermediate_size)
        _activation("hidden_act", self.hidden_act)


@dataclass(frozen=True)
class Dropout:
    """Shares of numbers set to zero in training; nothing is dropped in evaluation."""

    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                _within(name, value, least=0.0, below=1.0)

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


_DEFAULTS: dict[str, "Config"] = {}


def register(defaults: "Config") -> None:
    """Makes a family known to `Config.of`; each family's page is read once, on import."""
    _DEFAULTS[defaults.family] = defaults


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """An architecture: enough to build the model, nothing about files, words or devices."""

    family: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    feed_forward: Plain = Plain()
    norm: LayerNorm = LayerNorm()
    residual: Literal["post", "pre"] = "post"
    position: Position = Learned()
    type_vocab_size: int = 0
    dropout: Dropout = Dropout()
    pooler: bool = False
    """The family has a pooler; one is built where the head reads it or where there is no head."""
    head: Head | None = None
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    pad_token_id: int | None = None
    inert: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Keys of the file that change no number of a forward pass; kept, so that saving loses nothing."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            _count(name, getattr(self, name))
        if type(self.type_vocab_size) is not int or not 0 <= self.type_vocab_size <= 1_000_000:
            raise InputError(f"type_vocab_size is {self.type_vocab_size!r}, expected a whole number from 0")
        _within("initializer_range", self.initializer_range, least=0.0, most=100.0)
        if self.residual not in ("post", "pre"):
            raise InputError(f"residual is {self.residual!r}, expected 'post' or 'pre'")
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} cannot be shared out among num_attention_heads "
                f"{self.num_attention_heads}: it must be a multiple of it"
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise InputError(f"pad_token_id is {self.pad_token_id!r}, expected 0 to {self.vocab_size - 1}")
        if not self.labels or len(set(self.labels)) != len(self.labels):
            raise InputError(f"labels are {list(self.labels)!r}, expected at least one and no two alike")

    # Facts that follow from others, under the names that users know.

    @property
    def head_dim(self) -> int:
        """Numbers per attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Heads of key and value."""
        return self.num_attention_heads

    @property
    def pools(self) -> bool:
        """Whether this model, with this head, computes the pooled first token."""
        return self.pooler and (self.head is None or self.head.pooled)

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.labels))

    @property
    def label2id(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def __getattr__(self, name: str) -> Any:
        for part in _parts(self):
            if not name.startswith("_") and name in vars(part):
                return getattr(part, name)
        raise AttributeError(f"a {self.family} config has no {name!r}{near(name, self.facts())}")

    @classmethod
    def of(cls, family: str, **changes: Any) -> "Config":
        """The family's defaults, with some facts changed.

        >>> Config.of("bert", num_hidden_layers=2).num_hidden_layers
        2
        """
        if family not in _DEFAULTS:
            raise InputError(
                f"unknown family {family!r}{near(family, _DEFAULTS)}: one of {', '.join(sorted(_DEFAULTS))}"
            )
        return _DEFAULTS[family].replace(**changes)

    def facts(self) -> dict[str, Any]:
        """Every scalar fact by its name: the own fields, then those of the small types."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "inert"}
        flat = {name: value for name, value in own.items() if not dataclasses.is_dataclass(value)}
        for part in _parts(self):
            flat |= vars(part)
        return flat

    def replace(self, **changes: Any) -> Self:
        """A copy with some facts changed; facts of the small types may be named from the top.

        >>> config.replace(num_hidden_layers=2, intermediate_size=64, num_labels=3)   # doctest: +SKIP
        """
        if "num_labels" in changes:
            changes["labels"] = tuple(f"LABEL_{i}" for i in range(changes.pop("num_labels")))
        own = {f.name for f in dataclasses.fields(self)}
        top = {name: changes.pop(name) for name in list(changes) if name in own}
        copy = dataclasses.replace(self, **top)
        for f in dataclasses.fields(copy):
            part = getattr(copy, f.name)
            inner = {n: changes.pop(n) for n in list(changes) if dataclasses.is_dataclass(part) and n in vars(part)}
            if inner:
                copy = dataclasses.replace(copy, **{f.name: dataclasses.replace(part, **inner)})
        if changes:
            name = next(iter(changes))
            raise InputError(f"a {self.family} config has no {name!r}{near(name, self.facts())}")
        return copy


def _parts(config: Config) -> list[Any]:
    values = [getattr(config, f.name) for f in dataclasses.fields(config)]
    return [value for value in values if dataclasses.is_dataclass(value)]
