"""Rows of ids laid side by side: padding, masks, and the grouping that keeps padding rare."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from pellucid.errors import InputError

TOKEN_BUDGET = 1024
"""Computed positions per batch: enough for full matrix products, small enough for the processor's cache."""


class Batch(dict[str, Any]):
    """What a model takes: `input_ids`, `token_type_ids`, `attention_mask`, each also an attribute.

    >>> model(**tokenizer(["a", "b c"], padding=True, return_tensors="pt"))   # doctest: +SKIP
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"this batch has no {name!r}; it has {', '.join(self)}")

    def to(self, device: Any) -> Self:
        """The same batch with its tensors on `device`."""
        return type(self)({k: v.to(device) if hasattr(v, "to") else v for k, v in self.items()})


def collate(
    rows: Sequence[Sequence[int]],
    type_rows: Sequence[Sequence[int]],
    pad_id: int,
    *,
    length: int | None = None,
    left: bool = False,
) -> dict[str, np.ndarray]:
    """Rows of unequal length to three int64 arrays of [batch, seq], padded to the longest row or to `length`."""
    width = length or max((len(row) for row in rows), default=0)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    types = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for i, (row, type_row) in enumerate(zip(rows, type_rows)):
        here = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, here], types[i, here], mask[i, here] = row, type_row, 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def batch_of(
    rows: Sequence[Sequence[int]],
    type_rows: Sequence[Sequence[int]],
    pad_id: int | None,
    *,
    length: int | None = None,
    kind: str | None = None,
) -> dict[str, Any]:
    """Rows as lists, or as what `kind` asks for: "pt" for torch tensors of [batch, seq], "np" for NumPy's arrays.

    pad_id: None leaves the rows as long as they are.
    Raises InputError for rows of unequal length that should become one tensor.
    """
    if pad_id is None and (kind is None or not rows):
        masks = [[1] * len(row) for row in rows]
        return {"input_ids": list(rows), "token_type_ids": list(type_rows), "attention_mask": masks}
    if pad_id is None and len({len(row) for row in rows}) > 1:
        raise InputError("texts of unequal length do not make one tensor: pass padding=True")
    arrays = collate(rows, type_rows, pad_id or 0, length=length)
    if kind is None:
        return {name: array.tolist() for name, array in arrays.items()}
    return {name: _tensor(array) if kind == "pt" else array for name, array in arrays.items()}


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def by_length(lengths: Sequence[int], budget: int = TOKEN_BUDGET) -> Iterator[list[int]]:
    """Row numbers grouped into batches, longest first, each batch at most `budget` positions after padding.

    Neighbours in length share a batch, so that hardly a position is padding; no text is ever split.

    >>> list(by_length([3, 9, 4, 8], budget=18))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], 1)
        stop = start + max(budget // longest, 1)
        yield order[start:stop]
        start = stop
