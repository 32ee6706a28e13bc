"""Embeddings: token ids to vectors, with token types and absolute positions."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.forward_pass import Pass
from pellucid.blocks.position import LearnedPositions, NoPositions, PaddingAwarePositions, SinusoidalPositions, Table

Positions = LearnedPositions | PaddingAwarePositions | SinusoidalPositions | NoPositions


class Embeddings(nn.Module):
    """token (x scale) (+ type) (+ position), then norm, dropout and, where the embedding is narrower, a linear layer.

        ids --> token ----.
        types -> type -----+--> sum --> norm --> dropout --> projection --> stream
        positions -> position '

    The sum is taken in the order token, type, position, as in the reference.

    width: width of the tables, where it is not `hidden_size` (Lan et al., 2019, arXiv:1909.11942, section 3.1).
    projected: whether there is a linear layer even if both widths are equal.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        position: Positions,
        type_vocab_size: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        pad_token_id: int | None = None,
        width: int | None = None,
        projected: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        width = width or hidden_size
        self.token = Table(vocab_size, width, padding_idx=pad_token_id)
        self.scale = scale
        self.position = position
        self._modules["type"] = Table(type_vocab_size, width) if type_vocab_size else None
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(width, hidden_size) if projected or width != hidden_size else nn.Identity()

    @property
    def type(self) -> Any:  # pyrefly: ignore[bad-override] - PyTorch's method of this name casts; this is a table
        """Embedding table of token types, the text of a pair that a token is in; None where the model has none."""
        return self._modules["type"]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        run: Pass | None = None,
        *,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Returns the sum of the embeddings, normalised and projected.

        input_ids: Int[Tensor, "batch seq"]; token_type_ids: the same shape, 0 by default; positions: the positions,
            Int[Tensor, "batch|1 seq"], by default 0, 1, 2, ...
        ->  Float[Tensor, "batch seq hidden"]
        """
        run = run or Pass()
        token = self.token(input_ids)
        stream = run.observe("token", token if self.scale == 1.0 else token * self.scale)
        if self.type is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            stream = stream + run.observe("type", self.type(types))
        if positions is None:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        position = self.position(positions, input_ids)
        if position is not None:
            stream = stream + run.observe("position", position.to(stream.dtype))
        return run.observe("output", self.projection(self.dropout(self.norm(stream))))
