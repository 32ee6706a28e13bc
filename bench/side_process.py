"""One process per side, so that no library's waiting threads or settings disturb another's measurement.

The process holds its model for the whole run and times itself; the parent only decides which one runs next.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from machine import Others, wait_for_quiet
from side import Place, Setting, UnavailableError

DISTURBED = 0.05  # the share of the processor above which other processes disturb a measurement
TURNS = 3  # attempts at a disturbed measurement
REST = 0.3  # seconds between two turns: longer than OpenMP's threads spin after their work


class SideError(Exception):
    """A side could not be prepared, or its process ended; the message gives the reason in one line."""


@dataclass
class Answer:
    """The response of a process: a value, or the reason why there is none."""

    value: Any = None
    error: str | None = None


def clocked(call: Callable[..., object], *arguments: Any) -> float:
    """The seconds that a call takes."""
    begun = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begun


def timed(work: Callable[[], float], most: int = TURNS) -> tuple[float, float]:
    """The result of ``work``, and the share of the processor used by others: of ``most`` turns the least disturbed."""
    turns: list[tuple[float, float]] = []
    while len(turns) < most:
        others = Others()
        turns.append((work(), others.share()))
        if turns[-1][1] < DISTURBED:
            break
        if len(turns) < most:
            wait_for_quiet(DISTURBED)
    return min(turns, key=lambda turn: turn[1])


def tune(
    axes: dict[str, list[Any]],
    configure: Callable[[Setting], None],
    work: Callable[[], float],
    *,
    warm: Callable[[], float] | None = None,
    times: int = 2,
    most: int = TURNS,
) -> Setting:
    """Tunes one axis after the other; each value is warmed up and counts by the best of ``times`` runs."""
    best = {axis: values[0] for axis, values in axes.items()}
    for axis, values in axes.items():
        taken: dict[Any, float] = {}
        for value in values if len(values) > 1 else ():
            configure(best | {axis: value})
            (warm or work)()
            taken[value] = min(timed(work, most)[0] for _ in range(times))
        best[axis] = min(taken, key=taken.__getitem__) if taken else best[axis]
    configure(best)
    return best


def _answer(call: Callable[..., Any], arguments: tuple) -> Answer:
    try:
        return Answer(call(*arguments))
    except UnavailableError as reason:
        return Answer(error=str(reason))
    except ImportError as missing:
        return Answer(error=f"not installed: {missing}")
    except Exception as failure:  # noqa: BLE001 - a peer may fail in any way; the run goes on without it
        said = str(failure).strip().splitlines() or ["no message"]
        return Answer(error=f"{type(failure).__name__}: {said[0][:300]}")


def _serve(desk: Callable[[], Any], environment: dict[str, str], log: Path, pipe: Connection) -> None:
    """The loop of the process: output of libraries goes to ``log``, answers go through ``pipe``."""
    os.environ.update(environment)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    commands = desk()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            command, *arguments = pipe.recv()
            pipe.send(_answer(getattr(commands, command), tuple(arguments)))


class Worker:
    """The parent's handle of one side.

    desk: makes, in the process, the object whose methods are the commands.  environment: variables of the process.
    """

    def __init__(
        self, name: str, desk: Callable[[], Any], place: Place, environment: dict[str, str] | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.environment = name, environment or {}
        self.pipe, end = context.Pipe()
        self.log = place.scratch / f"{'-'.join((name, *self.environment.values()))}.log"
        self.process = context.Process(target=_serve, args=(desk, self.environment, self.log, end), daemon=True)
        self.process.start()
        end.close()

    def ask(self, command: str, *arguments: Any) -> Any:
        """Sends a command and waits for the answer. Raises SideError, with one line, if it fails."""
        try:
            self.pipe.send((command, *arguments))
            answer: Answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:] if self.log.exists() else []
            raise SideError(": ".join([f"its process ended with code {self.process.exitcode}", *last])) from None
        if answer.error is not None:
            raise SideError(answer.error)
        time.sleep(REST)
        return answer.value

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
