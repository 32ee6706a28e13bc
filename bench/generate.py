"""Generates with pellucid and every peer in one run: one text, sixteen at once, the first token, memory, perplexity.

PELLUCID_SHARED=FOLDER python bench/generate.py [--parts a,b] [--sides a,b] [--rounds 3] [--quick] [--json FILE]
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from convert import ConversionError, converted
from corpus import CorpusError
from generate_jobs import Job, read_jobs
from generate_report import AWAKE, Outcome, Part, memory_table, perplexity_table, table, verdicts
from generate_sides import Desk, sides
from machine import decoder_file, describe, quiet_environment
from side import Place, Setting
from side_process import SideError, Worker

PARTS = {
    "a": "one text, token after token",
    "b": "sixteen texts at once",
    "c": "the first token behind 1,000",
    "d": "peak memory",
    "e": "perplexity",
}


def chosen(asked: str | None, known: Iterable[str], what: str) -> list[str]:
    """The requested names among ``known``; all of them by default."""
    known = list(known)
    names = asked.split(",") if asked else known
    if unknown := [name for name in names if name not in known]:
        print(f"bench: no {what} {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        sys.exit(2)
    return [name for name in known if name in names]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = "; ".join(f"{letter} {what}" for letter, what in PARTS.items())
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of, with commas: {parts}")
    parser.add_argument("--sides", help=f"some of, with commas: {', '.join(sides())}")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one warm-up (default 3)")
    parser.add_argument("--quick", action="store_true", help="few tokens, one round, no waiting for quiet: a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    options.parts = chosen(options.parts, PARTS, "part")
    options.sides = chosen(options.sides, sides(), "side")
    return options


@dataclass
class Crew:
    """One side: a process for each environment in which it may be fastest.

    best: the fastest process for the current job.
    """

    name: str
    workers: list[Worker]
    best: Worker = field(init=False)
    settings: dict[str, tuple[dict[str, str], Setting]] = field(default_factory=dict)

    def ready(self, part: str, job: Job) -> Outcome:
        """Chooses environment and setting for a job, and runs it once."""
        self.best = self.workers[0] if len(self.workers) == 1 else self._fastest(job)
        setting, tokens = self.best.ask("ready", job)
        self.settings[part] = self.best.environment, setting
        return Outcome(self.name, sides()[self.name]().precision, self.best.environment | setting, tokens=tokens)

    def _fastest(self, job: Job) -> Worker:
        taken: dict[float, Worker] = {}
        reason = SideError("no process")
        for worker in self.workers:
            try:
                taken[worker.ask("trial", job)] = worker
            except SideError as failure:
                reason = failure
        if not taken:
            raise reason
        return taken[min(taken)]

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


def enter(name: str, place: Place) -> Crew | None:
    """Starts a side; prints the reason if it cannot run."""
    crew, begun, reason = Crew(name, []), time.perf_counter(), None
    for environment in sides()[name]().environments:
        worker = Worker(name, partial(Desk, name), place, environment)
        try:
            worker.ask("prepare", place)
            crew.workers.append(worker)
        except SideError as failure:
            reason = failure
            worker.stop()
    if not crew.workers:
        print(f"{name}: left out, {reason}", flush=True)
        return None
    print(f"{name}: open in {time.perf_counter() - begun:.0f} s", flush=True)
    return crew


def prepare(letter: str, job: Job, crews: Sequence[Crew]) -> tuple[Part, list[Crew]]:
    """Tunes and warms up all sides; returns them, and those that can run the job."""
    part, able = Part(job), []
    for crew in crews:
        begun = time.perf_counter()
        try:
            part.sides[crew.name] = crew.ready(letter, job)
        except SideError as reason:
            print(f"{crew.name}: left out, {reason}", flush=True)
            continue
        able.append(crew)
        said = part.sides[crew.name].said()
        print(f"{crew.name}: {said} (ready in {time.perf_counter() - begun:.0f} s)", flush=True)
    return part, able


def measure(letter: str, job: Job, crews: Sequence[Crew], rounds: int) -> Part:
    """Measures one part: every side once per round, in alternating order."""
    print(f"\n{letter}. {PARTS[letter]}", flush=True)
    part, able = prepare(letter, job, crews)
    for turn in range(rounds):
        for crew in able[:: 1 if turn % 2 == 0 else -1]:  # a copy, since a side may be removed
            try:
                seconds, others = crew.best.ask("measure")
            except SideError as reason:
                print(f"{crew.name}: left out, {reason}", flush=True)
                able.remove(crew)
                del part.sides[crew.name]
                continue
            part.sides[crew.name].seconds.append(seconds)
            part.sides[crew.name].others.append(others)
    if part.sides:
        part.compare()
        print("", *table(part), sep="\n", flush=True)
    return part


def perplexities(windows: list[list[int]], crews: Sequence[Crew]) -> dict[str, float]:
    """The perplexity of every side that can score texts."""
    print(f"\ne. {PARTS['e']}", flush=True)
    found: dict[str, float] = {}
    for crew in crews:
        try:
            found[crew.name] = crew.workers[0].ask("perplexity", windows)
        except SideError as reason:
            print(f"{crew.name}: left out, {reason}", flush=True)
    if found:
        print("", *perplexity_table(found), sep="\n", flush=True)
    return found


def memory(job: Job, place: Place, crews: Sequence[Crew]) -> dict[str, dict[str, int]]:
    """Peak memory of a fresh process per side, at its fastest setting for one text; pellucid also after earlier use."""
    print(f"\nd. {PARTS['d']}: load, then read {len(job.prompts[0])} tokens and write {job.new}", flush=True)
    found: dict[str, dict[str, int]] = {}
    for crew, awake in [(crew, awake) for crew in crews for awake in (False, True)]:
        if awake and not crew.name.startswith("pellucid"):
            continue
        environment, setting = crew.settings.get("a", (crew.workers[0].environment, {}))
        worker, name = Worker(crew.name, partial(Desk, crew.name), place, environment), crew.name + AWAKE * awake
        try:
            found[name] = worker.ask("memory", place, job, setting, awake)
        except SideError as reason:
            print(f"{name}: left out, {reason}", flush=True)
        worker.stop()
    if found:
        print("", *memory_table(found), sep="\n", flush=True)
    return found


def write(file: Path, numbers: dict[str, object]) -> None:
    """Writes all results as JSON, to a temporary file that is then renamed."""
    part = file.with_name(f"{file.name}.tmp")
    part.write_text(json.dumps(numbers, indent=2) + "\n")
    part.replace(file)


def run(options: argparse.Namespace, place: Place) -> dict[str, object]:
    """Runs the requested parts in the order a, b, c, e, d: memory last, after the other processes have ended."""
    letters = options.parts
    jobs, windows = read_jobs(converted("checkpoint", place.model, place.scratch), options.quick)
    rounds = 1 if options.quick else options.rounds
    crews = [crew for name in options.sides if (crew := enter(name, place)) is not None]
    parts = {letter: measure(letter, jobs[letter], crews, rounds) for letter in letters if letter in "abc"}
    found = perplexities(windows, crews) if "e" in letters else None
    for crew in crews:
        crew.stop()
    bytes_of = memory(jobs["d"], place, crews) if "d" in letters else None
    parts = {letter: part for letter, part in parts.items() if part.sides}
    said = verdicts(parts, bytes_of, found, place.model.stat().st_size)
    print("", *said, sep="\n")
    numbers = {letter: part.as_dict() for letter, part in parts.items()}
    return {"parts": numbers, "memory": bytes_of, "perplexity": found, "verdicts": said}


def leave(*_: object) -> None:
    """Handles SIGTERM by exiting, so that the temporary folder with a gigabyte of conversions is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    options, begun = arguments(), time.perf_counter()
    signal.signal(signal.SIGTERM, leave)
    quiet_environment()
    machine, model = describe(), decoder_file()
    print(*machine.lines(), "", sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        try:
            numbers = run(options, Place(model, Path(scratch), machine.threads))
        except (CorpusError, ConversionError) as missing:
            print(missing, file=sys.stderr)
            sys.exit(2)
    print(f"({time.perf_counter() - begun:.0f} s)")
    if options.json:
        write(options.json, {"machine": machine.as_dict()} | numbers)


if __name__ == "__main__":
    main()
