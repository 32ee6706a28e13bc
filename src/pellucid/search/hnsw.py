"""A graph of neighbours (Malkov and Yashunin, 2016, arXiv:1603.09320). The only module that uses FAISS, which opens no
file whose digest was not checked before."""

import ctypes
import functools
import mmap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pellucid.errors import CorruptFileError, InputError, ResourceError
from pellucid.search.graph import check_graph
from pellucid.search.manifest import Settings
from pellucid.text.truncation import replace_surrogates

ROWS_PER_STEP = 10_000
"""Rows added to a graph at a time, between reports of progress."""

CACHE_LINE, LARGE_PAGE = 64, 2**21
"""Bytes of a cache line, and of a large page."""

MAX_BATCH_CANDIDATES = 2**22
"""Candidates of several queries that are held at a time (48 MiB)."""


_FAISS_FAILS = "a search in a graph needs FAISS, which is installed, and cannot be imported"


def faiss() -> Any:
    """The library. Raises InputError with how to install it, ResourceError where it is installed but not importable."""
    try:
        import faiss as library
    except Exception as broken:  # a broken installation may raise anything
        if isinstance(broken, ModuleNotFoundError) and broken.name == "faiss":
            raise InputError("a search in a graph needs FAISS: pip install 'pellucid[search]'") from broken
        # too little memory, or a missing or outdated dependency
        raise ResourceError(f"{_FAISS_FAILS}: {broken}") from broken
    if not hasattr(library, "IndexHNSWFlat"):  # another package of that name, or remains of one
        raise ResourceError(f"{_FAISS_FAILS}: {getattr(library, '__path__', ['it'])[0]} holds no graphs; reinstall it")
    return library


def build_graph(vectors: Any, settings: Settings, on_progress: Callable[[int], object] | None = None) -> Any:
    """A graph over vectors, Float32[ndarray, "rows dimension"] or an object that returns such when sliced.

    on_progress: called with the number of rows added since the last call.
    """
    library, (rows, dimension) = faiss(), vectors.shape
    measure = library.METRIC_L2 if settings.metric == "euclidean" else library.METRIC_INNER_PRODUCT
    graph = library.IndexHNSWFlat(dimension, settings.M, measure)
    graph.hnsw.efConstruction = settings.efConstruction
    numbers = library.downcast_index(graph.storage).codes
    numbers.resize(4 * rows * dimension)  # reserves memory for all rows: growing would need twice as much
    _on_large_pages(int(numbers.data()), 4 * rows * dimension)
    numbers.resize(0)
    for start in range(0, rows, ROWS_PER_STEP):
        graph.add(vectors[start : start + ROWS_PER_STEP])
        if on_progress is not None:
            on_progress(min(ROWS_PER_STEP, rows - start))
    return graph


def _on_large_pages(first: int, size: int) -> None:
    """Reallocates memory on large pages, where the system has them: see `_read`. All its bytes are 0, and stay so."""
    if not hasattr(mmap, "MADV_HUGEPAGE") or size < LARGE_PAGE:  # only Linux has it
        return
    start, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, (first + size) // mmap.PAGESIZE * mmap.PAGESIZE
    address, room = ctypes.c_void_p(start), ctypes.c_size_t(end - start)
    advise = ctypes.CDLL(None).madvise
    if advise(address, room, mmap.MADV_HUGEPAGE) == 0:
        advise(address, room, mmap.MADV_DONTNEED)


def graph_vectors(graph: Any) -> np.ndarray:
    """The vectors of a graph in FAISS's memory, not copied, which keep the graph alive; they must not be written to:
    Float32[ndarray, "rows dimension"]"""
    at = (int(faiss().downcast_index(graph.storage).codes.data()), True)
    interface = {"shape": (graph.ntotal, graph.d), "typestr": "<f4", "data": at, "version": 3}
    return np.asarray(SimpleNamespace(graph=graph, __array_interface__=interface))


def search_graph(graph: Any, queries: np.ndarray, k: int, alive: np.ndarray | None, ef: int) -> np.ndarray:
    """The rows that a graph search finds near to each query; -1 where it found fewer: Int64[ndarray, "queries k"]

    Where not all rows are live, the search covers all of them, and live ones are selected from the nearer half of its
    `ef` candidates; beyond that half it misses many. FAISS's own selector ends its search by all candidates, too, and
    fills up with whatever lay on the way.
    """
    if alive is None:
        return graph.search(queries, k, params=_search_parameters(ef))[1]
    found = np.full((len(queries), k), -1)
    half, step = max(ef // 2, 1), max(MAX_BATCH_CANDIDATES // ef, 1)
    for start in range(0, len(queries), step):
        candidates = graph.search(queries[start : start + step], half, params=_search_parameters(ef))[1]
        fits = alive[candidates] & (candidates >= 0)
        order = np.argsort(~fits, axis=1, kind="stable")[:, :k]
        some = np.where(np.take_along_axis(fits, order, 1), np.take_along_axis(candidates, order, 1), -1)
        found[start : start + step, : some.shape[1]] = some
    return found


@functools.lru_cache(64)
def _search_parameters(ef: int) -> Any:
    return faiss().SearchParametersHNSW(efSearch=ef)


def write_graph(graph: Any, path: Path) -> None:
    """Raises ResourceError on a full disk, and InputError for a path that is not valid Unicode, which FAISS cannot
    take."""
    if replace_surrogates(str(path)) != str(path):
        raise InputError(f"{str(path)!r} is not UTF-8 text, as FAISS needs its paths: give another name")
    try:
        faiss().write_index(graph, str(path))
    except RuntimeError as error:
        raise ResourceError(f"cannot write {path}: no space is left, or FAISS says {str(error)[:120]}") from error


def read_graph(path: Path, rows: int, dimension: int, metric: str) -> tuple[Any, np.ndarray]:
    """The graph of a file, after it is checked, and its vectors, Float32[ndarray, "rows dimension"]; both share the
    memory into which the file was read. Raises CorruptFileError for any other file."""
    library = faiss()
    size = 4 * rows * dimension
    memory = _read(path, size)
    check_graph(path, memory, rows, dimension, metric)
    try:
        graph = library.read_index(library.ZeroCopyIOReader(library.swig_ptr(memory), len(memory)))
    except RuntimeError as error:
        raise CorruptFileError(f"{path} is not a FAISS graph: {str(error)[:120]}") from error
    graph.referenced_objects = [memory]  # which FAISS does not copy
    return graph, memory[-size:].view("<f4").reshape(rows, dimension)


def _read(path: Path, last: int) -> np.ndarray:
    """Reads a file that ends with `last` bytes of vectors, into memory where these start at a cache line:
    UInt8[ndarray, "bytes"]. NumPy's memory is on large pages where the system has them, and FAISS's own is not: a graph
    search, which accesses cache lines all over it, takes three quarters of the time."""
    size = path.stat().st_size
    room = np.empty(size + CACHE_LINE, np.uint8)
    start = -(room.ctypes.data + size - last) % CACHE_LINE
    with path.open("rb") as file:
        size = file.readinto(room[start : start + size].data)  # less if it is truncated meanwhile
    return room[start : start + size]
