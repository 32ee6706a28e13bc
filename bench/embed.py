"""Embeds 2,000 mixed texts with pellucid and every peer in one run, and prints a table of ratios.

PELLUCID_SHARED=FOLDER python bench/embed.py [--rounds 3] [--sides a,b] [--json FILE]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from corpus import CorpusError, lengths, read_corpus, sample
from embed_report import BASE, Result, compare, ratios, table, verdicts
from embed_sides import Desk, sides
from machine import describe, model_folder, quiet_environment
from side import Place
from side_process import SideError, Worker

Ready = tuple[Worker, Result, np.ndarray]
Team = tuple[list[Worker], dict[str, Result]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one warm-up (default 3)")
    parser.add_argument("--sides", help=f"some of, with commas: {', '.join(sides())}")
    parser.add_argument("--texts", type=int, default=2000, help="texts in the corpus (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def chosen(asked: str | None) -> list[str]:
    """The names of the sides to run; the base of the ratios is always included, and comes first."""
    known = list(sides())
    names = asked.split(",") if asked else known
    if unknown := [name for name in names if name not in known]:
        print(f"bench: no side {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        sys.exit(2)
    return [BASE, *(name for name in known if name in names and name != BASE)]


def start(name: str, place: Place, texts: Sequence[str]) -> Ready | None:
    """Starts and tunes a side and has it embed all texts once; prints the reason if it cannot."""
    worker, begun = Worker(name, partial(Desk, name), place), time.perf_counter()
    try:
        setting = worker.ask("prepare", place, sample(texts))
        vectors = worker.ask("vectors", texts)
        result = Result(name, sides()[name]().precision, setting, padding=worker.ask("padding"))
    except SideError as reason:
        print(f"{name}: left out, {reason}", flush=True)
        worker.stop()
        return None
    print(f"{name}: {result.said()} (ready in {time.perf_counter() - begun:.0f} s)", flush=True)
    return worker, result, vectors


def prepare(names: Sequence[str], place: Place, texts: Sequence[str]) -> Team:
    """All sides that run on this machine, one after the other, each compared with the first."""
    workers: list[Worker] = []
    results: dict[str, Result] = {}
    reference: np.ndarray | None = None
    for name in names:
        if (ready := start(name, place, texts)) is None:
            if name == BASE:
                sys.exit(f"bench: {BASE} is what the others are compared with, and it does not run")
            continue
        worker, result, vectors = ready
        reference = vectors if reference is None else reference
        compare(result, vectors, reference)
        workers.append(worker)
        results[name] = result
    return workers, results


def measure(workers: Sequence[Worker], results: dict[str, Result], rounds: int) -> None:
    """Measures every side once per round, in alternating order, which cancels slow drifts."""
    for turn in range(rounds):
        for worker in workers if turn % 2 == 0 else reversed(workers):
            seconds, others = worker.ask("measure")
            results[worker.name].seconds.append(seconds)
            results[worker.name].others.append(others)
        print(f"round {turn + 1} of {rounds} done", flush=True)


def write(file: Path, head: dict[str, object], results: dict[str, Result], said: list[str]) -> None:
    """Writes all results as JSON, to a temporary file that is then renamed."""
    base = results[BASE]
    numbers = [result.as_dict() | {"ratios": ratios(result, base)} for result in results.values()]
    part = file.with_name(f"{file.name}.tmp")
    part.write_text(json.dumps(head | {"sides": numbers, "verdicts": said}, indent=2) + "\n")
    part.replace(file)


def main() -> None:
    options, model = arguments(), model_folder()
    names = chosen(options.sides)
    try:
        texts = read_corpus(options.texts)
    except CorpusError as missing:
        print(missing, file=sys.stderr)
        sys.exit(2)
    quiet_environment()
    machine, size = describe(), lengths(texts, model)
    print(*machine.lines(), sep="\n")
    print(
        f"corpus     {len(texts)} texts; tokens: mean {size.mean:.1f}, p50 {size.p50}, p95 {size.p95}, "
        f"max {size.longest}, all {size.total}\n",
        flush=True,
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        workers, results = prepare(names, Place(model, Path(scratch), machine.threads), texts)
        measure(workers, results, options.rounds)
        for worker in workers:
            worker.stop()
    said = verdicts(results)
    print("", *table(results, len(texts)), "", *said, f"({time.perf_counter() - begun:.0f} s)", sep="\n")
    if options.json:
        write(options.json, {"machine": machine.as_dict(), "corpus": size.as_dict()}, results, said)


if __name__ == "__main__":
    main()
