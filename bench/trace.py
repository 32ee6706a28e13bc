"""Times recording: every attention of an encoder, and everything inside a decoder, pellucid beside the peers.

    python bench/trace.py [--rounds 9] [--quick] [--json FILE]

No corpus is needed. Each side has its own process; rounds are interleaved, after a warm-up of each.
"""

import argparse
import functools
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

from comparison import Part, Result, disturbance, ratios
from machine import model_folder, threads
from session import Session
from side import Place
from trace_sides import LensEverything, OwnAttentions, OwnEverything, ReferenceAttentions

LEAST = 1e-4
"""The largest difference of float32 values between two sides that compute them in one batch."""


def parts() -> list[Part]:
    """The parts of this benchmark."""
    found = [
        Part(
            "all attention of MiniLM, 64 sentences, texts in, weights out",
            "transformers",
            {"pellucid": OwnAttentions, "transformers": ReferenceAttentions},
        )
    ]
    for count in (16, 128):
        own, lens = functools.partial(OwnEverything, count=count), functools.partial(LensEverything, count=count)
        sides = {"pellucid": own, "transformer-lens": lens}
        found.append(Part(f"everything in a random GPT-2, one text of {count} ids", "transformer-lens", sides))
    return found


def table(part: Part, results: list[Result]) -> list[str]:
    """Medians, pellucid's speed relative to each side, and whether both sides recorded the same values."""
    lines = [f"{part.title:62}  {'seconds':>8}  {'pellucid is':>14}  {'min..max':>10}"]
    own = results[0]
    for result in results:
        if result.failed:
            lines.append(f"  {result.name}: left out, {result.failed}")
            continue
        shares = ratios(own, result) or [float("nan")]
        said = f"  {result.name} {result.setting or ''}"
        spread = f"{min(shares):.2f}..{max(shares):.2f}"
        lines.append(f"{said:62}  {median(result.seconds):8.3f}  {median(shares):8.2f} times  {spread:>10}")
    able = [result for result in results if not result.failed]
    if len(able) == 2:
        apart = max(abs(x - y) for one, two in zip(own.told, able[1].told) for x, y in zip(one, two))
        lines.append(f"  {'the same values' if apart < LEAST else f'NOT THE SAME: values differ by {apart:g}'}")
    return [*lines, disturbance(results), ""]


def verdict(part: Part, results: list[Result]) -> str:
    """The promise as a line of text."""
    own, peer = results
    if own.failed or peer.failed:
        return f"{part.title}: not compared, {own.failed or peer.failed}"
    share = median(ratios(own, peer))
    return f"{part.title}: {share:.2f} times as fast as {part.peer} (promise 1.0, aim 1.5)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds after one warm-up (default 9)")
    parser.add_argument("--quick", action="store_true", help="two rounds, no waiting for quiet: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, done = Session(), {}
    rounds, most = (2, 1) if options.quick else (options.rounds, 3)
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(model_folder(), Path(scratch), threads())
        for part in parts():
            results = part.run(place, rounds, most)
            done[part.title] = [asdict(result) for result in results]
            session.said.append(verdict(part, results))
            print(*table(part, results), sep="\n", flush=True)
    session.end(options.json, parts=done)


if __name__ == "__main__":
    main()
