"""What a side of the benchmark is: prepared once, tuned over its ``axes``, then asked to ``embed``."""

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
    """This side cannot run on this machine; the message says why."""


@dataclass(frozen=True)
class Place:
    """Where a side finds the model, where it may write, and how many threads it has."""

    model: Path
    scratch: Path
    threads: int

    def streams(self) -> list[int]:
        """How many batches at once: one on all threads, up to one per thread."""
        return sorted({1, max(1, self.threads // 2), self.threads})


class Side(ABC):
    """What the benchmark knows of a side."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.axes: dict[str, list[Any]] = {}  # what may be tuned, the most likely value first

    @abstractmethod
    def prepare(self, place: Place) -> None:
        """Loads the model; ``UnavailableError`` or any other error leaves the side out."""

    def configure(self, setting: Setting) -> None:
        """Takes a value for every axis."""

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Texts to vectors of length one, float32 [texts, 384], in the order of the texts."""

    def padding(self, texts: Sequence[str]) -> float | None:
        """The share of computed positions that is padding, where the side can say."""
        return None


class Engine(Side):
    """An engine of matrices without a text side: sorted batches within a budget of positions."""

    def prepare(self, place: Place) -> None:
        self.place = place
        self.tokenizer = read_tokenizer(place.model)
        self.axes = {"streams": place.streams(), "budget": BUDGETS}
        self.opened: Setting = {}
        self.convert()

    @abstractmethod
    def convert(self) -> None:
        """Makes the engine's format of the checkpoint."""

    @abstractmethod
    def open(self, setting: Setting) -> None:
        """Opens the model with ``setting``; called again only when more than the budget changes."""

    def configure(self, setting: Setting) -> None:
        self.budget = setting["budget"]
        model = {axis: value for axis, value in setting.items() if axis != "budget"}
        if model != self.opened:
            self.open(model)
            self.opened = model


class CrewEngine(Engine):
    """An engine that answers a batch at a call: several threads call it at once."""

    @abstractmethod
    def run(self, batch: Batch) -> np.ndarray:
        """One batch to its vectors."""

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), 384), dtype=np.float32)

        def work(batch: Batch) -> None:
            vectors[batch.rows] = self.run(batch)

        with ThreadPoolExecutor(self.opened["streams"]) as crew:
            list(crew.map(work, pack(self.tokenizer, texts, self.budget)))
        return vectors
