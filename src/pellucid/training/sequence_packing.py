"""Packs several texts into one row, which leaves little padding, and builds the rows of language models."""

import bisect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pellucid.training.losses import IGNORED

Tokens = np.ndarray
"""Int32[array, "seq"]"""


class Chunk(NamedTuple):
    """A chunk of one text: its tokens, and for each the next token as its label (-100 for none)."""

    ids: Tokens
    labels: Tokens


class RowTargets(NamedTuple):
    """Labels of a row as in `Chunk`, and for each token the number of its text, from 1."""

    labels: Tokens
    segments: Tokens


def example_generators(generator: np.random.Generator, numbers: Sequence[int]) -> list[np.random.Generator]:
    """A random generator for each example, which depends on the step's `generator` and on the example's number only, so
    that splitting a batch into micro-batches changes nothing."""
    step = int(generator.integers(2**63))
    return [np.random.default_rng((step, number)) for number in numbers]


def cut_chunks(ids: Sequence[int], is_target: Sequence[bool], room: int) -> Iterator[Chunk]:
    """Splits a text into chunks of `room` positions; each token but the first is once the label of the one before.

    is_target: for each token whether it is a target. Chunks without targets are left out.
    """
    array = np.asarray(ids, dtype=np.int32)
    labels = np.where(np.asarray(is_target, dtype=bool)[1:], array[1:], IGNORED).astype(np.int32)
    for start in range(0, len(labels), room):
        chunk = Chunk(array[:-1][start : start + room], labels[start : start + room])
        if (chunk.labels != IGNORED).any():
            yield chunk


def pack_rows(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Packs texts into rows of `room` positions by best fit, longest first. ->  the indices of the texts of each row

    >>> pack_rows([5, 3, 4, 2], room=7)
    [[0, 3], [2, 1]]
    """
    rows: list[list[int]] = []
    rooms: list[int] = []
    waiting: dict[int, list[int]] = {}  # rows by their free positions; `rooms` holds its keys, sorted
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        index = bisect.bisect_left(rooms, sizes[i])
        if index == len(rooms):
            rows.append([])
            row, left = len(rows) - 1, room
        else:
            left = rooms[index]
            row = waiting[left].pop()
            if not waiting[left]:
                del rooms[index]
        rows[row].append(i)
        left -= sizes[i]
        if left > 0:
            if not waiting.setdefault(left, []):
                bisect.insort(rooms, left)
            waiting[left].append(row)
    return rows


def concatenate(parts: Sequence[Tokens]) -> Tokens:
    """Arrays as one; empty for none."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def segment_ids(sizes: Sequence[int]) -> Tokens:
    """1 for the tokens of the first text, 2 for those of the second, and so on."""
    return np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)


def padded(rows: Sequence[Sequence[int] | Tokens], fill: int) -> Any:
    """Rows of unequal length as one array: Int64[array, "rows longest"]"""
    array = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=np.int64)
    for line, row in zip(array, rows):
        line[: len(row)] = row
    return array
