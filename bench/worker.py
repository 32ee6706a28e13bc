"""One process per side, so that no library's waiting threads or settings disturb another's measurement.

The process holds its model for the whole run and times itself; the parent only says whose turn it is.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from machine import Others, wait_for_quiet
from peers import sides
from side import Place, Setting, Side, UnavailableError

DISTURBED = 0.05  # the share of the processor that other processes may use while a side is measured
TURNS = 3  # how often a disturbed measurement is tried
REST = 0.3  # seconds between two turns: longer than OpenMP's threads spin after their work


class SideError(Exception):
    """A side could not be prepared or died; the message says why in one line."""


@dataclass
class Answer:
    """What a process sends back: a value, or the reason why there is none."""

    value: Any = None
    error: str | None = None


def timed(side: Side, texts: Sequence[str]) -> tuple[float, float]:
    """Seconds, and the share of the processor that others used: the least disturbed of up to three turns."""
    turns: list[tuple[float, float]] = []
    while len(turns) < TURNS:
        others, begun = Others(), time.perf_counter()
        side.embed(texts)
        turns.append((time.perf_counter() - begun, others.share()))
        if turns[-1][1] < DISTURBED:
            break
        wait_for_quiet(DISTURBED)
    return min(turns, key=lambda turn: turn[1])


def tune(side: Side, texts: Sequence[str]) -> Setting:
    """The fastest value of each axis, one axis after the other; each value warmed up, best of two."""
    best = {axis: values[0] for axis, values in side.axes.items()}
    for axis, values in side.axes.items():
        taken: dict[Any, float] = {}
        for value in values if len(values) > 1 else ():
            side.configure(best | {axis: value})
            side.embed(texts)
            taken[value] = min(timed(side, texts)[0] for _ in range(2))
        best[axis] = min(taken, key=taken.__getitem__) if taken else best[axis]
    side.configure(best)
    return best


class _Desk:
    """The commands that a process answers."""

    def __init__(self, name: str) -> None:
        self.side = sides()[name]()

    def prepare(self, place: Place, sample: Sequence[str]) -> Setting:
        self.side.prepare(place)
        return tune(self.side, sample)

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """The warm-up: a whole pass whose result is compared."""
        self.texts = list(texts)
        return self.side.embed(self.texts)

    def measure(self) -> tuple[float, float]:
        return timed(self.side, self.texts)

    def padding(self) -> float | None:
        return self.side.padding(self.texts)


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


def _serve(name: str, log: Path, pipe: Connection) -> None:
    """The process: libraries talk into ``log``, answers go through ``pipe``."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    desk = _Desk(name)
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            command, *arguments = pipe.recv()
            pipe.send(_answer(getattr(desk, command), tuple(arguments)))


class Worker:
    """The parent's end of one side."""

    def __init__(self, name: str, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.place = name, place
        self.pipe, end = context.Pipe()
        log = place.scratch / f"{name}.log"
        self.process = context.Process(target=_serve, args=(name, log, end), daemon=True)
        self.process.start()
        end.close()

    def ask(self, command: str, *arguments: Any) -> Any:
        """Sends a command and waits; ``SideError`` with one line if it did not work."""
        try:
            self.pipe.send((command, *arguments))
            answer: Answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise SideError(f"its process ended with code {self.process.exitcode}") from None
        if answer.error is not None:
            raise SideError(answer.error)
        time.sleep(REST)
        return answer.value

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
