"""Runs `pellucid ...` as typed, in the process of a test."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import pytest

from pellucid.cli.app import app
from pellucid.cli.errors import run

Pellucid = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def nobody_reads() -> Iterator[TextIO]:
    """A stream whose reader has exited, as before `| head`."""
    end, place = os.pipe()
    os.close(end)
    with contextlib.suppress(BrokenPipeError), os.fdopen(place, "w", encoding="utf-8") as out:
        yield out


def caller(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Pellucid:
    """Returns a function that runs a command line; `stdin` is the typed text or the piped bytes."""
    patch.setenv("COLUMNS", "100")

    def called(*typed: Any, stdin: str | bytes = "") -> Done:
        patch.setattr(sys, "argv", ["pellucid", *map(str, typed)])
        piped = stdin if isinstance(stdin, bytes) else stdin.encode()
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="utf-8"))
        capture.readouterr()
        try:
            code = run(app)
        except SystemExit as ended:  # with which a process exits
            code = int(ended.code or 0)
        return Done(code, *capture.readouterr())

    return called
