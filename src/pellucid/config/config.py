"""The whole: an architecture as frozen facts."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from pellucid.config.checks import count, within
from pellucid.config.parts import Dropout, Head, LayerNorm, Learned, Plain, Position
from pellucid.errors import InputError, near

_DEFAULTS: dict[str, "Config"] = {}


def register(defaults: "Config") -> None:
    """Makes a family known to `Config.of`; each family's page is read once, on import."""
    _DEFAULTS[defaults.family] = defaults


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
            count(name, getattr(self, name))
        if type(self.type_vocab_size) is not int or not 0 <= self.type_vocab_size <= 1_000_000:
            raise InputError(f"type_vocab_size is {self.type_vocab_size!r}, expected a whole number from 0")
        within("initializer_range", self.initializer_range, least=0.0, most=100.0)
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
            if name in vars(part):
                return vars(part)[name]
        hint = near(name, self.facts()) if "family" in vars(self) else ""  # not yet while it is being unpickled
        raise AttributeError(f"a config has no {name!r}{hint}")

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
    return [value for value in vars(config).values() if dataclasses.is_dataclass(value)]
