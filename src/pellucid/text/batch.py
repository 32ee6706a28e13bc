"""Rows of ids collated into batches: padding, masks, and a grouping by length that keeps padding low."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from pellucid.config.checks import as_list
from pellucid.errors import Argument, InputError, MessagePart

TOKEN_BUDGET = 1536
"""Padded positions per batch: enough for efficient matrix products, few enough for the processor's cache."""

PASS_COST = 48
"""Fixed cost of a forward pass, in positions: reading the weights, and the overhead of each step."""

GPU_TOKEN_BUDGET, GPU_PASS_COST = 16384, 4096
"""The same on a GPU, which computes thousands of positions in the time that launching the steps of a pass takes."""

PADDINGS = (True, False, "longest", "max_length", "do_not_pad")
RETURN_TENSORS = ("pt", "np", None)


class Batch(dict[str, Any]):
    """The inputs of a model: `input_ids`, `token_type_ids`, `attention_mask`, each also an attribute.

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
    """Pads rows of unequal length into int64 arrays of [batch, seq], to the longest row or to `length`."""
    width = length or max((len(row) for row in rows), default=0)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    types = np.zeros((len(rows), width), dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=np.int64)
    for i, (row, type_row) in enumerate(zip(rows, type_rows)):
        here = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, here], types[i, here], mask[i, here] = row, type_row, 1
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def text_list(name: str, texts: Any) -> list[Any]:
    """One text or several as a list. Raises InputError for anything else."""
    if isinstance(texts, str):
        return [texts]
    if (found := as_list(texts)) is None:
        raise InputError(f"{name} is {type(texts).__name__}, expected a text or a list of texts")
    return found


def check_equally_long(rows: Iterable[Sequence[Any]], *besides: MessagePart) -> None:
    """Raises InputError for rows of unequal length, which cannot form one tensor.

    besides: further advice for the error, after that to pad.
    """
    if len({len(row) for row in rows}) > 1:
        raise InputError("texts of unequal length do not make one tensor: pass ", Argument("padding", True), besides)


def to_tensor_type(arrays: dict[str, np.ndarray], kind: str | None) -> dict[str, Any]:
    """The arrays converted to `kind`: "pt" for torch tensors, "np" for the arrays themselves, None for lists."""
    if kind is None:
        return {name: array.tolist() for name, array in arrays.items()}
    if kind == "np":
        return dict(arrays)
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def batch_limits(device: str) -> tuple[int, int]:
    """The token budget of a batch and the cost of a pass on this type of device, as `length_batches` takes them."""
    return (TOKEN_BUDGET, PASS_COST) if device == "cpu" else (GPU_TOKEN_BUDGET, GPU_PASS_COST)


def length_batches(
    lengths: Sequence[int], budget: int = TOKEN_BUDGET, pass_cost: int = PASS_COST
) -> Iterator[list[int]]:
    """Groups row numbers into batches, longest first, each at most `budget` positions after padding.

    Rows of similar length share a batch, split where their padding would cost more than another pass: no other such
    grouping costs less. No row is ever split; one that is longer than `budget` is a batch of its own.

    pass_cost: the fixed cost of a pass, in positions.

    >>> list(length_batches([3, 9, 4, 8], budget=18))
    [[1, 3], [2, 0]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    widths = [max(lengths[i], 1) for i in order]
    least, batch_starts = [0], [0]  # of the rows before: their least total cost, and the start of their last batch
    first, changes = 0, deque[int]()
    for last, width in enumerate(widths):
        if last == 0 or width < widths[last - 1]:
            changes.append(last)
        while first < last and (last + 1 - first) * widths[first] > budget:
            first += 1
        while changes and changes[0] <= first:
            changes.popleft()
        costs = ((least[start] + (last + 1 - start) * widths[start] + pass_cost, start) for start in (first, *changes))
        cost, start = min(costs)
        least.append(cost)
        batch_starts.append(start)
    ends = [len(order)] if order else []
    while ends and batch_starts[ends[-1]]:
        ends.append(batch_starts[ends[-1]])
    for end in reversed(ends):
        yield order[batch_starts[end] : end]
