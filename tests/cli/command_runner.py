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

RunCommand = Callable[..., "CommandResult"]


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """A stream whose reader has exited, as before `| head`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "w", encoding="utf-8") as out:
        yield out


def command_runner(patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> RunCommand:
    """Returns a function that runs a command line; `stdin` is the typed text or the piped bytes."""
    patch.setenv("COLUMNS", "100")

    def run_command(*arguments: Any, stdin: str | bytes = "") -> CommandResult:
        patch.setattr(sys, "argv", ["pellucid", *map(str, arguments)])
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capture.readouterr()
        try:
            code = run(app)
        except SystemExit as ended:  # with which a process exits
            code = int(ended.code or 0)
        return CommandResult(code, *capture.readouterr())

    return run_command
