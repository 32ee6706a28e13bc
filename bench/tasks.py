"""Times tasks: 2,000 mixed texts tagged and classified, pellucid beside `transformers.pipeline`, in one run.

    PELLUCID_SHARED=FOLDER python bench/tasks.py [--rounds 5] [--sides a,b] [--quick] [--json FILE]

Each side has its own process; the reference is tuned to its best batch size; rounds are interleaved, after a warm-up of
each.
"""

import argparse
import functools
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from comparison import Comparison, ComparisonResult
from machine import threads
from results import disturbance, ratios
from session import Session, selected_names
from side import Workspace
from tasks_sides import (
    CLASSIFICATION,
    TAGGING,
    PellucidPipeline,
    TransformersPipeline,
    classifier_folder,
    tagger_folder,
)

PEER = "transformers float32"
PROMISES = {"pellucid float32": 2.0, "pellucid bfloat16": 5.0}
"""How many times as fast as the peer."""

PIPELINES = {"pellucid": PellucidPipeline, "transformers": TransformersPipeline}
SIDES = {f"{library} {dtype}": (library, dtype) for library in PIPELINES for dtype in ("float32", "bfloat16")}


def comparisons(scratch: Path, names: list[str], only: str | None) -> list[Comparison]:
    """The parts of this benchmark.  names: the sides; the peer always runs.  only: one task."""
    found = []
    for task, folder in ((TAGGING, tagger_folder()), (CLASSIFICATION, classifier_folder(scratch))):
        if only not in (None, task):
            continue
        sides = {
            name: functools.partial(PIPELINES[library], task=task, folder=folder, dtype=dtype)
            for name, (library, dtype) in SIDES.items()
            if name in (*names, PEER)
        }
        found.append(Comparison(f"{task}, 2,000 mixed texts", PEER, sides))
    return found


def table(comparison: Comparison, results: list[ComparisonResult]) -> list[str]:
    """Medians of the ratios to the peer, and the share of equal answers."""
    base = next(result for result in results if result.name == PEER)
    lines = [f"{comparison.title:44}  {'ratio':>6}  {'min..max':>11}  {'texts/s':>7}  {'same answers':>12}"]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        speed = ratios(result, base)
        same = sum(own == other for own, other in zip(result.details, base.details)) / len(base.details)
        label = f"  {result.name}  {result.setting or ''}"
        spread, per_second = f"{min(speed):.2f}..{max(speed):.2f}", len(base.details) / median(result.seconds)
        lines.append(f"{label:44}  {median(speed):6.2f}  {spread:>11}  {per_second:7.0f}  {same:12.4f}")
    return [*lines, f"  {disturbance(results)}", ""]


def verdicts(comparison: Comparison, results: list[ComparisonResult]) -> list[str]:
    """The promises, one line each."""
    measured = {result.name: result for result in results if not result.failed}
    if PEER not in measured:
        return [f"{comparison.title}: not compared, the peer did not run"]
    speeds = {name: median(ratios(measured[name], measured[PEER])) for name in PROMISES if name in measured}
    return [
        f"{comparison.title}: {name} is {speed:.2f} times {PEER} (promise {PROMISES[name]})"
        for name, speed in speeds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after one warm-up (default 5)")
    parser.add_argument("--sides", help=f"some of, with commas: {', '.join(SIDES)}")
    parser.add_argument("--only", choices=(TAGGING, CLASSIFICATION), help="one of the two tasks")
    parser.add_argument("--quick", action="store_true", help="two rounds, no waiting for quiet: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    names = selected_names(options.sides, SIDES, "side")
    session, numbers = Session(with_data=True), {}
    rounds, attempts = (2, 1) if options.quick else (options.rounds, 3)
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Workspace(Path(scratch), Path(scratch), threads())
        for comparison in comparisons(Path(scratch), names, options.only):
            results = comparison.run(workspace, rounds, attempts)
            numbers[comparison.title] = [{**asdict(result), "details": len(result.details)} for result in results]
            session.verdicts += verdicts(comparison, results)
            print(*table(comparison, results), sep="\n", flush=True)
    session.end(options.json, parts=numbers)


if __name__ == "__main__":
    main()
