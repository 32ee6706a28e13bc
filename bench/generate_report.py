"""From seconds, tokens, bytes and perplexities of the benchmark of generation to tables and verdicts."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from generate_jobs import Job
from results import SideResult, disturbance, ratios

BASES = ("transformers-float32", "pellucid-float32", "ctranslate2-float32")
"""The base of ratios and of equal tokens: the first of these that ran, or else the first side that ran."""


@dataclass
class GenerationResult(SideResult):
    """The result of one side in one part. same: share of its tokens that equal the base's at the same position."""

    precision: str = ""
    tokens: list[list[int]] = field(default_factory=list)
    same: float = float("nan")


@dataclass
class PartResult:
    """A job and the results of its sides."""

    job: Job
    sides: dict[str, GenerationResult] = field(default_factory=dict)

    @property
    def base(self) -> GenerationResult:
        return next((self.sides[name] for name in BASES if name in self.sides), next(iter(self.sides.values())))

    def compare(self) -> None:
        """Fills in the share of equal tokens."""
        for side in self.sides.values():
            pairs = [pair for rows in zip(side.tokens, self.base.tokens) for pair in zip(*rows)]
            side.same = sum(left == right for left, right in pairs) / len(pairs)

    def fastest(self, name: str) -> GenerationResult | None:
        """The side of this name, or the fastest of those whose names begin with it."""
        named = [side for side in self.sides.values() if side.name == name or side.name.startswith(f"{name}-")]
        return min(named, key=lambda side: median(side.seconds), default=None)

    def as_dict(self) -> dict[str, Any]:
        numbers = [asdict(side) | {"ratios": ratios(side, self.base)} for side in self.sides.values()]
        return {"job": asdict(self.job), "base": self.base.name, "sides": numbers}


@dataclass(frozen=True)
class Promise:
    """``own`` is at least ``least`` times as fast as ``peer``; None where the ratio is only reported."""

    part: str
    own: str
    peer: str
    least: float | None = None
    aim: float | None = None


PROMISES = (
    Promise("a", "pellucid-float32", "transformers-float32", 1.2),
    Promise("a", "pellucid-float32", "ctranslate2-float32", 0.95),
    Promise("a", "pellucid-bfloat16", "transformers-bfloat16", 1.5),
    Promise("a", "pellucid-int4", "llama.cpp", 0.6, aim=1.0),
    Promise("a", "pellucid-int4", "ctranslate2-int8", 1.0),
    Promise("a", "pellucid-int8", "ctranslate2-int8"),
    Promise("b", "pellucid", "llama.cpp", 1.0),
    Promise("b", "pellucid", "ctranslate2", 1.0),
    Promise("b", "pellucid-int4", "llama.cpp"),
    Promise("b", "pellucid-int8", "ctranslate2-int8"),
    Promise("b", "pellucid-float32", "ctranslate2-float32"),
    Promise("c", "pellucid", "llama.cpp", 1.0),
    Promise("c", "pellucid-int4", "llama.cpp"),
    Promise("c", "pellucid-float32", "ctranslate2-float32"),
)
MEMORY = 1.2  # times the size of the file, above imports and cache
AFTER_USE = ", after use"  # in a process that has already generated with a tiny model
PERPLEXITY = {"pellucid-int8": 1.005, "pellucid-int4": 1.04}  # times the perplexity of pellucid-float32


def table(part: PartResult) -> list[str]:
    """One line per side, the fastest last, with the median tokens per second or milliseconds."""
    base, job = part.base, part.job
    width = max(len(name) for name in part.sides)
    unit = "tokens/s" if job.timed_tokens > 1 else "ms"
    head = f"{job.name:{width}}   ratio      min..max  {unit:>8}  same tokens  setting"
    lines = [head, "-" * len(head)]
    for side in sorted(part.sides.values(), key=lambda side: median(side.seconds), reverse=True):
        speed, seconds = ratios(side, base), median(side.seconds)
        spread, setting = f"{min(speed):.2f}..{max(speed):.2f}", side.setting_text()
        number = job.timed_tokens / seconds if job.timed_tokens > 1 else seconds * 1000
        lines.append(
            f"{side.name:{width}}  {median(speed):6.2f}  {spread:>12}  {number:8.0f}  {side.same:11.0%}  {setting}"
        )
    return [*lines, f"(ratios and tokens refer to {base.name}; {disturbance(part.sides.values())})"]


