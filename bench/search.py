"""Times search: a table of 7,182 names to an index, pellucid beside sentence-transformers and FAISS, in one run; and a
graph over a million vectors, pellucid beside plain FAISS with the same settings, in one run.

    PELLUCID_SHARED=FOLDER python bench/search.py [--parts a,b] [--rows 1000000] [--rounds 3] [--quick] [--json FILE]

Each side has its own process. The million takes about half an hour on two cores, 4 GB of memory and 6 GB of disk.
"""

import argparse
import contextlib
import functools
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison import Comparison, ComparisonResult
from corpus import CorpusError, data_folder
from machine import threads
from results import disturbance, ratios
from search_sides import FaissGraph, FaissTable, K, PellucidGraph, PellucidTable, write_synthetic_vectors
from session import Session, exit_with, selected_names
from side import Workspace
from side_process import SideError, SideProcess
from timing import order_of_round

PEER, OWN = "sentence-transformers + FAISS", "pellucid"
PROMISE = 2.0
"""How many times as fast as the peer an index is built from a table."""

OVERHEAD, RECALL = 1.10, 0.95
"""The largest cost of a graph as a multiple of plain FAISS, and the least recall."""

PartReport = tuple[list[str], list[str], dict[str, Any]]
"""Printed lines, verdicts and numbers of a part."""

SETTINGS = {"M": 32, "efConstruction": 40, "efSearch": 16}
QUERY_KINDS = ((1, "rows"), (100, "rows"), (1, "hits"), (100, "hits"))
"""Queries at a time; and whether row numbers are returned, or hits with ids, texts and metadata. FAISS returns row
numbers either way."""


def end_to_end(workspace: Workspace, rounds: int, attempts: int) -> PartReport:
    """Part a; returns printed lines, verdicts and numbers."""
    table = data_folder() / "us_companies" / "us_listed.csv"
    sides = {OWN: functools.partial(PellucidTable, table=table), PEER: functools.partial(FaissTable, table=table)}
    results = Comparison("a table of 7,182 names to an index on disk", PEER, sides).run(workspace, rounds, attempts)
    own, peer = results
    if failed := [f"  {result.name}: left out, {result.failed}" for result in results if result.failed]:
        return failed, ["a: not compared"], {}
    speed = ratios(own, peer)
    same = sum(len(set(one) & set(other)) for one, other in zip(own.details, peer.details)) / (K * len(own.details))
    lines = [f"a, 7,182 names     {'seconds':>9}  setting", *map(_line, results)]
    lines += [f"  {disturbance(results)}", f"  the same {K} neighbours of {len(own.details)} names: {same:.4f}"]
    verdict = f"a: {OWN} is {median(speed):.2f} times {PEER} ({min(speed):.2f} to {max(speed):.2f})"
    numbers = {result.name: {**asdict(result), "details": len(result.details)} for result in results}
    return lines, [f"{verdict}, promise {PROMISE}: {_kept(median(speed) >= PROMISE)}"], numbers


def _line(result: ComparisonResult) -> str:
    return f"  {result.name:30} {median(result.seconds):6.2f}  {result.setting or ''}"


def graphs(workspace: Workspace, rows: int, count: int, rounds: int) -> PartReport:
    """Part b; returns printed lines, verdicts and numbers."""
    scratch = workspace.scratch
    file = scratch / "vectors.npy"
    print(f"b: makes {rows:,} x 384 vectors", flush=True)
    vectors = write_synthetic_vectors(file, rows, 2)
    queries = np.array(write_synthetic_vectors(scratch / "queries.npy", count, 3))
    exact = nearest(vectors, queries)
    del vectors
    processes = {
        OWN: SideProcess("pellucid-graph", functools.partial(PellucidGraph, scratch / "pellucid.index"), workspace),
        "FAISS": SideProcess("faiss-graph", functools.partial(FaissGraph, scratch / "faiss"), workspace),
    }
    built, settings = {}, SETTINGS
    for name, process in processes.items():
        with printing_progress(f"b: {name} builds", scratch / f"{process.name}.log"):
            built[name] = process.call("build", file, settings)
        settings = built[name]["settings"]
    speeds, recall = measure_queries(processes, queries, exact, rounds)
    for process in processes.values():
        process.stop()
    return report(rows, built, speeds, recall)


