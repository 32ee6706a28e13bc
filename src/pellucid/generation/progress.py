"""The state of generation that rules receive: the tokens of each text so far."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """The texts of a batch, as far as they are generated.

    ids: Int[Tensor, "rows seq"], left-padded with -1. Of an encoder-decoder, the decoder's, with its start token.
    prompt_length: number of columns before the first choice; all later ones were chosen.
    max_new_tokens: maximum number of tokens to choose.
    left: number of tokens that each text still has room for; if empty, what is left of `max_new_tokens`.
    end_tokens: the ids that end a text.
    """

    ids: Tensor
    prompt_length: int
    max_new_tokens: int
    end_tokens: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    @property
    def new(self) -> int:
        """Number of tokens chosen so far."""
        return self.ids.shape[1] - self.prompt_length
