"""From seconds, tokens, bytes and perplexities of the benchmark of generation to tables and verdicts."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from embed_report import Timed, ratios
from generate_jobs import Job

REFERENCES = ("transformers-float32", "pellucid-float32", "ctranslate2-float32")
"""The base of ratios and of equal tokens: the first of these that ran, or else the first side that ran."""


@dataclass
class Outcome(Timed):
    """The result of one side in one part."""

    tokens: list[list[int]] = field(default_factory=list)
    same: float = float("nan")  # share of its tokens that equal the base's at the same position


@dataclass
class Part:
    """A job and the results of its sides."""

    job: Job
    sides: dict[str, Outcome] = field(default_factory=dict)

    @property
    def base(self) -> Outcome:
        return next((self.sides[name] for name in REFERENCES if name in self.sides), next(iter(self.sides.values())))

    def compare(self) -> None:
        """Fills in the share of equal tokens."""
        for side in self.sides.values():
            pairs = [pair for rows in zip(side.tokens, self.base.tokens) for pair in zip(*rows)]
            side.same = sum(left == right for left, right in pairs) / len(pairs)

    def fastest(self, name: str) -> Outcome | None:
        """The side of this name, or the fastest of those whose names begin with it."""
        able = [side for side in self.sides.values() if side.name == name or side.name.startswith(f"{name}-")]
        return min(able, key=lambda side: median(side.seconds), default=None)

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
AWAKE = ", awake"  # in a process that has already generated with a tiny model
PERPLEXITY = {"pellucid-int8": 1.005, "pellucid-int4": 1.04}  # times the perplexity of pellucid-float32


def table(part: Part) -> list[str]:
    """One line per side, the fastest last, with the median tokens per second or milliseconds."""
    base, job = part.base, part.job
    width = max(len(name) for name in part.sides)
    unit = "tokens/s" if job.counted > 1 else "ms"
    head = f"{job.name:{width}}   ratio      min..max  {unit:>8}  same tokens  setting"
    lines = [head, "-" * len(head)]
    for side in sorted(part.sides.values(), key=lambda side: median(side.seconds), reverse=True):
        speed, taken = ratios(side, base), median(side.seconds)
        spread = f"{min(speed):.2f}..{max(speed):.2f}"
        number = job.counted / taken if job.counted > 1 else taken * 1000
        lines.append(
            f"{side.name:{width}}  {median(speed):6.2f}  {spread:>12}  {number:8.0f}  {side.same:11.0%}  {side.said()}"
        )
    disturbed = max(share for side in part.sides.values() for share in side.others)
    note = f"others used at most {disturbed:.0%} of the processor"
    return [*lines, f"(ratios and tokens refer to {base.name}; {note})"]


def memory_table(bytes_of: dict[str, dict[str, int]]) -> list[str]:
    """Peak memory above the imported library. Mapped files can be reclaimed by the system, but are counted."""
    width = max(12, *map(len, bytes_of))
    head = f"{'memory, MB':{width}}   peak  cache  peak - cache  at the end: own  files"
    lines = [head, "-" * len(head)]
    for name, found in bytes_of.items():
        peak, cache, own, file = (found[key] / 1e6 for key in ("peak", "cache", "own", "file"))
        lines.append(f"{name:{width}}  {peak:5.0f}  {cache:5.1f}  {peak - cache:12.0f}  {own:15.0f}  {file:5.0f}")
    return lines


def perplexity_table(found: dict[str, float]) -> list[str]:
    """The perplexity of each side on the text."""
    base, width = found.get("pellucid-float32"), max(map(len, found))
    above = {name: f"{value / base - 1:+8.2%}" if base else "" for name, value in found.items()}
    lines = [f"{name:{width}}  {value:8.4f}  {above[name]}" for name, value in found.items()]
    return ["perplexity, and how much it is above that of pellucid-float32", *lines]


def _speed(promise: Promise, part: Part) -> str:
    """One promise of speed as a line of text."""
    own, peer = part.fastest(promise.own), part.fastest(promise.peer)
    if own is None or peer is None:
        missing = promise.own if own is None else promise.peer
        return f"{part.job.name}: {promise.own} / {promise.peer} = - ({missing} did not run)"
    shares = ratios(own, peer)
    said = f"{part.job.name}: {own.name} / {peer.name} = {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
    return said + _kept(median(shares), promise.least, promise.aim)


def _kept(found: float, least: float | None, aim: float | None) -> str:
    if least is None:
        return ""
    word = "kept" if found >= least else "MISSED"
    return f", promise {least}: {word}" + (f", aim {aim}" if aim else "")


def _same(part: Part) -> list[str]:
    exact = [side for side in part.sides.values() if side.precision == "float32"]
    shares = ", ".join(f"{side.name} {side.same:.1%}" for side in exact if side is not part.base)
    return [f"{part.job.name}: tokens that are those of {part.base.name}: {shares}"] if len(exact) > 1 else []


def _memory(bytes_of: dict[str, dict[str, int]], file: int) -> list[str]:
    found = bytes_of.get("pellucid-int4")
    if found is None:
        return ["memory: pellucid-int4 did not run"]
    share = (found["peak"] - found["cache"]) / file
    word = "kept" if share <= MEMORY else "MISSED"
    said = [f"memory: pellucid-int4 = {share:.2f} x the file, above imports and cache, promise {MEMORY}: {word}"]
    if (later := bytes_of.get("pellucid-int4" + AWAKE)) is not None:
        share = (later["peak"] - later["cache"]) / file
        said.append(f"memory: {share:.2f} x the file, where the library had written before and its own code was there")
    return said


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
    parts: dict[str, Part], bytes_of: dict[str, dict[str, int]] | None, found: dict[str, float] | None, file: int
) -> list[str]:
    """One line per promise of the parts that were run, or that a peer is missing."""
    lines = [_speed(promise, parts[promise.part]) for promise in PROMISES if promise.part in parts]
    lines += [line for part in parts.values() if part.job.new > 1 for line in _same(part)]
    lines += _memory(bytes_of, file) if bytes_of is not None else []
    return lines + (_perplexity(found) if found is not None else [])
