"""How the hidden states of a text become one vector, and how two vectors are compared."""

from dataclasses import dataclass, field

from pellucid.errors import InputError, did_you_mean, shorten

MODES = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
"""The ways to pool many vectors into one."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""The ways to compare two vectors; the last two are negated distances."""


@dataclass(frozen=True)
class Pooling:
    """How a text becomes one vector.

    modes: names from `MODES`; the results of several are concatenated.
    normalize: whether the vector is scaled to length 1.
    max_length: maximum number of tokens, longer texts are truncated; None for the model's own limit.
    similarity: how vectors are compared, a name from `SIMILARITIES`.
    truncate_dim: number of leading components of the finished vector that are kept; None for all.
    do_lower_case: whether texts are lower-cased, which the model's tokenizer does.
    prompts, include_prompt: prefixes that a caller may put before a text, by name, and whether they count in pooling.
        They are only kept, so that saving loses nothing; no prefix is added here.
    hidden: width of the hidden states that the pooling was saved for; None where the files do not say.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    similarity: str = "cosine"
    truncate_dim: int | None = None
    do_lower_case: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    include_prompt: bool = True
    hidden: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise InputError(
                    f"pooling {shorten(repr(mode))} is not known{did_you_mean(mode, MODES)}: one of {', '.join(MODES)}"
                )

    def width(self, hidden: int) -> int:
        """Width of the vector for hidden states of width `hidden`."""
        return min(hidden * len(self.modes), self.truncate_dim or hidden * len(self.modes))