def memory_table(memory: dict[str, dict[str, int]]) -> list[str]:
    """Peak memory above the imported library. Mapped files can be reclaimed by the system, but are counted."""
    width = max(12, *map(len, memory))
    head = f"{'memory, MB':{width}}   peak  cache  peak - cache  at the end: own  files"
    lines = [head, "-" * len(head)]
    for name, found in memory.items():
        peak, cache, own, file = (found[key] / 1e6 for key in ("peak", "cache", "own", "file"))
        lines.append(f"{name:{width}}  {peak:5.0f}  {cache:5.1f}  {peak - cache:12.0f}  {own:15.0f}  {file:5.0f}")
    return lines


def perplexity_table(found: dict[str, float]) -> list[str]:
    """The perplexity of each side on the text."""
    base, width = found.get("pellucid-float32"), max(map(len, found))
    above = {name: f"{value / base - 1:+8.2%}" if base else "" for name, value in found.items()}
    lines = [f"{name:{width}}  {value:8.4f}  {above[name]}" for name, value in found.items()]
    return ["perplexity, and how much it is above that of pellucid-float32", *lines]


def _speed(promise: Promise, part: PartResult) -> str:
    """One promise of speed as a line of text."""
    own, peer = part.fastest(promise.own), part.fastest(promise.peer)
    if own is None or peer is None:
        missing = promise.own if own is None else promise.peer
        return f"{part.job.name}: {promise.own} / {promise.peer} = - ({missing} did not run)"
    speed = ratios(own, peer)
    found = f"{part.job.name}: {own.name} / {peer.name} = {median(speed):.2f} ({min(speed):.2f} to {max(speed):.2f})"
    return found + _kept(median(speed), promise.least, promise.aim)


def _kept(found: float, least: float | None, aim: float | None) -> str:
    if least is None:
        return ""
    word = "kept" if found >= least else "MISSED"
    return f", promise {least}: {word}" + (f", aim {aim}" if aim else "")


def _same_tokens(part: PartResult) -> list[str]:
    """The share of equal tokens of the float32 sides as a line of text, if there are several."""
    exact = [side for side in part.sides.values() if side.precision == "float32"]
    shares = ", ".join(f"{side.name} {side.same:.1%}" for side in exact if side is not part.base)
    return [f"{part.job.name}: tokens that equal those of {part.base.name}: {shares}"] if len(exact) > 1 else []


def _memory(memory: dict[str, dict[str, int]], file: int) -> list[str]:
    found = memory.get("pellucid-int4")
    if found is None:
        return ["memory: pellucid-int4 did not run"]
    share = (found["peak"] - found["cache"]) / file
    word = "kept" if share <= MEMORY else "MISSED"
    lines = [f"memory: pellucid-int4 = {share:.2f} x the file, above imports and cache, promise {MEMORY}: {word}"]
    if (used := memory.get("pellucid-int4" + AFTER_USE)) is not None:
        share = (used["peak"] - used["cache"]) / file
        lines.append(f"memory: {share:.2f} x the file, where the library had already generated")
    return lines


def _perplexity(found: dict[str, float]) -> list[str]:
    lines, base = [], found.get("pellucid-float32")
    for name, most in PERPLEXITY.items():
        if base is None or name not in found:
            lines.append(f"perplexity: {name if base else 'pellucid-float32'} did not run")
            continue
        share = found[name] / base
        word = "kept" if share <= most else "MISSED"
        lines.append(f"perplexity: {name} {share - 1:+.2%} of float32, promise {most - 1:+.1%}: {word}")
    return lines


def verdicts(
    parts: dict[str, PartResult], memory: dict[str, dict[str, int]] | None, found: dict[str, float] | None, file: int
) -> list[str]:
    """One line per promise of the parts that were run, or that a peer is missing."""
    lines = [_speed(promise, parts[promise.part]) for promise in PROMISES if promise.part in parts]
    lines += [line for part in parts.values() if part.job.new_tokens > 1 for line in _same_tokens(part)]
    lines += _memory(memory, file) if memory is not None else []
    return lines + (_perplexity(found) if found is not None else [])
