"""Embeds 2,000 mixed texts with pellucid and every peer in one run, and prints a table of ratios.

PELLUCID_SHARED=FOLDER python bench/embed.py [--rounds 3] [--sides a,b] [--json FILE]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from corpus import CorpusError, lengths, read_corpus, sample
from embed_report import BASE, EmbeddingResult, compare_vectors, table, verdicts
from embed_sides import EmbeddingCommands, sides
from machine import model_folder
from results import ratios
from session import Session, exit_with, selected_names
from side import Workspace
from side_process import SideError, SideProcess
from timing import order_of_round

Prepared = tuple[SideProcess, EmbeddingResult, np.ndarray]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one warm-up (default 3)")
    parser.add_argument("--sides", help=f"some of, with commas: {', '.join(sides())}")
    parser.add_argument("--texts", type=int, default=2000, help="texts in the corpus (default 2000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def selected_sides(option: str | None) -> list[str]:
    """The names of the sides to run; the base of the ratios is always included, and comes first."""
    return [BASE, *(name for name in selected_names(option, sides(), "side") if name != BASE)]


def start_side(name: str, workspace: Workspace, texts: Sequence[str]) -> Prepared | None:
    """Starts and tunes a side and has it embed all texts once; prints the reason if it cannot."""
    process, begun = SideProcess(name, partial(EmbeddingCommands, name), workspace), time.perf_counter()
    try:
        setting = process.call("prepare", workspace, sample(texts))
        vectors = process.call("vectors", texts)
        precision = sides()[name]().precision
        result = EmbeddingResult(name, setting, precision=precision, padding=process.call("padding"))
    except SideError as reason:
        print(f"{name}: left out, {reason}", flush=True)
        process.stop()
        return None
    print(f"{name}: {result.setting_text()} (ready in {time.perf_counter() - begun:.0f} s)", flush=True)
    return process, result, vectors


def prepare(
    names: Sequence[str], workspace: Workspace, texts: Sequence[str]
) -> tuple[list[SideProcess], dict[str, EmbeddingResult]]:
    """All sides that run on this machine, one after the other, each compared with the first."""
    processes: list[SideProcess] = []
    results: dict[str, EmbeddingResult] = {}
    reference: np.ndarray | None = None
    for name in names:
        if (prepared := start_side(name, workspace, texts)) is None:
            if name == BASE:
                sys.exit(f"bench: {BASE} does not run, and the other sides are compared with it")
            continue
        process, result, vectors = prepared
        reference = vectors if reference is None else reference
        compare_vectors(result, vectors, reference)
        processes.append(process)
        results[name] = result
    return processes, results


def measure(processes: Sequence[SideProcess], results: dict[str, EmbeddingResult], rounds: int) -> None:
    """Measures every side once per round."""
    for number in range(rounds):
        for process in order_of_round(processes, number):
            seconds, others = process.call("measure")
            results[process.name].seconds.append(seconds)
            results[process.name].others.append(others)
        print(f"round {number + 1} of {rounds} done", flush=True)


def main() -> None:
    options, model = arguments(), model_folder()
    names = selected_sides(options.sides)
    try:
        texts = read_corpus(options.texts)
    except CorpusError as missing:
        exit_with(missing)
    session, size = Session(with_torch=True), lengths(texts, model)
    print(
        f"corpus     {len(texts)} texts; tokens: mean {size.mean:.1f}, p50 {size.p50}, p95 {size.p95}, "
        f"max {size.longest}, all {size.total}\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        processes, results = prepare(names, Workspace(model, Path(scratch), session.machine.threads), texts)
        measure(processes, results, options.rounds)
        for process in processes:
            process.stop()
    session.verdicts += verdicts(results)
    print("", *table(results, len(texts)), "", sep="\n")
    numbers = [result.as_dict() | {"ratios": ratios(result, results[BASE])} for result in results.values()]
    session.end(options.json, corpus=size.as_dict(), sides=numbers)


if __name__ == "__main__":
    main()