def measure_queries(processes: dict[str, SideProcess], queries: np.ndarray, exact: np.ndarray, rounds: int) -> Any:
    """Queries per second, {way: {name: one number per round}}, and the recall of each side."""
    speeds: dict[str, dict[str, list[float]]] = {_label(*way): {name: [] for name in processes} for way in QUERY_KINDS}
    recall = {}
    for number in range(rounds + 1):  # the first round warms up
        for name in order_of_round(processes, number):
            for way in QUERY_KINDS:
                seconds, found = processes[name].call("search", queries, *way)
                if number:
                    speeds[_label(*way)][name].append(len(queries) / seconds)
                recall[name] = sum(len(set(a) & set(b)) for a, b in zip(found, exact.tolist())) / exact.size
    return speeds, recall


def _label(at_once: int, kind: str) -> str:
    return f"{kind}, {at_once} at a time"


def nearest(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The exact nearest neighbours, computed block by block: Int64[ndarray, "queries K"]"""
    scores, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), 50_000):
        block = queries @ vectors[start : start + 50_000].T
        best = np.argpartition(-block, K, axis=1)[:, :K]
        scores = np.hstack([scores, np.take_along_axis(block, best, 1)])
        rows = np.hstack([rows, best + start])
        order = np.argsort(-scores, axis=1)[:, :K]
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return rows


def report(rows: int, built: dict[str, Any], speeds: Any, recall: dict[str, float]) -> PartReport:
    """Printed lines, verdicts and numbers of part b."""
    own, peer = built
    head = f"b, {rows:,} x 384"
    lines = [f"{head:20} {'build':>8} {'peak':>9} {'disk':>9} recall@{K}   queries per second: {'; '.join(speeds)}"]
    for name, found in built.items():
        size, peak = found["bytes"] / 1e6, found["peak"] / 1e6
        line = f"  {name:18} {found['seconds']:6.1f} s {peak:6.0f} MB {size:6.0f} MB {recall[name]:9.4f}   "
        lines.append(line + "; ".join(f"{median(each[name]):.0f}" for each in speeds.values()))
    lines.append(f"  both with {', '.join(f'{name} {value}' for name, value in built[own]['settings'].items())}")
    costs = {"build": built[own]["seconds"] / built[peer]["seconds"], "peak": built[own]["peak"] / built[peer]["peak"]}
    for way, each in speeds.items():
        costs[f"a query, {way}"] = median(other / ours for ours, other in zip(each[own], each[peer]))
    verdicts = [f"b: recall@{K} {recall[own]:.4f}, promise {RECALL}: {_kept(recall[own] >= RECALL)}"]
    for what, cost in costs.items():
        verdicts.append(f"b: {what}: {cost:.2f} times plain FAISS, promise {OVERHEAD}: {_kept(cost <= OVERHEAD)}")
    return lines, verdicts, {"built": built, "speed": speeds, "recall": recall, "costs": costs}


def _kept(is_kept: bool) -> str:
    return "kept" if is_kept else "MISSED"


@contextlib.contextmanager
def printing_progress(what: str, log: Path, every: float = 30.0) -> Iterator[None]:
    """Prints the progress of a side at intervals: the last line of its log, if there is one."""
    done, begun = threading.Event(), time.perf_counter()

    def print_progress() -> None:
        while not done.wait(every):
            tail = log.read_text(errors="replace")[-400:] if log.exists() else ""
            last = tail.replace("\r", "\n").strip().split("\n")[-1]
            print(f"{what}, {time.perf_counter() - begun:.0f} s  {last[:90]}", flush=True)

    thread = threading.Thread(target=print_progress, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    print(f"{what}: done after {time.perf_counter() - begun:.0f} s", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="a,b", help="a: a table to an index; b: a graph (default a,b)")
    parser.add_argument("--rows", type=int, help="vectors of part b (default 1,000,000; 50,000 with --quick)")
    parser.add_argument("--queries", type=int, default=1_000, help="queries of part b (default 1,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one warm-up (default 3)")
    parser.add_argument("--quick", action="store_true", help="50,000 rows, two rounds, no waiting for quiet: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def main() -> None:
    options, session = arguments(), Session()
    rounds, attempts = (2, 1) if options.quick else (options.rounds, 3)
    rows = options.rows or (50_000 if options.quick else 1_000_000)
    numbers = {}
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        workspace = Workspace(Path(scratch), Path(scratch), threads())
        parts = {
            "a": lambda: end_to_end(workspace, rounds, attempts),
            "b": lambda: graphs(workspace, rows, options.queries, rounds),
        }
        for part in selected_names(options.parts, parts, "part"):
            try:
                lines, verdicts, numbers[part] = parts[part]()
            except (CorpusError, SideError) as reason:
                exit_with(f"{part}: {reason}")
            session.verdicts += verdicts
            print(*lines, "", sep="\n", flush=True)
    session.end(options.json, parts=numbers)


if __name__ == "__main__":
    main()
