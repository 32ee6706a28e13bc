"""The interface of a side of the benchmark: prepared once, tuned over its ``axes``, then called by ``embed``."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from batches import Batch, pack, read_tokenizer

Setting = dict[str, Any]
BUDGETS = [1024, 256, 512, 2048, 4096]


class UnavailableError(Exception):
    """This side cannot run on this machine; the message gives the reason."""


@dataclass(frozen=True)
class Place:
    """Where a side finds the model and may write files, and how many threads it has."""

    model: Path
    scratch: Path
    threads: int

    def streams(self) -> list[int]:
        """Numbers of parallel batches to try: from one on all threads to one per thread."""
        return sorted({1, max(1, self.threads // 2), self.threads})


class Side(ABC):
    """One side of the benchmark."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.axes: dict[str, list[Any]] = {}  # values that may be tuned, the most promising first

    @abstractmethod
    def prepare(self, place: Place) -> None:
        """Loads the model; after ``UnavailableError`` or any other error the side is left out."""

    def configure(self, setting: Setting) -> None:
        """Sets a value for every axis."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors of length one, float32 [texts, 384], in the order of the texts."""

    def padding(self, texts: Sequence[str]) -> float | None:
        """The share of computed positions that is padding, or None if unknown."""
        return None


class Engine(Side):
    """An engine of matrices, without a tokenizer: it gets sorted batches within a budget of positions."""

    def prepare(self, place: Place) -> None:
        self.place = place
        self.tokenizer = read_tokenizer(place.model)
        self.axes = {"streams": place.streams(), "budget": BUDGETS}
        self.opened: Setting = {}
        self.convert()

    @abstractmethod
    def convert(self) -> None:
        """Converts the checkpoint to the engine's format."""

    @abstractmethod
    def open(self, setting: Setting) -> None:
        """Loads the model with ``setting``; called again only if more than the budget changes."""

    def configure(self, setting: Setting) -> None:
        self.budget = setting["budget"]
        model = {axis: value for axis, value in setting.items() if axis != "budget"}
        if model != self.opened:
            self.open(model)
            self.opened = model


class CrewEngine(Engine):
    """An engine that computes one batch per call; several threads call it at once."""

    @abstractmethod
    def run(self, batch: Batch) -> np.ndarray:
        """The vectors of one batch."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), 384), dtype=np.float32)

        def work(batch: Batch) -> None:
            vectors[batch.rows] = self.run(batch)

        with ThreadPoolExecutor(self.opened["streams"]) as crew:
            list(crew.map(work, pack(self.tokenizer, texts, self.budget)))
        return vectors
