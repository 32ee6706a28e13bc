"""`Config`: an architecture as frozen facts."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from pellucid.config.checks import (
    check_bool,
    check_choice,
    check_count,
    check_range,
    check_token_id,
    is_one_of,
    store_plain_numbers,
    value_error,
)
from pellucid.config.consistency import check_consistent
from pellucid.config.heads import Head, QuestionAnswering
from pellucid.config.parts import Attention, DecoderSide, Dropout, FeedForward, LayerNorm, Norm, Plain
from pellucid.config.positions import AttentionPosition, Learned, NoPosition, Position
from pellucid.errors import Argument, InputError, did_you_mean, shorten

_DEFAULTS: dict[str, "Config"] = {}

_PART_TYPES: dict[str, Any] = {
    "attention": Attention,
    "feed_forward": FeedForward,
    "norm": Norm,
    "position": Position,
    "attention_position": AttentionPosition,
    "dropout": Dropout,
    "decoder": DecoderSide | None,
    "head": Head | None,
    "inert": dict,
}
"""The types of those fields of a config that are not single values."""


def register(defaults: "Config") -> None:
    """Registers a family's defaults for `Config.of`; called once per family page, on import."""
    _DEFAULTS[defaults.family] = defaults


@dataclass(frozen=True)
class Config:
    """An architecture: all that is needed to build the model, and nothing about files, tokenizers or devices."""

    family: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kind: Literal["encoder", "decoder", "encoder-decoder"] = "encoder"
    attention: Attention = Attention()
    feed_forward: FeedForward = Plain()
    norm: Norm = LayerNorm()
    residual: Literal["post", "pre"] = "post"
    """"post": norms after the residual sums; "pre": norms inside the branches, and a final one after the last layer."""
    position: Position = Learned()
    attention_position: AttentionPosition = NoPosition()
    type_vocab_size: int = 0
    embedding_norm: bool = True
    """Whether the sum of the embeddings is normalised."""
    embedding_size: int | None = None
    """Width of the token embeddings where it is not `hidden_size`; a linear layer then projects them to it."""
    embedding_projection: bool = False
    """Whether that projection exists even where both widths are equal."""
    scale_embedding: bool = False
    """Whether token embeddings are multiplied by the square root of `hidden_size`."""
    num_hidden_groups: int | None = None
    """Number of layers with weights of their own, each applied at several depths; None for all."""
    decoder: DecoderSide | None = None
    """The decoder of an encoder-decoder; None for the other kinds."""
    dropout: Dropout = Dropout()
    pooler: bool = False
    """Whether the family has a pooler; one is built where the head reads it or where there is no head."""
    head: Head | None = None
    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    tie_word_embeddings: bool = True
    scale_logits: bool = False
    """Whether the final hidden states are divided by the square root of `hidden_size` before the tied table."""
    initializer_range: float = 0.02
    pad_token_id: int | None = None
    trainable_padding: bool = False
    """Whether the padding token's embedding is trained, as in GPT-2 and T5; elsewhere it stays zero, or as loaded."""
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    inert: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Keys of the file that do not affect a forward pass, kept so that saving loses nothing."""

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        for name, kind in _PART_TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                names = [getattr(one, "__name__", "") for one in get_args(kind) or (kind,)]
                expected = " or ".join("None" if one == "NoneType" else one for one in names)
                expected += "" if kind is dict else " of pellucid.config"
                raise value_error(name, value, expected)
        object.__setattr__(self, "inert", dict(self.inert))  # a copy: the caller may change theirs later
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            check_count(name, getattr(self, name))
        check_count("type_vocab_size", self.type_vocab_size, maximum=1_000_000, minimum=0)
        check_range("initializer_range", self.initializer_range, minimum=0.0, maximum=100.0)
        check_choice("kind", self.kind, ("encoder", "decoder", "encoder-decoder"))
        check_choice("residual", self.residual, ("post", "pre"))
        if self.embedding_size is not None:
            check_count("embedding_size", self.embedding_size)
        if self.num_hidden_groups is not None:
            check_count("num_hidden_groups", self.num_hidden_groups, maximum=self.num_hidden_layers)
        for name in (
            "embedding_norm",
            "embedding_projection",
            "scale_embedding",
            "pooler",
            "tie_word_embeddings",
            "scale_logits",
            "trainable_padding",
        ):
            check_bool(name, getattr(self, name))
        check_token_id("bos_token_id", self.bos_token_id)
        ends = tuple(check_token_id("eos_token_id", end) for end in self.end_tokens)
        if isinstance(self.eos_token_id, tuple):
            object.__setattr__(self, "eos_token_id", ends)
        if not isinstance(self.labels, tuple | list) or not all(isinstance(one, str) for one in self.labels):
            raise InputError(Argument("labels"), f" are {shorten(repr(self.labels))}, expected a list of names")
        if not self.labels or len(set(self.labels)) != len(self.labels):
            shown = shorten(repr(list(self.labels)))
            raise InputError(Argument("labels"), f" are {shown}, expected at least one and no two alike")
        object.__setattr__(self, "labels", tuple(self.labels))  # immutable and hashable
        check_consistent(self)

    def _check_part(self, name: str, value: object) -> None:
        """Refuses a plain value where one of the small types is expected."""
        if value is None or dataclasses.is_dataclass(value):
            return
        part = getattr(self, name)
        if dataclasses.is_dataclass(part):
            raise value_error(name, value, f"its facts one by one: {', '.join(vars(part)) or 'none'}")
        if name in ("head", "decoder"):
            raise value_error(name, value, "one of the types of pellucid.config")

    # Derived facts, under the names that users know.

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.attention.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def num_key_value_heads(self) -> int:
        """Number of key and value heads."""
        return self.attention.num_key_value_heads or self.num_attention_heads

    @property
    def max_sequence_length(self) -> int | None:
        """Maximum number of tokens that the model was made for; None where no position type limits it."""
        for position in (self.position, self.attention_position):
            length = getattr(position, "max_position_embeddings", None)
            if length is not None:
                unused = (self.pad_token_id or 0) + 1 if getattr(position, "skip_padding", False) else 0
                return length - unused
        return None

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The ids of end-of-sequence tokens; empty where the model has none."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    @property
    def pools(self) -> bool:
        """Whether this model, with this head, computes the pooled first token."""
        return self.pooler and (self.head is None or self.head.pooled)

    @property
    def writes(self) -> bool:
        """Whether this model, with this head, predicts the next token."""
        return self.head is not None and self.head.writes

    @property
    def answer_names(self) -> tuple[str, ...]:
        """What each logit stands for, in order; empty for a head over the vocabulary and for no head."""
        answers = self.head.answers if self.head else ()
        if answers == "labels":
            return self.labels
        return () if answers == "vocabulary" else answers

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return len(self.labels)

    @property
    def id2label(self) -> dict[int, str]:
        """The label of each logit, by index."""
        return dict(enumerate(self.labels))

    @property
    def label2id(self) -> dict[str, int]:
        """The index of each label's logit."""
        return {label: index for index, label in enumerate(self.labels)}

    def __getattr__(self, name: str) -> Any:
        for part in _parts(self):
            if name in vars(part):
                return vars(part)[name]
        hint = did_you_mean(name, self.facts()) if "family" in vars(self) else ""  # not yet set while unpickling
        raise AttributeError(f"a config has no {name!r}{hint}")

    @classmethod
    def of(cls, family: str, /, **changes: Any) -> "Config":
        """The family's defaults, with some facts changed.

        >>> Config.of("bert", num_hidden_layers=2).num_hidden_layers
        2
        """
        if not _DEFAULTS:
            raise InputError("no family is known yet: take Config from pellucid itself, which reads their pages")
        if not is_one_of(family, *_DEFAULTS):
            known = f"{did_you_mean(family, _DEFAULTS)}: one of {', '.join(sorted(_DEFAULTS))}"
            raise InputError(f"unknown family {shorten(repr(family))}{known}")
        if "family" in changes:
            raise InputError(f"family is given twice, {family!r} and {changes['family']!r}: leave one of them out")
        return _DEFAULTS[family].replace(**changes)

    def facts(self) -> dict[str, Any]:
        """Every scalar fact by name: the config's own fields, then those of the small types."""
        values = {name: value for name, value in vars(self).items() if name != "inert"}
        flat = {name: value for name, value in values.items() if not dataclasses.is_dataclass(value)}
        for part in _parts(self):
            flat |= vars(part)
        return flat

    def replace(self, **changes: Any) -> Self:
        """A copy with some facts changed; facts of the small types can be named from the top. `num_labels` keeps the
        labels where their number is unchanged, and otherwise names them LABEL_0, LABEL_1 and so on.

        >>> config.replace(num_hidden_layers=2, intermediate_size=64, num_labels=3)   # doctest: +SKIP
        """
        if "num_labels" in changes:
            check_count("num_labels", number := changes.pop("num_labels"))
            if isinstance(labels := changes.get("labels", self.labels), tuple | list) and len(labels) != number:
                if "labels" in changes:
                    raise InputError(f"num_labels is {number} beside {len(labels)} labels: give labels alone")
                changes["labels"] = tuple(f"LABEL_{i}" for i in range(number))
        top = {name: changes.pop(name) for name in list(changes) if name in vars(self)}
        for name, value in top.items():
            self._check_part(name, value)
        for name in vars(self):  # all at once, since facts of different parts are checked against each other
            part = top.get(name, getattr(self, name))
            if not dataclasses.is_dataclass(part):
                continue
            inner = {fact: changes.pop(fact) for fact in list(changes) if fact in vars(part)}
            if inner:
                top[name] = dataclasses.replace(part, **inner)
        if changes:
            name = next(iter(changes))
            replaced = [part for part in top if name in getattr(getattr(self, part), "__dict__", ())]
            hint = f" with this {replaced[0]}" if replaced else did_you_mean(name, self.facts())
            raise InputError(f"a {self.family} config has no {shorten(repr(name))}{hint}")
        labels = top.get("labels", self.labels)
        if isinstance(top.get("head"), QuestionAnswering) and isinstance(labels, tuple | list) and len(labels) != 2:
            top["labels"] = ("LABEL_0", "LABEL_1")  # the reference derives its two logits from the number of labels
        return dataclasses.replace(self, **top)


def _parts(config: Config) -> list[Any]:
    return [value for value in vars(config).values() if dataclasses.is_dataclass(value)]
