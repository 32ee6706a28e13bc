"""Times training: a step, an epoch of SST-2 and the memory of a step, pellucid beside `transformers.Trainer`.

    PELLUCID_SHARED=FOLDER python bench/train.py [--rounds 3] [--only steps|epoch|memory] [--quick] [--json FILE]

Each side has its own process; the reference uses the faster of its two attentions; rounds are interleaved, after a
warm-up of each. Both sides use equal dropout and update the same parameters by fused AdamW, clipped at 1.0.
"""

import argparse
import functools
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from comparison import Comparison, ComparisonResult
from machine import threads
from results import disturbance, ratios
from session import Session
from side import Workspace
from side_process import SideError, SideProcess
from train_sides import (
    BATCH_SIZE,
    LENGTH,
    PeakMemoryCommands,
    PellucidTraining,
    TrainingWorkload,
    TransformersTraining,
    classifier_folder,
)

PROMISES = {"float32": 1.2, "bfloat16": 1.6}
EPOCH_PROMISE = 2.0


def steps(folder: Path, dtype: str, attention_dropout: float, quick: bool) -> Comparison:
    """Training steps with equal batches and equal dropout."""
    workload = TrainingWorkload(dtype, attention_dropout=attention_dropout, quick=quick)
    title = f"a step of {BATCH_SIZE} x {LENGTH}, no padding, {dtype}, dropout 0.1, of attention {attention_dropout:g}"
    sides = {
        "pellucid": functools.partial(PellucidTraining, workload=workload, folder=folder),
        "Trainer": functools.partial(TransformersTraining, workload=workload, folder=folder),
    }
    return Comparison(title, "Trainer", sides)


def epoch(folder: Path) -> Comparison:
    """All of SST-2 once, each side by its defaults; the reference in bfloat16 too."""
    own = functools.partial(PellucidTraining, folder=folder)
    peer = functools.partial(TransformersTraining, folder=folder)
    sides = {
        "pellucid": functools.partial(own, workload=TrainingWorkload("auto", epoch=True)),
        "Trainer": functools.partial(peer, workload=TrainingWorkload("float32", epoch=True)),
        "Trainer bfloat16": functools.partial(peer, workload=TrainingWorkload("bfloat16", epoch=True)),
    }
    return Comparison("an epoch of SST-2, defaults, dropout 0.1, of attention 0.1", "Trainer", sides)


def table(comparison: Comparison, results: list[ComparisonResult]) -> list[str]:
    """Medians, and ratios within a round."""
    lines = [f"{comparison.title:84}  {'seconds':>8}  {'pellucid is':>14}  {'min..max':>11}"]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        speed = ratios(results[0], result) or [float("nan")]
        label = f"  {result.name} {result.setting or ''}, padding {result.details[0]:.0%}"
        spread = f"{min(speed):.2f}..{max(speed):.2f}"
        lines.append(f"{label:84}  {median(result.seconds):8.3f}  {median(speed):8.2f} times  {spread:>11}")
    return [*lines, f"  {disturbance(results)}", ""]


def verdict(comparison: Comparison, results: list[ComparisonResult], promise: float) -> str:
    """The promise as a line of text."""
    own, peer = results[0], next(result for result in results if result.name == comparison.peer)
    if own.failed or peer.failed:
        return f"{comparison.title}: not compared, {own.failed or peer.failed}"
    speed = median(ratios(own, peer))
    missed = "" if speed >= promise else ", MISSED"
    return f"{comparison.title}: {speed:.2f} times {comparison.peer} (promise {promise}{missed})"


def memory(workspace: Workspace, folder: Path) -> list[str]:
    """Peak memory of steps, in a fresh process for each side; of the reference, the lower of its two attentions."""
    lines = []
    for dtype in PROMISES:
        peaks: dict[str, int] = {}
        sides: list[tuple[str, Any, dict[str, str]]] = [("pellucid", PellucidTraining, {})]
        sides += [
            (f"Trainer {attention}", TransformersTraining, {"attention": attention}) for attention in ("sdpa", "eager")
        ]
        for name, side, setting in sides:
            workload = TrainingWorkload(dtype)
            commands = functools.partial(PeakMemoryCommands, side, workspace, workload, folder, setting)
            process = SideProcess(name, commands, workspace)
            try:
                peaks[name] = process.call("peak")
            except SideError as reason:
                lines.append(f"  {name}: left out, {reason}")
            process.stop()
        listed = ", ".join(f"{name} {peak / 2**20:.0f} MB" for name, peak in peaks.items())
        least = min((peak for name, peak in peaks.items() if name != "pellucid"), default=0)
        kept = least and peaks.get("pellucid", least + 1) <= least
        lines.append(f"peak memory of steps, {dtype}: {listed} (promise: no higher{'' if kept else ', MISSED'})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of steps after one warm-up (default 3)")
    parser.add_argument("--only", choices=("steps", "epoch", "memory"), help="one of the three")
    parser.add_argument("--quick", action="store_true", help="one round of steps, no waiting for quiet: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, numbers = Session(with_data=True), {}
    only = options.only or ("steps" if options.quick else None)
    with tempfile.TemporaryDirectory() as scratch:
        workspace, folder = Workspace(Path(scratch), Path(scratch), threads()), classifier_folder(Path(scratch))
        planned = [
            (steps(folder, dtype, dropout, options.quick), PROMISES[dtype], options.rounds)
            for dropout in (0.1, 0.0)
            for dtype in PROMISES
        ]
        planned = planned if only in (None, "steps") else []
        planned = planned[:2] if options.quick else planned
        planned += [(epoch(folder), EPOCH_PROMISE, 1)] if only in (None, "epoch") else []
        for comparison, promise, rounds in planned:
            attempts = 1 if options.quick or promise == EPOCH_PROMISE else 3
            results = comparison.run(workspace, 1 if options.quick else rounds, attempts)
            numbers[comparison.title] = [asdict(result) for result in results]
            session.verdicts.append(verdict(comparison, results, promise))
            print(*table(comparison, results), sep="\n", flush=True)
        session.verdicts += memory(workspace, folder) if only in (None, "memory") else []
    session.end(options.json, parts=numbers)


if __name__ == "__main__":
    main()
