"""The sides of the benchmark of search: from a table to an index, and from many vectors to their neighbours."""

import csv
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from machine import model_folder
from memory import Meter
from side import Place

K = 10


class Tabler(ABC):
    """Reads names from a table, embeds them, builds an index and writes it, all anew on each run."""

    axes: dict[str, list[Any]] = {}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place, table: Path) -> None:
        self.table, self.setting = table, {}
        self.folder = place.scratch / f"{type(self).__name__}-{os.getpid()}"
        with table.open(encoding="utf-8", newline="") as file:
            self.asked = [row["name"] for row in csv.DictReader(file)][::71]
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Loads the model."""

    def configure(self, setting: dict[str, Any]) -> None:
        self.setting = setting

    def work(self) -> Any:
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.build()

    @abstractmethod
    def build(self) -> Any: ...

    @abstractmethod
    def told(self) -> list[list[str]]:
        """The symbols of the nearest neighbours of some names."""


class Own(Tabler):
    """pellucid, as a user calls it."""

    def open(self) -> None:
        import pellucid

        self.model = pellucid.load(model_folder())

    def build(self) -> Any:
        import pellucid

        said = {"column": "name", "id_column": "symbol", "progress": False}
        return pellucid.Index.build(self.model, self.table, self.folder, **said)

    def told(self) -> list[list[str]]:
        found = self.work().search(self.asked, k=K, mode="dense")
        return [[hit["id"] for hit in hits] for hits in found]


class Joined(Tabler):
    """sentence-transformers, FAISS and the standard library, combined as in their guides, at the best batch size."""

    axes = {"batch_size": [32, 64, 128]}  # noqa: RUF012 - nobody writes into it

    def open(self) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.model = SentenceTransformer(str(model_folder()), device="cpu")

    def embed(self, texts: list[str]) -> np.ndarray:
        return self.model.encode(texts, normalize_embeddings=True, show_progress_bar=False, **self.setting)

    def build(self) -> Any:
        import faiss

        with self.table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        index = faiss.IndexFlatIP(384)
        index.add(self.embed([row["name"] for row in rows]))
        self.folder.mkdir(parents=True)
        faiss.write_index(index, str(self.folder / "vectors.faiss"))
        (self.folder / "rows.json").write_text(json.dumps(rows))
        return index, rows

    def told(self) -> list[list[str]]:
        index, rows = self.work()
        found = index.search(self.embed(self.asked), K)[1]
        return [[rows[i]["symbol"] for i in one] for one in found]


def written(file: Path, rows: int, seed: int) -> np.ndarray:
    """Random vectors in `file`, distributed like those of company names under MiniLM.

    Each sums a common direction, a topic (of unequal sizes) and a part of its own; dimension n has the scale n^-0.4.
    For 1,800 rows, names and then generated ones with 200 topics: the mean cosine is 0.39 and 0.39, that of the nearest
    0.72 and 0.73, of the tenth 0.65 and 0.61; ten dimensions hold 0.30 and 0.32 of the variance, fifty 0.61 and 0.62.
    """
    shape, chance, width = np.random.default_rng(1), np.random.default_rng(seed), 384
    scale = (np.arange(width) + 1.0) ** -0.4
    scale /= np.sqrt((scale**2).sum())
    common = shape.standard_normal(width) * scale
    topics = (0.8 * common / np.linalg.norm(common) + 0.7 * shape.standard_normal((2_000, width)) * scale).astype("f4")
    made = np.lib.format.open_memmap(file, "w+", np.float32, (rows, width))
    for start in range(0, rows, 20_000):
        some = made[start : start + 20_000]
        own = chance.standard_normal(some.shape, np.float32) * (0.75 * scale).astype("f4")
        own += topics[(len(topics) * chance.random(len(some)) ** 2).astype(int)]
        some[:] = own / np.linalg.norm(own, axis=1, keepdims=True)
    made.flush()
    return made


class Grapher(ABC):
    """A graph over the vectors of a file. Its methods run in the process of a side, which measures the time itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, file: Path, settings: dict[str, int]) -> dict[str, Any]:
        """Seconds to build and write the graph, peak bytes with the vectors, bytes on disk, and settings."""
        self.prepare()
        meter = Meter()
        vectors = np.load(file)
        begun = time.perf_counter()
        chosen = self.make(vectors, settings)
        seconds = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return {"seconds": seconds, "peak": meter.read()["peak"], "bytes": size, "settings": chosen}

    @abstractmethod
    def prepare(self) -> None:
        """Imports the library."""

    @abstractmethod
    def make(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]: ...

    @abstractmethod
    def find(self, queries: np.ndarray) -> list[list[int]]:
        """The row numbers of the nearest neighbours of each query."""

    def rows(self, queries: np.ndarray) -> list[list[int]]:
        """The same without looking up ids, texts and metadata of the rows."""
        return self.find(queries)

    def ask(self, queries: np.ndarray, together: int, what: str) -> tuple[float, list[list[int]]]:
        """Seconds for all queries, `together` at a time, and the neighbours found. what: "find" or "rows"."""
        found, look = [], getattr(self, what)
        begun = time.perf_counter()
        for start in range(0, len(queries), together):
            found += look(queries[start : start + together])
        return time.perf_counter() - begun, found


class OwnGraph(Grapher):
    """`pellucid.Index`: returns hits with ids, texts and metadata, in the order of exact scores."""

    def prepare(self) -> None:
        import faiss  # noqa: F401 - not part of the work

        import pellucid.search  # noqa: F401

    def make(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]:
        from pellucid.search import Index

        self.index = Index.build(None, vectors, self.folder, kind="hnsw", progress=True, **settings)
        chosen = self.index.manifest.settings
        return {"M": chosen.M, "efConstruction": chosen.efConstruction, "efSearch": chosen.efSearch}

    def find(self, queries: np.ndarray) -> list[list[int]]:
        return [[int(hit["id"]) - 1 for hit in hits] for hits in self.index.search(queries, k=K)]

    def rows(self, queries: np.ndarray) -> list[list[int]]:
        from pellucid.search.vectors import prepare_vectors

        effort = self.index.manifest.settings.efSearch
        found = self.index.segments[0].vectors.nearest(prepare_vectors(queries, "cosine"), K, None, effort)
        return [rows.tolist() for rows, _ in found]


class PlainGraph(Grapher):
    """`faiss.IndexHNSWFlat`: returns row numbers."""

    def prepare(self) -> None:
        import faiss  # noqa: F401 - not part of the work

    def make(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]:
        import faiss

        self.graph = faiss.IndexHNSWFlat(vectors.shape[1], settings["M"], faiss.METRIC_INNER_PRODUCT)
        self.graph.hnsw.efConstruction, self.graph.hnsw.efSearch = settings["efConstruction"], settings["efSearch"]
        self.graph.add(vectors)
        self.folder.mkdir(parents=True)
        faiss.write_index(self.graph, str(self.folder / "vectors.faiss"))
        return settings

    def find(self, queries: np.ndarray) -> list[list[int]]:
        return self.graph.search(queries, K)[1].tolist()
