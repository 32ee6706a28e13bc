"""The interface of a side of the benchmark of generation: prepared once, tuned for each job over its ``axes``."""

from abc import ABC, abstractmethod

import numpy as np
from generate_jobs import Job
from side import Setting, Workspace

ELEMENTS_PER_POSITION = 30 * 2 * 3 * 64
"""Cache elements of SmolLM2-135M per position: layers x (key, value) x key-value heads x their width."""

BYTES_PER_ELEMENT = {"bfloat16": 2}
"""Bytes per cache element by precision; the other precisions cache float32."""


class GenerationSide(ABC):
    """One side of the benchmark of generation. It maps ids to ids."""

    environments: tuple[dict[str, str], ...] = ({},)
    """Environments to try for its process; the fastest is used."""

    def __init__(self, precision: str) -> None:
        self.precision = precision

    @abstractmethod
    def import_library(self) -> None:
        """Imports the libraries that the side needs."""

    @abstractmethod
    def prepare(self, workspace: Workspace) -> None:
        """Loads the model; after ``UnavailableError`` or any other error the side is left out."""

    def axes(self, job: Job) -> dict[str, list]:
        """The values that may be tuned for this job, the most promising first."""
        return {}

    def configure(self, setting: Setting, job: Job) -> None:
        """Sets a value for every axis, and may allocate what the job needs."""

    @abstractmethod
    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        """``new_tokens`` tokens after each prompt, each the most likely one that is no end token."""

    @abstractmethod
    def negative_log_likelihood(self, windows: list[list[int]]) -> float:
        """The summed negative log-probability of all tokens but the first of each window."""

    def cache_bytes(self, job: Job) -> int:
        """The size in bytes of the cache for a job."""
        return len(job.prompts) * job.positions * ELEMENTS_PER_POSITION * BYTES_PER_ELEMENT.get(self.precision, 4)


def negative_log_likelihood(logits: np.ndarray, ids: list[int]) -> float:
    """Summed negative log-probability of ``ids`` from the second on. logits: float32 [tokens, vocabulary]"""
    logits = logits[:-1]
    largest = logits.max(axis=1)
    normalizer = np.log(np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64)) + largest
    return float((normalizer - logits[np.arange(len(logits)), ids[1:]]).sum())
