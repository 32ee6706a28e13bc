"""How a model represents the order of its tokens: added to the embeddings, or inside attention."""

from dataclasses import dataclass
from typing import Literal

from pellucid.config.checks import check_bool, check_choice, check_count, check_range, store_plain_numbers, value_error
from pellucid.errors import Argument, InputError

# -- absolute positions: added to the embeddings ----------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """A trained table of `max_position_embeddings` position embeddings; longer inputs are not possible.

    position_offset: the row of the first position; the rows before it are never read.
    skip_padding: whether padding is not counted. Positions of tokens then start at `pad_token_id` + 1 and all padding
        has position `pad_token_id`, so that a text's positions do not depend on its padding. Encoders only.
    """

    max_position_embeddings: int = 512
    position_offset: int = 0
    skip_padding: bool = False

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        check_count("max_position_embeddings", self.max_position_embeddings)
        check_count("position_offset", self.position_offset, minimum=0)
        check_bool("skip_padding", self.skip_padding)


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed sine and cosine waves (Vaswani et al., 2017, arXiv:1706.03762, section 3.5).

    waves: "interleaved" (sine, cosine, sine, ...; the paper's), "halves" (all sines, then all cosines) or
        "tensor2tensor" (halves, where the slowest wave advances one radian in exactly 10,000 positions).
    """

    max_position_embeddings: int = 512
    position_offset: int = 0
    waves: Literal["interleaved", "halves", "tensor2tensor"] = "interleaved"

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        check_count("max_position_embeddings", self.max_position_embeddings)
        check_count("position_offset", self.position_offset, minimum=0)
        check_choice("waves", self.waves, ("interleaved", "halves", "tensor2tensor"))


@dataclass(frozen=True)
class NoPosition:
    """No positions of this kind."""


# -- relative positions: inside attention only ------------------------------------------------------------------------


@dataclass(frozen=True)
class Llama3Scaling:
    """Divides low frequencies by `factor`, keeps high ones and interpolates between them (Llama 3.1)."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            check_range(name, getattr(self, name), above=0.0, maximum=1e6)
        check_count("original_max_position_embeddings", self.original_max_position_embeddings)
        if self.low_freq_factor >= self.high_freq_factor:
            low, high = Argument("low_freq_factor"), Argument("high_freq_factor")
            raise InputError(low, f" is {self.low_freq_factor}, expected less than ", high)


@dataclass(frozen=True)
class LinearScaling:
    """Divides all frequencies by `factor` (position interpolation: Chen et al., 2023, arXiv:2306.15595)."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_range("factor", self.factor, above=0.0, maximum=1e6)


@dataclass(frozen=True)
class Rotary:
    """Rotates queries and keys by an angle that grows with the position (Su et al., 2021, arXiv:2104.09864).

    max_position_embeddings: the length that the model was trained on. A forward pass on ids may exceed it; texts and
        generation may not.
    """

    rope_theta: float = 10_000.0
    max_position_embeddings: int = 2048
    rope_scaling: Llama3Scaling | LinearScaling | None = None

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        check_range("rope_theta", self.rope_theta, above=0.0, maximum=1e12)
        check_count("max_position_embeddings", self.max_position_embeddings)
        if not isinstance(self.rope_scaling, Llama3Scaling | LinearScaling | None):  # a dict, as in config.json
            expected = "pellucid.config.Llama3Scaling(...) or LinearScaling(...)"
            raise value_error("rope_scaling", self.rope_scaling, expected)


@dataclass(frozen=True)
class RelativeBias:
    """A trained bias per head and bucket of distances, shared by all layers (Raffel et al., 2019, arXiv:1910.10683,
    section 2.1). Small distances have a bucket each; larger ones share buckets."""

    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128

    def __post_init__(self) -> None:
        store_plain_numbers(self)
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        check_count("relative_attention_num_buckets", buckets, minimum=4)
        check_count("relative_attention_max_distance", distance, minimum=2)
        if buckets // 2 >= distance:  # half of the buckets hold one distance each, the others share what lies beyond
            far = Argument("relative_attention_max_distance"), f" {distance}"
            raise InputError(
                Argument("relative_attention_num_buckets"), f" is {buckets}, expected less than twice the ", far
            )


Position = Learned | Sinusoidal | NoPosition
AttentionPosition = NoPosition | Rotary | RelativeBias
