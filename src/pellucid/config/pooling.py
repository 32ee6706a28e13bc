"""How the hidden states of a text become one vector, and how two vectors are compared."""

from dataclasses import dataclass, field

from pellucid.errors import InputError, did_you_mean

MODES = ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
"""The ways to make one vector of many."""

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""The ways to compare two vectors; the last two are distances, less than nothing."""


@dataclass(frozen=True)
class Pooling:
    """How a text becomes one vector.

    modes: names from `MODES`; several are laid side by side.
    normalize: scale the vector to length 1.
    max_length: longer texts are cut to so many tokens; None for the model's own limit.
    similarity: how such vectors are compared, a name from `SIMILARITIES`.
    truncate_dim: so many numbers of the finished vector are kept, the first ones; None for all.
    do_lower_case: texts are read in lower case; the model's tokenizer sees to it.
    prompts, include_prompt: what a caller may put before a text, by name, and whether it is part of the vector. Kept
        for whoever reads them, so that saving loses nothing: nothing is put before a text here.
    hidden: numbers of the hidden states that it was written for; None where the files do not say.
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
                raise InputError(f"pooling {mode!r} is not known{did_you_mean(mode, MODES)}: one of {', '.join(MODES)}")

    def width(self, hidden: int) -> int:
        """Numbers of a vector, from those of a hidden state."""
        return min(hidden * len(self.modes), self.truncate_dim or hidden * len(self.modes))
