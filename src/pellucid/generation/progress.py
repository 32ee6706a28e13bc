"""What the rules of a choice are told: how far each text has come."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """Texts side by side, as far as they are written.

    ids: Int[Tensor, "rows seq"]; shorter texts begin further right, and -1 stands where they have nothing. Of an
        encoder-decoder these are the decoder's, its start token among them.
    given: how many columns stood there before the first choice; what comes behind them was chosen.
    most: how many tokens may be chosen at most.
    left: how many each text has room for by now; where it is empty, what is left of `most`.
    end_tokens: the ids that end a text.
    """

    ids: Tensor
    given: int
    most: int
    end_tokens: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def new(self) -> int:
        """How many tokens have been chosen."""
        return self.ids.shape[1] - self.given
