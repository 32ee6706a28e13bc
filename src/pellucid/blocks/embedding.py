"""Ids to vectors: what a token is, which text it belongs to, where it stands."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.position import LearnedPositions, NoPositions, SinusoidalPositions, Table
from pellucid.blocks.run import Pass


class Embeddings(nn.Module):
    """token (+ type) (+ position), then norm and dropout.

        ids --> token ----.
        types -> type -----+--> sum --> norm --> dropout --> stream
        places -> position '

    The sum is formed in the order token, type, position, as the reference forms it.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        position: LearnedPositions | SinusoidalPositions | NoPositions,
        type_vocab_size: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        pad_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.token = Table(vocab_size, hidden_size, padding_idx=pad_token_id)
        self.position = position
        self._modules["type"] = Table(type_vocab_size, hidden_size) if type_vocab_size else None
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)

    @property
    def type(self) -> Any:  # pyrefly: ignore[bad-override] - PyTorch's method of this name casts; this is a table
        """Which text of a pair a token belongs to: a `Table`, or None where the model does not ask."""
        return self._modules["type"]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None, run: Pass | None = None) -> Tensor:
        """Int[Tensor, "batch seq"] (types alike, 0 where not given)  ->  Float[Tensor, "batch seq hidden"]"""
        run = run or Pass()
        stream = run.see("token", self.token(input_ids))
        if self.type is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            stream = stream + run.see("type", self.type(types))
        places = self.position(torch.arange(input_ids.shape[1], device=input_ids.device)[None])
        if places is not None:
            stream = stream + run.see("position", places.to(stream.dtype))
        return run.see("output", self.dropout(self.norm(stream)))
