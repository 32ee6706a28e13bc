"""Which examples make up a step. The order is a function of the seed and the step alone, so that a training goes on
where it stopped without remembering more than its step."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pellucid.errors import InputError

POOL = 50
"""So many batches are drawn at a time and sorted by length among themselves: little padding, and chance enough."""


@dataclass
class Order:
    """The examples of every step.

    lengths: positions of each example.  batch_size: examples of a step; None for as many as `tokens` positions hold.
    They are drawn anew each epoch.

    Plans of epochs are made when they are first asked for; the last one is kept.
    """

    lengths: tuple[int, ...]
    batch_size: int | None
    tokens: int
    seed: int
    _starts: list[int] = field(default_factory=lambda: [0], init=False, repr=False, compare=False)
    _kept: tuple[int, list[list[int]]] = field(default=(-1, []), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("there is nothing to learn from: the data holds no examples")

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of an epoch, as numbers of examples; each example stands in one of them."""
        if self._kept[0] != number:
            self._kept = number, self._planned(number)
        return self._kept[1]

    def steps(self, epochs: int) -> int:
        """Steps of so many epochs."""
        if self.batch_size is not None:
            return epochs * -(-len(self.lengths) // self.batch_size)
        while len(self._starts) <= epochs:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        return self._starts[epochs]

    def at(self, step: int) -> tuple[int, list[int]]:
        """The epoch of a step, counted from 0, and its examples."""
        if self.batch_size is not None:
            number, within = divmod(step, self.steps(1))
        else:
            while self._starts[-1] <= step:
                self.steps(len(self._starts))
            number = bisect.bisect_right(self._starts, step) - 1
            within = step - self._starts[number]
        return number, self.epoch(number)[within]

    def _planned(self, number: int) -> list[list[int]]:
        many = len(self.lengths)
        chance = np.random.default_rng((self.seed, number))
        drawn = chance.permutation(many).tolist()
        size = self.batch_size or max(self.tokens * many // max(sum(self.lengths), 1), 1)
        left = many % size if self.batch_size else 0
        batches = [drawn[:left]] if left else []  # any of them: else the shortest, which would always count the most
        for start in range(left, many, POOL * size):
            batches += self._cut(sorted(drawn[start : start + POOL * size], key=lambda i: -self.lengths[i]))
        return [batches[i] for i in chance.permutation(len(batches))]

    def _cut(self, numbers: Sequence[int]) -> list[list[int]]:
        """Neighbours as batches."""
        if self.batch_size is not None:
            return [list(numbers[i : i + self.batch_size]) for i in range(0, len(numbers), self.batch_size)]
        batches: list[list[int]] = []
        longest = 0
        for i in numbers:
            longest = max(longest, self.lengths[i])
            if not batches or longest * (len(batches[-1]) + 1) > self.tokens:
                batches.append([])
                longest = self.lengths[i]
            batches[-1].append(i)
        return batches
