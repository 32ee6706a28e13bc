"""How a model knows the order of its tokens: from what is added to an embedding, or inside attention."""

from dataclasses import dataclass
from typing import Literal

from pellucid.config.checks import check_bool, check_choice, check_count, check_range
from pellucid.errors import Argument, InputError, shorten

# -- where a token stands: added to its embedding ---------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """A table of positions that is learned: `max_position_embeddings` rows, no more.

    position_offset: the row of the first place; the rows before it are never read.
    skip_padding: padding takes no place. Words are counted from `pad_token_id` + 1, and padding stands at
        `pad_token_id` itself, so that a text's places do not depend on where its padding stands. In encoders alone.
    """

    max_position_embeddings: int = 512
    position_offset: int = 0
    skip_padding: bool = False

    def __post_init__(self) -> None:
        check_count("max_position_embeddings", self.max_position_embeddings)
        check_count("position_offset", self.position_offset, least=0)
        check_bool("skip_padding", self.skip_padding)


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed waves of sine and cosine (Vaswani et al., 2017, arXiv:1706.03762, section 3.5).

    waves: "interleaved" (sine, cosine, sine, ...; the paper's), "halves" (all sines, then all cosines) or
        "tensor2tensor" (halves, whose slowest wave turns through one radian in exactly 10,000 places).
    """

    max_position_embeddings: int = 512
    position_offset: int = 0
    waves: Literal["interleaved", "halves", "tensor2tensor"] = "interleaved"

    def __post_init__(self) -> None:
        check_count("max_position_embeddings", self.max_position_embeddings)
        check_count("position_offset", self.position_offset, least=0)
        check_choice("waves", self.waves, ("interleaved", "halves", "tensor2tensor"))


@dataclass(frozen=True)
class NoPosition:
    """No positions of this kind."""


# -- where tokens stand to each other: known to attention alone -------------------------------------------------------


@dataclass(frozen=True)
class Llama3Scaling:
    """Slow waves turn slower by `factor`, fast ones as before, those between in proportion (Llama 3.1)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            check_range(name, getattr(self, name), above=0.0, most=1e6)
        check_count("original_max_position_embeddings", self.original_max_position_embeddings)
        if self.low_freq_factor >= self.high_freq_factor:
            low, high = Argument("low_freq_factor"), Argument("high_freq_factor")
            raise InputError(low, f" is {self.low_freq_factor}, expected less than ", high)


@dataclass(frozen=True)
class LinearScaling:
    """All waves turn slower by `factor` (position interpolation: Chen et al., 2023, arXiv:2306.15595)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_range("factor", self.factor, above=0.0, most=1e6)


@dataclass(frozen=True)
class Rotary:
    """Query and key are turned by an angle that grows with the place (Su et al., 2021, arXiv:2104.09864).

    max_position_embeddings: how far the model was trained. A pass may go beyond it; texts, and writing, may not.
    """

    rope_theta: float = 10_000.0
    max_position_embeddings: int = 2048
    rope_scaling: Llama3Scaling | LinearScaling | None = None

    def __post_init__(self) -> None:
        check_range("rope_theta", self.rope_theta, above=0.0, most=1e12)
        check_count("max_position_embeddings", self.max_position_embeddings)
        if not isinstance(self.rope_scaling, Llama3Scaling | LinearScaling | None):  # a dict, as config.json has it
            expected = "pellucid.config.Llama3Scaling(...) or LinearScaling(...)"
            raise InputError(Argument("rope_scaling"), f" is {shorten(repr(self.rope_scaling))}, expected {expected}")


@dataclass(frozen=True)
class RelativeBias:
    """A learned summand per head and bucket of distances, one table for all layers (Raffel et al., 2019,
    arXiv:1910.10683, section 2.1). Near distances have a bucket each, far ones share."""

    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128

    def __post_init__(self) -> None:
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        check_count("relative_attention_num_buckets", buckets, least=4)
        check_count("relative_attention_max_distance", distance, least=2)
        if buckets // 2 >= distance:  # half of the buckets hold one distance each, the others share what lies beyond
            far = Argument("relative_attention_max_distance"), f" {distance}"
            raise InputError(
                Argument("relative_attention_num_buckets"), f" is {buckets}, expected less than twice the ", far
            )


Position = Learned | Sinusoidal | NoPosition
AttentionPosition = NoPosition | Rotary | RelativeBias
