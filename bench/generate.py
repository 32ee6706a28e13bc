"""Generates with pellucid and every peer in one run: one text, sixteen at once, the first token, memory, perplexity.

PELLUCID_SHARED=FOLDER python bench/generate.py [--parts a,b] [--sides a,b] [--rounds 3] [--quick] [--json FILE]
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from convert import ConversionError, converted
from corpus import CorpusError
from generate_jobs import Job, read_jobs
from generate_report import AFTER_USE, GenerationResult, PartResult, memory_table, perplexity_table, table, verdicts
from generate_sides import GenerationCommands, sides
from machine import decoder_file
from session import Session, exit_with, selected_names
from side import Setting, Workspace
from side_process import SideError, SideProcess
from timing import order_of_round

PARTS = {
    "a": "one text, token after token",
    "b": "sixteen texts at once",
    "c": "the first token after 1,000",
    "d": "peak memory",
    "e": "perplexity",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = "; ".join(f"{letter} {what}" for letter, what in PARTS.items())
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of, with commas: {parts}")
    parser.add_argument("--sides", help=f"some of, with commas: {', '.join(sides())}")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds after one warm-up (default 3)")
    parser.add_argument("--quick", action="store_true", help="few tokens, one round, no waiting for quiet: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    options.parts = selected_names(options.parts, PARTS, "part")
    options.sides = selected_names(options.sides, sides(), "side")
    return options


@dataclass
class RunningSide:
    """A side that runs: a process for each environment in which it may be fastest.

    best: the fastest process for the current job.
    """

    name: str
    processes: list[SideProcess]
    best: SideProcess = field(init=False)
    settings: dict[str, tuple[dict[str, str], Setting]] = field(default_factory=dict)

    def tune_for(self, part: str, job: Job) -> GenerationResult:
        """Chooses environment and setting for a job, and runs it once."""
        self.best = self.processes[0] if len(self.processes) == 1 else self._fastest(job)
        setting, tokens = self.best.call("tune_for", job)
        self.settings[part] = self.best.environment, setting
        precision = sides()[self.name]().precision
        return GenerationResult(self.name, self.best.environment | setting, precision=precision, tokens=tokens)

    def _fastest(self, job: Job) -> SideProcess:
        by_seconds: dict[float, SideProcess] = {}
        reason = SideError("no process")
        for process in self.processes:
            try:
                by_seconds[process.call("trial_seconds", job)] = process
            except SideError as failure:
                reason = failure
        if not by_seconds:
            raise reason
        return by_seconds[min(by_seconds)]

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


def start_side(name: str, workspace: Workspace) -> RunningSide | None:
    """Starts a side; prints the reason if it cannot run."""
    running, begun, reason = RunningSide(name, []), time.perf_counter(), None
    for environment in sides()[name]().environments:
        process = SideProcess(name, partial(GenerationCommands, name), workspace, environment)
        try:
            process.call("prepare", workspace)
            running.processes.append(process)
        except SideError as failure:
            reason = failure
            process.stop()
    if not running.processes:
        print(f"{name}: left out, {reason}", flush=True)
        return None
    print(f"{name}: open in {time.perf_counter() - begun:.0f} s", flush=True)
    return running


def prepare(letter: str, job: Job, running_sides: Sequence[RunningSide]) -> tuple[PartResult, list[RunningSide]]:
    """Tunes and warms up all sides; returns them, and those that can run the job."""
    part, measured = PartResult(job), list[RunningSide]()
    for running in running_sides:
        begun = time.perf_counter()
        try:
            part.sides[running.name] = running.tune_for(letter, job)
        except SideError as reason:
            print(f"{running.name}: left out, {reason}", flush=True)
            continue
        measured.append(running)
        setting = part.sides[running.name].setting_text()
        print(f"{running.name}: {setting} (ready in {time.perf_counter() - begun:.0f} s)", flush=True)
    return part, measured


def measure(letter: str, job: Job, running_sides: Sequence[RunningSide], rounds: int) -> PartResult:
    """Measures one part: every side once per round, in alternating order."""
    print(f"\n{letter}. {PARTS[letter]}", flush=True)
    part, measured = prepare(letter, job, running_sides)
    for number in range(rounds):
        for running in order_of_round(measured, number):  # a copy, since a side may be removed
            try:
                seconds, others = running.best.call("measure")
            except SideError as reason:
                print(f"{running.name}: left out, {reason}", flush=True)
                measured.remove(running)
                del part.sides[running.name]
                continue
            part.sides[running.name].seconds.append(seconds)
            part.sides[running.name].others.append(others)
    if part.sides:
        part.compare()
        print("", *table(part), sep="\n", flush=True)
    return part


def perplexities(windows: list[list[int]], running_sides: Sequence[RunningSide]) -> dict[str, float]:
    """The perplexity of every side that can score texts."""
    print(f"\ne. {PARTS['e']}", flush=True)
    found: dict[str, float] = {}
    for running in running_sides:
        try:
            found[running.name] = running.processes[0].call("perplexity", windows)
        except SideError as reason:
            print(f"{running.name}: left out, {reason}", flush=True)
    if found:
        print("", *perplexity_table(found), sep="\n", flush=True)
    return found


def memory(job: Job, workspace: Workspace, running_sides: Sequence[RunningSide]) -> dict[str, dict[str, int]]:
    """Peak memory of a fresh process per side, at its fastest setting for one text; pellucid also after earlier use."""
    print(f"\nd. {PARTS['d']}: load, then read {len(job.prompts[0])} tokens and generate {job.new_tokens}", flush=True)
    found: dict[str, dict[str, int]] = {}
    for running, used in [(running, used) for running in running_sides for used in (False, True)]:
        if used and not running.name.startswith("pellucid"):
            continue
        environment, setting = running.settings.get("a", (running.processes[0].environment, {}))
        name = running.name + AFTER_USE * used
        process = SideProcess(running.name, partial(GenerationCommands, running.name), workspace, environment)
        try:
            found[name] = process.call("memory", workspace, job, setting, used)
        except SideError as reason:
            print(f"{name}: left out, {reason}", flush=True)
        process.stop()
    if found:
        print("", *memory_table(found), sep="\n", flush=True)
    return found


def run(options: argparse.Namespace, workspace: Workspace, session: Session) -> dict[str, object]:
    """Runs the requested parts in the order a, b, c, e, d: memory last, after the other processes have ended.

    Adds to the verdicts of the session and returns the numbers.
    """
    letters = options.parts
    jobs, windows = read_jobs(converted("checkpoint", workspace.model, workspace.scratch), options.quick)
    rounds = 1 if options.quick else options.rounds
    running_sides = [running for name in options.sides if (running := start_side(name, workspace)) is not None]
    parts = {letter: measure(letter, jobs[letter], running_sides, rounds) for letter in letters if letter in "abc"}
    perplexity = perplexities(windows, running_sides) if "e" in letters else None
    for running in running_sides:
        running.stop()
    memory_use = memory(jobs["d"], workspace, running_sides) if "d" in letters else None
    parts = {letter: part for letter, part in parts.items() if part.sides}
    session.verdicts += verdicts(parts, memory_use, perplexity, workspace.model.stat().st_size)
    print()
    numbers = {letter: part.as_dict() for letter, part in parts.items()}
    return {"parts": numbers, "memory": memory_use, "perplexity": perplexity}


def exit_on_sigterm(*_: object) -> None:
    """Handles SIGTERM by exiting, so that the temporary folder with a gigabyte of conversions is removed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> None:
    options, model = arguments(), decoder_file()
    signal.signal(signal.SIGTERM, exit_on_sigterm)
    session = Session(with_torch=True)
    with tempfile.TemporaryDirectory(prefix="pellucid-bench-") as scratch:
        try:
            numbers = run(options, Workspace(model, Path(scratch), session.machine.threads), session)
        except (CorpusError, ConversionError) as missing:
            exit_with(missing)
    session.end(options.json, **numbers)


if __name__ == "__main__":
    main()
