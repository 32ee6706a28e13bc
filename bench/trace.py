"""Times tracing: every attention of an encoder, and the activations of a decoder, pellucid beside the peers.

    python bench/trace.py [--rounds 9] [--quick] [--json FILE]

No corpus is needed. Each side has its own process; rounds are interleaved, after a warm-up of each.
"""

import argparse
import functools
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from comparison import Comparison, ComparisonResult
from machine import model_folder, threads
from results import disturbance, ratios
from session import Session
from side import Workspace
from trace_sides import PellucidActivations, PellucidAttention, TransformerLensActivations, TransformersAttention

TOLERANCE = 1e-4
"""The largest difference of float32 values between two sides that compute them in one batch."""


def comparisons() -> list[Comparison]:
    """The parts of this benchmark."""
    attention = {"pellucid": PellucidAttention, "transformers": TransformersAttention}
    found = [Comparison("all attention of MiniLM, 64 sentences, texts in, weights out", "transformers", attention)]
    for count in (16, 128):
        sides = {
            "pellucid": functools.partial(PellucidActivations, count=count),
            "transformer-lens": functools.partial(TransformerLensActivations, count=count),
        }
        found.append(Comparison(f"everything in a random GPT-2, one text of {count} ids", "transformer-lens", sides))
    return found


def table(comparison: Comparison, results: list[ComparisonResult]) -> list[str]:
    """Medians, pellucid's speed relative to each side, and whether both sides recorded the same values."""
    lines = [f"{comparison.title:62}  {'seconds':>8}  {'pellucid is':>14}  {'min..max':>10}"]
    own = results[0]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        speed = ratios(own, result) or [float("nan")]
        label = f"  {result.name} {result.setting or ''}"
        spread = f"{min(speed):.2f}..{max(speed):.2f}"
        lines.append(f"{label:62}  {median(result.seconds):8.3f}  {median(speed):8.2f} times  {spread:>10}")
    measured = [result for result in results if not result.failed]
    if len(measured) == 2:
        rows = zip(measured[0].details, measured[1].details)
        difference = max(abs(one - other) for row in rows for one, other in zip(*row))
        same = difference < TOLERANCE
        lines.append(f"  {'the same values' if same else f'NOT THE SAME: values differ by {difference:g}'}")
    return [*lines, f"  {disturbance(results)}", ""]


def verdict(comparison: Comparison, results: list[ComparisonResult]) -> str:
    """The promise as a line of text."""
    own, peer = results
    if own.failed or peer.failed:
        return f"{comparison.title}: not compared, {own.failed or peer.failed}"
    speed = median(ratios(own, peer))
    return f"{comparison.title}: {speed:.2f} times as fast as {comparison.peer} (promise 1.0, aim 1.5)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds after one warm-up (default 9)")
    parser.add_argument("--quick", action="store_true", help="two rounds, no waiting for quiet: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, numbers = Session(), {}
    rounds, attempts = (2, 1) if options.quick else (options.rounds, 3)
    with tempfile.TemporaryDirectory() as scratch:
        workspace = Workspace(model_folder(), Path(scratch), threads())
        for comparison in comparisons():
            results = comparison.run(workspace, rounds, attempts)
            numbers[comparison.title] = [asdict(result) for result in results]
            session.verdicts.append(verdict(comparison, results))
            print(*table(comparison, results), sep="\n", flush=True)
    session.end(options.json, parts=numbers)


if __name__ == "__main__":
    main()
