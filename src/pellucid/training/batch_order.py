"""The order of examples: a batch follows from the seed and the step alone, so that resuming needs only the step."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pellucid.errors import InputError

BATCHES_PER_POOL = 50
"""Batches whose examples are sorted by length together: little padding, and batches are still random enough."""


@dataclass
class BatchOrder:
    """The examples of every step.

    lengths: positions of each example.  batch_size: examples of a step, drawn anew each epoch; None for as many as fit
    into `max_tokens` positions.
    min_examples: the fewest examples of a step; a smaller batch is merged into another one.

    The batches of an epoch are computed when first needed; those of the last one are cached.
    """

    lengths: tuple[int, ...]
    batch_size: int | None
    max_tokens: int
    seed: int
    min_examples: int = 1

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("there is nothing to learn from: the data holds no examples")
        self.min_examples = min(self.min_examples, len(self.lengths))
        self._starts = [0]
        self._cached_epoch: tuple[int, list[list[int]]] = (-1, [])

    def epoch_batches(self, number: int) -> list[list[int]]:
        """The batches of an epoch as indices of examples; each example is in exactly one."""
        if self._cached_epoch[0] != number:
            self._cached_epoch = number, self._shuffled_batches(number)
        return self._cached_epoch[1]

    def steps(self, epochs: int) -> int:
        """The number of steps in `epochs` epochs."""
        if self.batch_size is not None:
            return epochs * ((len(self.lengths) - self.min_examples) // self.batch_size + 1)
        while len(self._starts) <= epochs:
            self._starts.append(self._starts[-1] + len(self.epoch_batches(len(self._starts) - 1)))
        return self._starts[epochs]

    def epoch_and_batch(self, step: int) -> tuple[int, list[int]]:
        """The epoch of a step, counted from 0, and the indices of the step's examples."""
        if self.batch_size is not None:
            number, batch = divmod(step, self.steps(1))
        else:
            while self._starts[-1] <= step:
                self.steps(len(self._starts))
            number = bisect.bisect_right(self._starts, step) - 1
            batch = step - self._starts[number]
        return number, self.epoch_batches(number)[batch]

    def _shuffled_batches(self, number: int) -> list[list[int]]:
        many = len(self.lengths)
        generator = np.random.default_rng((self.seed, number))
        drawn = generator.permutation(many).tolist()
        size = self.batch_size or max(self.max_tokens * many // max(sum(self.lengths), 1), 1)
        left = many % size if self.batch_size else 0
        left = left if left >= self.min_examples else 0
        batches = [drawn[:left]] if left else []  # drawn: the shortest would else always count most
        for start, end in pairwise([*range(left, many - self.min_examples + 1, BATCHES_PER_POOL * size), many]):
            batches += self._split_batches(sorted(drawn[start:end], key=lambda i: -self.lengths[i]))
        return [batches[i] for i in generator.permutation(len(batches))]

    def _split_batches(self, numbers: Sequence[int]) -> list[list[int]]:
        """Splits examples, longest first, into batches of neighbours."""
        batches: list[list[int]] = [[]]
        for i in numbers:
            if len(batches[-1]) >= self.min_examples and self._is_full(batches[-1]):
                batches.append([])
            batches[-1].append(i)
        if len(batches) > 1 and len(batches[-1]) < self.min_examples:
            few = batches.pop()
            batches[-1] += few
        return batches

    def _is_full(self, batch: list[int]) -> bool:
        if self.batch_size is not None:
            return len(batch) >= self.batch_size
        return self.lengths[batch[0]] * (len(batch) + 1) > self.max_tokens
