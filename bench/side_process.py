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

from side import UnavailableError, Workspace

PAUSE = 0.3
"""Seconds between two commands: longer than OpenMP's threads spin after their work."""


class SideError(Exception):
    """A side could not be prepared, or its process ended; the message gives the reason in one line."""


@dataclass
class Reply:
    """What a process returns for a command: a value, or the reason why there is none."""

    value: Any = None
    error: str | None = None


def _execute(command: Callable[..., Any], arguments: tuple) -> Reply:
    try:
        return Reply(command(*arguments))
    except UnavailableError as reason:
        return Reply(error=str(reason))
    except ImportError as missing:
        return Reply(error=f"not installed: {missing}")
    except Exception as failure:  # noqa: BLE001 - a peer may fail in any way; the run goes on without it
        lines = str(failure).strip().splitlines() or ["no message"]
        return Reply(error=f"{type(failure).__name__}: {lines[0][:300]}")


def _serve(make_commands: Callable[[], Any], environment: dict[str, str], log: Path, pipe: Connection) -> None:
    """The loop of the process: output of libraries goes to ``log``, replies go through ``pipe``."""
    os.environ.update(environment)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    commands = make_commands()
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            name, *arguments = pipe.recv()
            pipe.send(_execute(getattr(commands, name), tuple(arguments)))


class SideProcess:
    """The parent's handle of the process of one side.

    make_commands: makes, in the process, the object whose methods are the commands.
    environment: variables of the process.
    """

    def __init__(
        self,
        name: str,
        make_commands: Callable[[], Any],
        workspace: Workspace,
        environment: dict[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name, self.environment = name, environment or {}
        self.pipe, end = context.Pipe()
        self.log = workspace.scratch / f"{'-'.join((name, *self.environment.values()))}.log"
        arguments = (make_commands, self.environment, self.log, end)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        end.close()

    def call(self, command: str, *arguments: Any) -> Any:
        """Executes a command and returns its value. Raises SideError, with one line, if it fails."""
        try:
            self.pipe.send((command, *arguments))
            reply: Reply = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:] if self.log.exists() else []
            raise SideError(": ".join([f"its process ended with code {self.process.exitcode}", *last])) from None
        if reply.error is not None:
            raise SideError(reply.error)
        time.sleep(PAUSE)
        return reply.value

    def stop(self) -> None:
        """Ends the process, by force after five seconds."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
