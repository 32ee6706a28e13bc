"""Ids to vectors: what a token is, which text it belongs to, where it stands."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.position import LearnedPositions, NoPositions, PaddingAwarePositions, SinusoidalPositions, Table
from pellucid.blocks.run import Pass

Positions = LearnedPositions | PaddingAwarePositions | SinusoidalPositions | NoPositions


class Embeddings(nn.Module):
    """token (x scale) (+ type) (+ position), then norm, dropout and, where the table is narrower, a linear map.

        ids --> token ----.
        types -> type -----+--> sum --> norm --> dropout --> projection --> stream
        places -> position '

    The sum is formed in the order token, type, position, as the reference forms it.

    width: of the tables, where it is not `hidden_size` (Lan et al., 2019, arXiv:1909.11942, section 3.1).
    projected: the linear map is there even where both are as wide.
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
        """Which text of a pair a token belongs to: a `Table`, or None where the model does not ask."""
        return self._modules["type"]

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None = None,
        run: Pass | None = None,
        *,
        places: Tensor | None = None,
    ) -> Tensor:
        """Ids, and where they stand, to the stream.

        input_ids: Int[Tensor, "batch seq"]; token_type_ids: the same shape, 0 where not given; places:
        Int[Tensor, "batch|1 seq"], 0, 1, 2, ... where not given  ->  Float[Tensor, "batch seq hidden"]
        """
        run = run or Pass()
        token = self.token(input_ids)
        stream = run.observe("token", token if self.scale == 1.0 else token * self.scale)
        if self.type is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            stream = stream + run.observe("type", self.type(types))
        if places is None:
            places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        position = self.position(places, input_ids)
        if position is not None:
            stream = stream + run.observe("position", position.to(stream.dtype))
        return run.observe("output", self.projection(self.dropout(self.norm(stream))))
