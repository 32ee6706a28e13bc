"""From seconds and vectors of the benchmark of embedding to a table and verdicts."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from results import SideResult, disturbance, ratios

BASE = "sentence-transformers"
EXACT_COSINE = 0.9999
"""The least cosine at which a float32 peer counts as correct."""
CLOSE_COSINE = 0.9995
"""The least cosine at which a fast setting counts for the promise."""


@dataclass
class EmbeddingResult(SideResult):
    """The result of one side. The cosines are those of its vectors with the reference's."""

    precision: str = ""
    cosine_min: float = float("nan")
    cosine_mean: float = float("nan")
    padding: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_vectors(result: EmbeddingResult, vectors: np.ndarray, reference: np.ndarray) -> None:
    """Fills in the cosines between each text's vector and the reference's, in float64."""
    left, right = vectors.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines = (left * right).sum(1) / lengths
    result.cosine_min, result.cosine_mean = float(cosines.min()), float(cosines.mean())


def table(results: dict[str, EmbeddingResult], texts: int) -> list[str]:
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
            f"{result.cosine_mean:9.6f}  {texts / median(result.seconds):7.0f}  {result.setting_text()}"
        )
    return lines


def fastest(results: Iterable[EmbeddingResult], base: EmbeddingResult) -> EmbeddingResult | None:
    """The side with the best median ratio, or None."""
    return max(results, key=lambda side: median(ratios(side, base)), default=None)


def _median_ratio(own: EmbeddingResult | None, peer: EmbeddingResult | None) -> str:
    """The median of the ratios round by round, or a dash if a side is missing."""
    return f"{median(ratios(own, peer)):.2f}" if own and peer else "-"


def _name(peer: EmbeddingResult | None) -> str:
    return peer.name if peer else "none"


def verdicts(results: dict[str, EmbeddingResult]) -> list[str]:
    """The promises of speed, one line each, then other processes' load and the share of padding."""
    base = results[BASE]
    peers = [result for name, result in results.items() if not name.startswith("pellucid")]
    own_float32, own_bfloat16 = results.get("pellucid-float32"), results.get("pellucid-bfloat16")
    exact = fastest((p for p in peers if p.precision == "float32" and p.cosine_min >= EXACT_COSINE), base)
    close = fastest((p for p in peers if p.cosine_min >= CLOSE_COSINE), base)
    first = fastest(peers, base)
    lines = [
        f"pellucid float32 / {BASE} = {_median_ratio(own_float32, base)} (promise 1.8), "
        f"/ fastest float32 peer ({_name(exact)}) = {_median_ratio(own_float32, exact)} (promise > 1)",
        f"pellucid bfloat16 / fastest peer at its best setting with cosine >= {CLOSE_COSINE} ({_name(close)}) = "
        f"{_median_ratio(own_bfloat16, close)} (promise 1.5)",
    ]
    if first:
        lines.append(
            f"fastest peer without regard to cosine: {first.name}, {_median_ratio(first, base)} x {BASE}, "
            f"cosine min {first.cosine_min:.6f}, mean {first.cosine_mean:.6f}; "
            f"pellucid bfloat16 / it = {_median_ratio(own_bfloat16, first)}"
        )
    lines.append(disturbance(results.values()))
    shares = [f"{result.name} {result.padding:.1%}" for result in results.values() if result.padding is not None]
    return [*lines, f"padding among computed positions: {', '.join(shares) or 'unknown'}"]
