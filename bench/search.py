"""Times search: a table of 7,182 names to an index, pellucid beside sentence-transformers and FAISS, in one run; and a
graph over a million vectors, pellucid beside plain FAISS with the same settings, in one run.

    PELLUCID_SHARED=FOLDER python bench/search.py [--parts a,b] [--rows 1000000] [--rounds 3] [--quick] [--json FILE]

Each side has its own process. The million takes about half an hour on two cores, 4 GB of memory and 6 GB of disk.
"""

import argparse
import contextlib
import functools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison import Part, Result, disturbance, ratios
from corpus import CorpusError, data_folder
from machine import threads
from search_sides import Joined, K, Own, OwnGraph, PlainGraph, written
from session import Session
from side import Place
from side_process import SideError, Worker

PEER, OWN = "sentence-transformers + FAISS", "pellucid"
PROMISE = 2.0
"""How many times as fast as the peer an index is built from a table."""

OVERHEAD, RECALL = 1.10, 0.95
"""The largest cost of a graph as a multiple of plain FAISS, and the least recall."""

START = {"M": 32, "efConstruction": 40, "efSearch": 16}
WAYS = ((1, "rows"), (100, "rows"), (1, "find"), (100, "find"))
"""Queries at a time; and whether row numbers are returned, or hits with ids, texts and metadata. FAISS has only row
numbers."""


