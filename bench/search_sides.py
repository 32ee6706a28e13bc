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
from comparison import WorkloadSide
from machine import model_folder
from memory import MemoryMeter
from side import Workspace

K = 10
"""The number of neighbours to find."""


class TableSide(WorkloadSide):
    """A side of the first part: reads names from a table, embeds them and writes an index of them, anew on each run."""

    def __init__(self, workspace: Workspace, table: Path) -> None:
        self.table = table
        self.folder = workspace.scratch / f"{type(self).__name__}-{os.getpid()}"
        with table.open(encoding="utf-8", newline="") as file:
            self.queries = [row["name"] for row in csv.DictReader(file)][::71]
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Loads the model."""

    def run(self) -> Any:
        shutil.rmtree(self.folder, ignore_errors=True)
        return self.build()

    @abstractmethod
    def build(self) -> Any:
        """Builds the index and writes it into the folder."""

    @abstractmethod
    def details(self) -> list[list[str]]:
        """The symbols of the nearest neighbours of some names."""


class PellucidTable(TableSide):
    """pellucid, as a user calls it."""

    def open(self) -> None:
        import pellucid

        self.model = pellucid.load(model_folder())

    def build(self) -> Any:
        import pellucid

        options: dict[str, Any] = {"column": "name", "id_column": "symbol", "progress": False}
        return pellucid.Index.build(self.model, self.table, self.folder, **options)

    def details(self) -> list[list[str]]:
        found = self.run().search(self.queries, k=K, mode="dense")
        return [[hit["id"] for hit in hits] for hits in found]


class FaissTable(TableSide):
    """sentence-transformers, FAISS and the standard library, combined as in their guides, at the best batch size."""

    def axes(self) -> dict[str, list[Any]]:
        return {"batch_size": [32, 64, 128]}

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

    def details(self) -> list[list[str]]:
        index, rows = self.run()
        found = index.search(self.embed(self.queries), K)[1]
        return [[rows[i]["symbol"] for i in neighbours] for neighbours in found]


def write_synthetic_vectors(file: Path, rows: int, seed: int) -> np.ndarray:
    """Writes random vectors to ``file``, distributed like those of company names under MiniLM.

    Each is the sum of a common direction, a topic (of unequal sizes) and an individual part; dimension n has the scale
    n^-0.4. For 1,800 rows, names and then generated ones with 200 topics: the mean cosine is 0.39 and 0.39, that of the
    nearest 0.72 and 0.73, of the tenth 0.65 and 0.61; ten dimensions hold 0.30 and 0.32 of the variance, fifty 0.61 and
    0.62.
    """
    fixed, generator, width = np.random.default_rng(1), np.random.default_rng(seed), 384
    scale = (np.arange(width) + 1.0) ** -0.4
    scale /= np.sqrt((scale**2).sum())
    common = fixed.standard_normal(width) * scale
    topics = (0.8 * common / np.linalg.norm(common) + 0.7 * fixed.standard_normal((2_000, width)) * scale).astype("f4")
    vectors = np.lib.format.open_memmap(file, "w+", np.float32, (rows, width))
    for start in range(0, rows, 20_000):
        chunk = vectors[start : start + 20_000]
        individual = generator.standard_normal(chunk.shape, np.float32) * (0.75 * scale).astype("f4")
        individual += topics[(len(topics) * generator.random(len(chunk)) ** 2).astype(int)]
        chunk[:] = individual / np.linalg.norm(individual, axis=1, keepdims=True)
    vectors.flush()
    return vectors


class GraphSide(ABC):
    """A side of the second part: a graph over the vectors of a file. Its methods are the commands of its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def build(self, file: Path, settings: dict[str, int]) -> dict[str, Any]:
        """Seconds to build and write the graph, peak bytes with the vectors, bytes on disk, and settings."""
        self.prepare()
        meter = MemoryMeter()
        vectors = np.load(file)
        begun = time.perf_counter()
        used_settings = self.build_graph(vectors, settings)
        seconds = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return {"seconds": seconds, "peak": meter.read()["peak"], "bytes": size, "settings": used_settings}

    @abstractmethod
    def prepare(self) -> None:
        """Imports the library."""

    @abstractmethod
    def build_graph(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]:
        """Builds the graph, writes it into the folder and returns the settings that it has."""

    @abstractmethod
    def hits(self, queries: np.ndarray) -> list[list[int]]:
        """The row numbers of the nearest neighbours of each query."""

    def rows(self, queries: np.ndarray) -> list[list[int]]:
        """The same without looking up ids, texts and metadata of the rows."""
        return self.hits(queries)

    def search(self, queries: np.ndarray, at_once: int, kind: str) -> tuple[float, list[list[int]]]:
        """Seconds for all queries, ``at_once`` at a time, and the neighbours found. kind: "hits" or "rows"."""
        found: list[list[int]] = []
        search = {"hits": self.hits, "rows": self.rows}[kind]
        begun = time.perf_counter()
        for start in range(0, len(queries), at_once):
            found += search(queries[start : start + at_once])
        return time.perf_counter() - begun, found


class PellucidGraph(GraphSide):
    """`pellucid.Index`: returns hits with ids, texts and metadata, in the order of exact scores."""

    def prepare(self) -> None:
        import faiss  # noqa: F401 - not part of the work

        import pellucid.search  # noqa: F401

    def build_graph(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]:
        from pellucid.search import Index

        self.index = Index.build(None, vectors, self.folder, kind="hnsw", progress=True, **settings)
        used = self.index.manifest.settings
        return {"M": used.M, "efConstruction": used.efConstruction, "efSearch": used.efSearch}

    def hits(self, queries: np.ndarray) -> list[list[int]]:
        return [[int(hit["id"]) - 1 for hit in hits] for hits in self.index.search(queries, k=K)]

    def rows(self, queries: np.ndarray) -> list[list[int]]:
        from pellucid.search.vectors import prepare_vectors

        effort = self.index.manifest.settings.efSearch
        found = self.index.segments[0].vectors.nearest(prepare_vectors(queries, "cosine"), K, None, effort)
        return [rows.tolist() for rows, _ in found]


class FaissGraph(GraphSide):
    """`faiss.IndexHNSWFlat`: returns row numbers."""

    def prepare(self) -> None:
        import faiss  # noqa: F401 - not part of the work

    def build_graph(self, vectors: np.ndarray, settings: dict[str, int]) -> dict[str, int]:
        import faiss

        self.graph = faiss.IndexHNSWFlat(vectors.shape[1], settings["M"], faiss.METRIC_INNER_PRODUCT)
        self.graph.hnsw.efConstruction, self.graph.hnsw.efSearch = settings["efConstruction"], settings["efSearch"]
        self.graph.add(vectors)
        self.folder.mkdir(parents=True)
        faiss.write_index(self.graph, str(self.folder / "vectors.faiss"))
        return settings

    def hits(self, queries: np.ndarray) -> list[list[int]]:
        return self.graph.search(queries, K)[1].tolist()
