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

from comparison import Part, Result, disturbance, ratios
from machine import threads
from session import Session
from side import Place
from tasks_sides import CLASSIFIER, TAGGER, Own, Reference, classifier_folder, tagger_folder

PEER = "transformers float32"
PROMISES = {"pellucid float32": 2.0, "pellucid bfloat16": 5.0}
"""How many times as fast as the peer."""


def parts(scratch: Path, asked: str | None, only: str | None) -> list[Part]:
    """The parts of this benchmark.  asked: the sides, with commas; the peer always runs.  only: one task."""
    found = []
    for task, folder in ((TAGGER, tagger_folder()), (CLASSIFIER, classifier_folder(scratch))):
        if only not in (None, task):
            continue
        sides = {
            f"{who} {kind}": functools.partial(made, task=task, folder=folder, kind=kind)
            for who, made in (("pellucid", Own), ("transformers", Reference))
            for kind in ("float32", "bfloat16")
            if asked is None or f"{who} {kind}" in (*asked.split(","), PEER)
        }
        found.append(Part(f"{task}, 2,000 mixed texts", PEER, sides))
    return found


def table(part: Part, results: list[Result]) -> list[str]:
    """Medians of the ratios to the peer, and the share of equal answers."""
    base = next(result for result in results if result.name == PEER)
    lines = [f"{part.title:44}  {'ratio':>6}  {'min..max':>11}  {'texts/s':>7}  {'same answers':>12}"]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        shares = ratios(result, base)
        same = sum(own == other for own, other in zip(result.told, base.told)) / len(base.told)
        said = f"  {result.name}  {result.setting or ''}"
        spread, speed = f"{min(shares):.2f}..{max(shares):.2f}", len(base.told) / median(result.seconds)
        lines.append(f"{said:44}  {median(shares):6.2f}  {spread:>11}  {speed:7.0f}  {same:12.4f}")
    return [*lines, disturbance(results), ""]


def verdicts(part: Part, results: list[Result]) -> list[str]:
    """The promises, one line each."""
    found = {result.name: result for result in results if not result.failed}
    if PEER not in found:
        return [f"{part.title}: not compared, the peer did not run"]
    return [
        f"{part.title}: {name} is {median(ratios(found[name], found[PEER])):.2f} times {PEER} (promise {promise})"
        for name, promise in PROMISES.items()
        if name in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after one warm-up (default 5)")
    parser.add_argument("--sides", help="some of, with commas: pellucid float32, transformers bfloat16, ...")
    parser.add_argument("--only", choices=(TAGGER, CLASSIFIER), help="one of the two tasks")
    parser.add_argument("--quick", action="store_true", help="two rounds, no waiting for quiet: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, done = Session(with_data=True), {}
    rounds, most = (2, 1) if options.quick else (options.rounds, 3)
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch), Path(scratch), threads())
        for part in parts(Path(scratch), options.sides, options.only):
            results = part.run(place, rounds, most)
            done[part.title] = [{**asdict(result), "told": len(result.told)} for result in results]
            session.said += verdicts(part, results)
            print(*table(part, results), sep="\n", flush=True)
    session.end(options.json, parts=done)


if __name__ == "__main__":
    main()