def end_to_end(place: Place, rounds: int, most: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """Part a; returns printed lines, verdicts and numbers."""
    table = data_folder() / "us_companies" / "us_listed.csv"
    sides = {OWN: functools.partial(Own, table=table), PEER: functools.partial(Joined, table=table)}
    results = Part("a table of 7,182 names to an index on the disk", PEER, sides).run(place, rounds, most)
    own, peer = results
    if failed := [f"  {one.name}: left out, {one.failed}" for one in results if one.failed]:
        return failed, ["a: not compared"], {}
    shares = ratios(own, peer)
    same = sum(len(set(one) & set(other)) for one, other in zip(own.told, peer.told)) / (K * len(own.told))
    lines = [f"a, 7,182 names     {'seconds':>9}  setting", *map(_line, results)]
    lines += [disturbance(results), f"  the same {K} neighbours of {len(own.told)} names: {same:.4f}"]
    said = f"a: {OWN} is {median(shares):.2f} times {PEER} ({min(shares):.2f} to {max(shares):.2f})"
    kept = "kept" if median(shares) >= PROMISE else "MISSED"
    numbers = {one.name: {**asdict(one), "told": len(one.told)} for one in results}
    return lines, [f"{said}, promise {PROMISE}: {kept}"], numbers


def _line(result: Result) -> str:
    return f"  {result.name:30} {median(result.seconds):6.2f}  {result.setting or ''}"


def graphs(place: Place, rows: int, asked: int, rounds: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """Part b; returns printed lines, verdicts and numbers."""
    file = place.scratch / "vectors.npy"
    print(f"b: makes {rows:,} x 384 vectors", flush=True)
    vectors, queries = written(file, rows, 2), np.array(written(place.scratch / "queries.npy", asked, 3))
    true = nearest(vectors, queries)
    del vectors
    workers = {
        OWN: Worker("own-graph", functools.partial(OwnGraph, place.scratch / "own.index"), place),
        "FAISS": Worker("plain-graph", functools.partial(PlainGraph, place.scratch / "plain"), place),
    }
    built, settings = {}, START
    for name, worker in workers.items():
        with telling(f"b: {name} builds", place.scratch / f"{worker.name}.log"):
            built[name] = worker.ask("build", file, settings)
        settings = built[name]["settings"]
    speed, recall = asked_in_turn(workers, queries, true, rounds)
    for worker in workers.values():
        worker.stop()
    return report(rows, built, speed, recall)


def asked_in_turn(workers: dict[str, Worker], queries: np.ndarray, true: np.ndarray, rounds: int) -> Any:
    """Queries per second, {way: {name: one number per round}}, and the recall of each side."""
    speed: dict[str, dict[str, list[float]]] = {_said(*way): {name: [] for name in workers} for way in WAYS}
    recall = {}
    for turn in range(rounds + 1):  # the first round warms up
        for name in list(workers) if turn % 2 == 0 else reversed(list(workers)):
            for way in WAYS:
                seconds, found = workers[name].ask("ask", queries, *way)
                if turn:
                    speed[_said(*way)][name].append(len(queries) / seconds)
                recall[name] = sum(len(set(a) & set(b)) for a, b in zip(found, true.tolist())) / true.size
    return speed, recall


def _said(together: int, what: str) -> str:
    return f"{'rows' if what == 'rows' else 'hits'}, {together} at a time"


def nearest(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The exact nearest neighbours, computed block by block: Int64[ndarray, "queries K"]"""
    score, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), 50_000):
        more = queries @ vectors[start : start + 50_000].T
        best = np.argpartition(-more, K, axis=1)[:, :K]
        score = np.hstack([score, np.take_along_axis(more, best, 1)])
        rows = np.hstack([rows, best + start])
        order = np.argsort(-score, axis=1)[:, :K]
        score, rows = np.take_along_axis(score, order, 1), np.take_along_axis(rows, order, 1)
    return rows


def report(rows: int, built: dict[str, Any], speed: Any, recall: dict[str, float]) -> Any:
    """Printed lines, verdicts and numbers of part b."""
    own, peer = built
    head = f"b, {rows:,} x 384"
    lines = [f"{head:20} {'build':>8} {'peak':>9} {'disk':>9} recall@{K}   queries per second: {'; '.join(speed)}"]
    for name, found in built.items():
        size, peak = found["bytes"] / 1e6, found["peak"] / 1e6
        line = f"  {name:18} {found['seconds']:6.1f} s {peak:6.0f} MB {size:6.0f} MB {recall[name]:9.4f}   "
        lines.append(line + "; ".join(f"{median(each[name]):.0f}" for each in speed.values()))
    lines.append(f"  both with {', '.join(f'{name} {value}' for name, value in built[own]['settings'].items())}")
    costs = {"build": built[own]["seconds"] / built[peer]["seconds"], "peak": built[own]["peak"] / built[peer]["peak"]}
    for way, each in speed.items():
        costs[f"a query, {way}"] = median(theirs / mine for mine, theirs in zip(each[own], each[peer]))
    said = [f"b: recall@{K} {recall[own]:.4f}, promise {RECALL}: {_kept(recall[own] >= RECALL)}"]
    for what, share in costs.items():
        said.append(f"b: {what}: {share:.2f} times plain FAISS, promise {OVERHEAD}: {_kept(share <= OVERHEAD)}")
    return lines, said, {"built": built, "speed": speed, "recall": recall, "costs": costs}


def _kept(is_kept: bool) -> str:
    return "kept" if is_kept else "MISSED"


@contextlib.contextmanager
def telling(what: str, log: Path, every: float = 30.0) -> Iterator[None]:
    """Prints the progress of a side at intervals: the last line of its log, if there is one."""
    done, begun = threading.Event(), time.perf_counter()

    def tell() -> None:
        while not done.wait(every):
            said = log.read_text(errors="replace")[-400:] if log.exists() else ""
            last = said.replace("\r", "\n").strip().split("\n")[-1]
            print(f"{what}, {time.perf_counter() - begun:.0f} s  {last[:90]}", flush=True)

    thread = threading.Thread(target=tell, daemon=True)
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
    parser.add_argument("--quick", action="store_true", help="50,000 rows, two rounds, no waiting for quiet: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def main() -> None:
    options, session = arguments(), Session()
    rounds, most = (2, 1) if options.quick else (options.rounds, 3)
    rows = options.rows or (50_000 if options.quick else 1_000_000)
    numbers = {}
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        place = Place(Path(scratch), Path(scratch), threads())
        parts = {
            "a": lambda: end_to_end(place, rounds, most),
            "b": lambda: graphs(place, rows, options.queries, rounds),
        }
        for part in options.parts.split(","):
            try:
                lines, verdicts, numbers[part] = parts[part]()
            except (CorpusError, SideError) as reason:
                print(f"{part}: {reason}", file=sys.stderr)
                sys.exit(2)
            session.said += verdicts
            print(*lines, "", sep="\n", flush=True)
    session.end(options.json, parts=numbers)


if __name__ == "__main__":
    main()
