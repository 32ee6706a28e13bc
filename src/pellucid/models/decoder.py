"""The decoder: a causal stack, which predicts the next token from those before it."""

from typing import Any, ClassVar

from torch import Tensor, nn

from pellucid.blocks import Cache, Embeddings, Observer
from pellucid.blocks.checks import require_whole_number
from pellucid.models.output import Output
from pellucid.models.packable import PackableNetwork
from pellucid.models.stack import Stack


class Decoder(Stack, PackableNetwork):
    """ids --> embeddings --> layers.0 --> ... --> layers.N --> norm --> hidden states [--> head]

    (Radford et al., 2018 and 2019; Touvron et al., 2023, arXiv:2302.13971.)

    input_names: as in `Encoder`.
    """

    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "segments")
    is_autoregressive = True
    before_head = Stack.states

    def __init__(
        self, embeddings: Embeddings, layers: list[nn.Module], *, head: nn.Module | None = None, **parts: Any
    ) -> None:
        super().__init__(embeddings, layers, causal=True, skips_padding=True, **parts)
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        logits_to_keep: int = 0,
        segments: Tensor | None = None,
        observer: Observer | None = None,
    ) -> Output:
        """Runs one forward pass, over a whole text or over the next part of one.

        input_ids: Int[Tensor, "batch seq"]; attention_mask: the same shape, 1 = token, 0 = padding on either side.
        cache: keys and values of earlier passes, to which this pass adds its own. The ids are then only the new ones.
        logits_to_keep: compute logits for this many last positions only, which is all that generation needs; 0 for all.
        segments: Int[Tensor, "batch seq"], texts packed into one row, 1, 2, 3, ..., 0 for padding: see `Stack.states`.
        ->  last_hidden_state Float[Tensor, "batch seq hidden"], logits
        """
        logits_to_keep = require_whole_number("logits_to_keep", logits_to_keep)
        run = self.observed_pass(observer)
        stream = self.states(input_ids, attention_mask, run=run, cache=cache, segments=segments)
        answer = {"last_hidden_state": stream}
        if self.head is not None:
            logits = self._head_logits(stream[:, -logits_to_keep:], input_ids, attention_mask)
            answer["logits"] = run.observe("logits", logits)
        if cache is not None:
            cache.finish()
        return Output(answer)

    def new_cache(self, capacity: int) -> Cache:
        """Returns an empty cache for `capacity` positions of each text."""
        return Cache(self.depth, capacity)
