"""The command line. Sub-commands are found by name and imported when they are called, so that help is fast."""

import atexit
import gc
import io
import os
import signal
import sys
from pathlib import Path

from pellucid.cli.signals import INTERRUPTED, end_after, handle_termination


def main() -> None:
    """The command `pellucid`."""
    _reopen_closed_streams()
    _buffer_stdout()
    _check_working_folder()
    terminating = handle_termination()
    try:
        code = _run()
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a further Ctrl-C then shows no traceback
        for one in terminating:  # nor do they, from here on
            signal.signal(one, signal.SIG_DFL)
        if code == INTERRUPTED:
            end_after(0.5, os._exit, code)  # all is cleaned up: only threads that ignore it are left
    except KeyboardInterrupt:  # a second one, during the exit
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        code = INTERRUPTED
    sys.exit(code)


def _run() -> int:
    """Runs the command, and returns its exit code. Afterwards Ctrl-C has Python's own handler again."""
    before = signal.getsignal(signal.SIGINT)
    try:
        from pellucid.cli.app import app
        from pellucid.cli.errors import run
        from pellucid.errors import handle_sigint

        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, handle_sigint)
        atexit.register(gc.freeze)  # spares a garbage collection of all torch objects at exit, 0.3 s or more
        return run(app)
    except KeyboardInterrupt:  # during the imports, or again while the first was reported
        print("pellucid: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _check_working_folder() -> None:
    """Ends with a clear error where the working folder was deleted, in which a library of PyTorch's would abort."""
    try:
        Path.cwd()
    except OSError as error:
        why = error.strerror or error
        print(f"pellucid: cannot read the folder that this is run in: {why}; go to another one", file=sys.stderr)  # noqa: T201
        sys.exit(3)


def _reopen_closed_streams() -> None:
    """Opens /dev/null for each standard stream that the shell closed (`>&-`), which is None in Python."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _buffer_stdout() -> None:
    """With PYTHONUNBUFFERED, a partial write loses the rest without an error, so that output cut off by a full disk
    would pass as complete. So all output goes through a buffer, which is flushed after each message."""
    own = sys.stdout is sys.__stdout__  # not replaced
    if own and isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        whole = io.BufferedWriter(sys.stdout.detach())  # pyrefly: ignore[bad-argument-type]
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(whole, encoding, errors, write_through=True)
