"""The interface of a side that embeds: prepared once, tuned over its ``axes``, then called by ``embed``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from batches import Batch, pack, read_tokenizer
from side import Setting, Workspace

WIDTH = 384
"""The size of a vector of all-MiniLM-L6-v2."""

POSITIONS = [1024, 256, 512, 2048, 4096]
"""Positions per batch to try."""


class EmbeddingSide(ABC):
    """One side of the benchmark of embedding."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.axes: dict[str, list[Any]] = {}  # values that may be tuned, the most promising first

    @abstractmethod
    def prepare(self, workspace: Workspace) -> None:
        """Loads the model; after ``UnavailableError`` or any other error the side is left out."""

    def configure(self, setting: Setting) -> None:
        """Sets a value for every axis."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length one, float32 [texts, 384], in the order of the texts."""

    def padding(self, texts: Sequence[str]) -> float | None:
        """The share of computed positions that is padding, or None if unknown."""
        return None


class BatchSide(EmbeddingSide):
    """A library without text processing: it gets padded batches, sorted by length, of a limited number of positions."""

    def prepare(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.tokenizer = read_tokenizer(workspace.model)
        self.axes = {"streams": workspace.parallel_batches(), "budget": POSITIONS}
        self.opened: Setting = {}
        self.convert()

    @abstractmethod
    def convert(self) -> None:
        """Converts the checkpoint to the library's format."""

    @abstractmethod
    def open(self, setting: Setting) -> None:
        """Loads the model with ``setting``; called again only if more than the budget changes."""

    def configure(self, setting: Setting) -> None:
        self.budget = setting["budget"]
        model_setting = {axis: value for axis, value in setting.items() if axis != "budget"}
        if model_setting != self.opened:
            self.open(model_setting)
            self.opened = model_setting


class ThreadedBatchSide(BatchSide):
    """A library that computes one batch per call; several threads call it at once."""

    @abstractmethod
    def run(self, batch: Batch) -> np.ndarray:
        """The vectors of one batch."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), WIDTH), dtype=np.float32)

        def embed_batch(batch: Batch) -> None:
            vectors[batch.rows] = self.run(batch)

        with ThreadPoolExecutor(self.opened["streams"]) as threads:
            list(threads.map(embed_batch, pack(self.tokenizer, texts, self.budget)))
        return vectors
