"""From seconds and vectors to a table and verdicts. Ratios are speeds: 2.0 is twice as fast."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

BASE = "sentence-transformers"
SAME = 0.9999  # the least cosine at which a float32 peer counts as correct
CLOSE = 0.9995  # the least cosine at which a fast setting counts for the promise


@dataclass
class Timed:
    """The rounds of one side."""

    name: str
    precision: str
    setting: dict[str, Any]
    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # share of the processor used by other processes

    def said(self) -> str:
        """The setting as text."""
        return ", ".join(f"{axis} {value}" for axis, value in self.setting.items()) or "default"


@dataclass
class Result(Timed):
    """The result of one side that embeds."""

    cosine_min: float = float("nan")
    cosine_mean: float = float("nan")
    padding: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ratios(result: Timed, base: Timed) -> list[float]:
    """How many times as fast as ``base``, round by round."""
    return [other / own for own, other in zip(result.seconds, base.seconds, strict=True)]


def compare(result: Result, vectors: np.ndarray, reference: np.ndarray) -> None:
    """Fills in the cosines between each text's vector and the reference's, in float64."""
    left, right = vectors.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(1) / lengths
    result.cosine_min, result.cosine_mean = float(cosines.min()), float(cosines.mean())


def table(results: dict[str, Result], texts: int) -> list[str]:
    """One line per side, the fastest last, with the median texts per second."""
    base = results[BASE]
    width = max(len(name) for name in results)
    head = f"{'side':{width}}   ratio      min..max    cos min   cos mean  texts/s  setting"
    lines = [head, "-" * len(head)]
    for result in sorted(results.values(), key=lambda side: median(side.seconds), reverse=True):
        speed = ratios(result, base)
        spread = f"{min(speed):.2f}..{max(speed):.2f}"
        lines.append(
            f"{result.name:{width}}  {median(speed):6.2f}  {spread:>12}  {result.cosine_min:9.6f}  "
            f"{result.cosine_mean:9.6f}  {texts / median(result.seconds):7.0f}  {result.said()}"
        )
    return lines


def fastest(results: Iterable[Result], base: Result) -> Result | None:
    """The side with the best median ratio, or None."""
    return max(results, key=lambda side: median(ratios(side, base)), default=None)


def _peers(results: dict[str, Result]) -> list[Result]:
    return [result for name, result in results.items() if not name.startswith("pellucid")]


def _against(own: Result | None, peer: Result | None) -> str:
    """The median of the ratios round by round, or a dash if a side is missing."""
    return f"{median(ratios(own, peer)):.2f}" if own and peer else "-"


def _name(peer: Result | None) -> str:
    return peer.name if peer else "none"


def verdicts(results: dict[str, Result]) -> list[str]:
    """The promises of speed, one line each, then other processes' load and the share of padding."""
    base, peers = results[BASE], _peers(results)
    exact, fast = results.get("pellucid-float32"), results.get("pellucid-bfloat16")
    same = fastest((p for p in peers if p.precision == "float32" and p.cosine_min >= SAME), base)
    close = fastest((p for p in peers if p.cosine_min >= CLOSE), base)
    first = fastest(peers, base)
    lines = [
        f"pellucid float32 / {BASE} = {_against(exact, base)} (promise 1.8), "
        f"/ fastest float32 peer ({_name(same)}) = {_against(exact, same)} (promise > 1)",
        f"pellucid bfloat16 / fastest peer at its best setting with cosine >= {CLOSE} ({_name(close)}) = "
        f"{_against(fast, close)} (promise 1.5)",
    ]
    if first:
        lines.append(
            f"fastest peer without regard to cosine: {first.name}, {_against(first, base)} x {BASE}, "
            f"cosine min {first.cosine_min:.6f}, mean {first.cosine_mean:.6f}; "
            f"pellucid bfloat16 / it = {_against(fast, first)}"
        )
    shares = [f"{r.name} {r.padding:.1%}" for r in results.values() if r.padding is not None]
    disturbed = max(share for result in results.values() for share in result.others)
    lines.append(f"other processes used at most {disturbed:.0%} of the processor while a side was measured")
    return [*lines, f"padding among computed positions: {', '.join(shares) or 'not told'}"]
