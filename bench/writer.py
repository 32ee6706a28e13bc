"""What a side of the writing benchmark is: prepared once, tuned for each job over its ``axes``, then asked to write."""

from abc import ABC, abstractmethod

import numpy as np
from jobs import Job
from side import Place, Setting

NUMBERS_PER_POSITION = 30 * 2 * 3 * 64
"""SmolLM2-135M remembers for every position: layers x (key, value) x heads of keys x their width."""

BYTES = {"bfloat16": 2}
"""Per number of the cache, by precision; the others remember float32."""


class Writer(ABC):
    """What the benchmark knows of a side."""

    environments: tuple[dict[str, str], ...] = ({},)
    """Variables of its process, of which the fastest is chosen."""

    def __init__(self, precision: str) -> None:
        self.precision = precision

    @abstractmethod
    def library(self) -> None:
        """Imports what the side needs."""

    @abstractmethod
    def prepare(self, place: Place) -> None:
        """Loads the model; ``UnavailableError`` or any other error leaves the side out."""

    def axes(self, job: Job) -> dict[str, list]:
        """What may be tuned for this job, the most likely value first."""
        return {}

    def configure(self, setting: Setting, job: Job) -> None:
        """Takes a value for every axis, and may set aside what the job needs."""

    @abstractmethod
    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """The ``new`` likeliest tokens behind each prompt, one after the other, without the end token."""

    @abstractmethod
    def score(self, windows: list[list[int]]) -> float:
        """How surprised the model is: minus the log-probabilities of all tokens but each window's first, summed."""

    def cache_bytes(self, job: Job) -> int:
        """The size of what it remembers of a job's positions."""
        return len(job.prompts) * job.positions * NUMBERS_PER_POSITION * BYTES.get(self.precision, 4)


def surprise(logits: np.ndarray, ids: list[int]) -> float:
    """Minus the summed log-probabilities of ``ids`` from the second on: float32 [tokens, vocabulary] before softmax."""
    logits = logits[:-1]
    top = logits.max(axis=1)
    total = np.log(np.exp(logits - top[:, None]).sum(axis=1, dtype=np.float64)) + top
    return float((total - logits[np.arange(len(logits)), ids[1:]]).sum())
