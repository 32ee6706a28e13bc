"""The encoder: a bidirectional stack with an optional pooler and head."""

from typing import Any, ClassVar

from torch import Tensor, nn

from pellucid.blocks import Embeddings, Observer
from pellucid.models.heads import Pooler, TextLabels
from pellucid.models.output import Output
from pellucid.models.packable import PackableNetwork
from pellucid.models.stack import Stack


class Encoder(Stack, PackableNetwork):
    """ids --> embeddings --> layers.0 --> ... --> layers.N --> norm --> hidden states [--> pooler] [--> head]

    (Vaswani et al., 2017; Devlin et al., 2018, arXiv:1810.04805.)

    input_names: names of the tensors that `forward` takes; a memory, a cache and an observer are further arguments.
    """

    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "token_type_ids", "segments")
    before_head = Stack.states

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[nn.Module],
        *,
        pooler: nn.Module | None = None,
        head: nn.Module | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(embeddings, layers, **parts)
        self.pooler = pooler
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        observer: Observer | None = None,
    ) -> Output:
        """Runs one forward pass.

        input_ids: Int[Tensor, "batch seq"]; attention_mask (1 = token, 0 = padding), token_type_ids: the same shape.
        segments: the same shape, texts packed into one row, numbered 1, 2, 3, ..., 0 for padding; see `Stack.states`.
        ->  last_hidden_state Float[Tensor, "batch seq hidden"], pooler_output Float[Tensor, "batch hidden"], logits
        """
        run = self.observed_pass(observer)
        stream = self.states(input_ids, attention_mask, token_type_ids, run=run, segments=segments)
        answer = {"last_hidden_state": stream}
        if self.pooler is not None:
            answer["pooler_output"] = run.observe("pooled", self.pooler(stream))
        if self.head is not None:
            logits = self._head_logits(stream, input_ids, attention_mask, answer.get("pooler_output"))
            answer["logits"] = run.observe("logits", logits)
        return Output(answer)

    @property
    def skips_unread_positions(self) -> bool:
        """Whether it computes only what is read: a packed or training copy that nothing observes."""
        return self.is_fast or self.is_training_copy

    def first_states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Hidden states of the first positions: Int[Tensor, "batch seq"]  ->  Float[Tensor, "batch 1 hidden"]

        If `skips_unread_positions`, the last layer computes no other position.
        """
        return self.states(input_ids, attention_mask, token_type_ids, first=self.skips_unread_positions)[:, :1]

    def logits(self, **batch: Tensor) -> Tensor:
        """The head's logits; if `skips_unread_positions`, the last layer computes only what the head reads."""
        head, pooler = self.head, self.pooler
        plain = isinstance(pooler, Pooler | None) and "segments" not in batch  # another pooler may read every position
        if not (self.skips_unread_positions and plain and isinstance(head, TextLabels) and head.reads_first_position):
            return super().logits(**batch)
        stream = self.first_states(**batch)
        pooled = None if pooler is None else pooler(stream)
        return head(stream, pooled, batch["input_ids"], batch.get("attention_mask"))
