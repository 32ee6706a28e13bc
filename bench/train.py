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

from comparison import Part, Result, disturbance, ratios
from machine import threads
from session import Session
from side import Place
from side_process import SideError, Worker
from train_sides import LENGTH, ROWS, Own, Peak, Reference, Work, classifier_folder

PROMISES = {"float32": 1.2, "bfloat16": 1.6}
EPOCH = 2.0


def steps(folder: Path, kind: str, attention_dropout: float, quick: bool) -> Part:
    """A training step with equal batches and equal dropout."""
    work = Work(kind, attention_dropout=attention_dropout, quick=quick)
    title = f"a step of {ROWS} x {LENGTH}, no padding, {kind}, dropout 0.1, of attention {attention_dropout:g}"
    made = {"pellucid": Own, "Trainer": Reference}
    return Part(
        title, "Trainer", {name: functools.partial(one, work=work, folder=folder) for name, one in made.items()}
    )


def epoch(folder: Path) -> Part:
    """All of SST-2 once, each side by its defaults; the reference in bfloat16 too."""
    made = {
        "pellucid": functools.partial(Own, work=Work("auto", epoch=True), folder=folder),
        "Trainer": functools.partial(Reference, work=Work("float32", epoch=True), folder=folder),
        "Trainer bfloat16": functools.partial(Reference, work=Work("bfloat16", epoch=True), folder=folder),
    }
    return Part("an epoch of SST-2, defaults, dropout 0.1, of attention 0.1", "Trainer", made)


def table(part: Part, results: list[Result]) -> list[str]:
    """Medians, and ratios within a round."""
    lines = [f"{part.title:84}  {'seconds':>8}  {'pellucid is':>14}  {'min..max':>11}"]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        shares = ratios(results[0], result) or [float("nan")]
        said = f"  {result.name} {result.setting or ''}, padding {result.told[0][0]:.0%}"
        spread = f"{min(shares):.2f}..{max(shares):.2f}"
        lines.append(f"{said:84}  {median(result.seconds):8.3f}  {median(shares):8.2f} times  {spread:>11}")
    return [*lines, disturbance(results), ""]


def verdict(part: Part, results: list[Result], promise: float) -> str:
    """The promise as a line of text."""
    own, peer = results[0], next(result for result in results if result.name == part.peer)
    if own.failed or peer.failed:
        return f"{part.title}: not compared, {own.failed or peer.failed}"
    share = median(ratios(own, peer))
    return f"{part.title}: {share:.2f} times {part.peer} (promise {promise}{'' if share >= promise else ', MISSED'})"


def memory(place: Place, folder: Path) -> list[str]:
    """Peak memory of steps, in a fresh process for each side; of the reference, the lower of its two attentions."""
    lines = []
    for kind in PROMISES:
        found: dict[str, int] = {}
        tried: list[tuple[str, Any, dict[str, str]]] = [("pellucid", Own, {})]
        tried += [(f"Trainer {attention}", Reference, {"attention": attention}) for attention in ("sdpa", "eager")]
        for name, side, setting in tried:
            worker = Worker(name, functools.partial(Peak, side, place, Work(kind), folder, setting), place)
            try:
                found[name] = worker.ask("peak")
            except SideError as reason:
                lines.append(f"  {name}: left out, {reason}")
            worker.stop()
        said = ", ".join(f"{name} {taken / 2**20:.0f} MB" for name, taken in found.items())
        least = min((taken for name, taken in found.items() if name != "pellucid"), default=0)
        kept = least and found.get("pellucid", least + 1) <= least
        lines.append(f"peak memory of steps, {kind}: {said} (promise: no higher{'' if kept else ', MISSED'})")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of steps after one warm-up (default 3)")
    parser.add_argument("--only", choices=("steps", "epoch", "memory"), help="one of the three")
    parser.add_argument("--quick", action="store_true", help="one round of steps without waiting for quiet: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, done = Session(with_data=True), {}
    asked = options.only or ("steps" if options.quick else None)
    with tempfile.TemporaryDirectory() as scratch:
        place, folder = Place(Path(scratch), Path(scratch), threads()), classifier_folder(Path(scratch))
        works = [
            (steps(folder, kind, share, options.quick), PROMISES[kind], options.rounds)
            for share in (0.1, 0.0)
            for kind in PROMISES
        ]
        works = works if asked in (None, "steps") else []
        works = works[:2] if options.quick else works
        works += [(epoch(folder), EPOCH, 1)] if asked in (None, "epoch") else []
        for part, promise, rounds in works:
            results = part.run(place, 1 if options.quick else rounds, 1 if options.quick or promise == EPOCH else 3)
            done[part.title] = [asdict(result) for result in results]
            session.said.append(verdict(part, results, promise))
            print(*table(part, results), sep="\n", flush=True)
        session.said += memory(place, folder) if asked in (None, "memory") else []
    session.end(options.json, parts=done)


if __name__ == "__main__":
    main()
