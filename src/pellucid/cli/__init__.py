"""The same questions by hand. Sub-commands are found by name and loaded when they are called, so that help is quick."""

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
    handle_termination()
    try:
        code = _run()
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # one more then ends Python without a traceback
        if code == INTERRUPTED:
            end_after(0.5, os._exit, code)  # all is cleared away: what still runs is a thread that nobody told
    except KeyboardInterrupt:  # once more, on the way out
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        code = INTERRUPTED
    sys.exit(code)


def _run() -> int:
    """What the command says, and the code that it ends with. Ctrl-C is Python's own again behind it."""
    before = signal.getsignal(signal.SIGINT)
    try:
        from pellucid.cli.app import app
        from pellucid.cli.errors import run
        from pellucid.errors import handle_sigint

        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, handle_sigint)
        atexit.register(gc.freeze)  # or Python walks all that torch has made once more before it ends: 0.3 s and more
        return run(app)
    except KeyboardInterrupt:  # while Python still reads what could say so, or once more while it was said
        print("pellucid: interrupted", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _check_working_folder() -> None:
    """A library of PyTorch's ends the process with words of its own where the folder it is in has been deleted."""
    try:
        Path.cwd()
    except OSError as error:
        why = error.strerror or error
        print(f"pellucid: cannot read the folder that this is run in: {why}; go to another one", file=sys.stderr)  # noqa: T201
        sys.exit(3)


def _reopen_closed_streams() -> None:
    """Python has None for a stream that a shell closed (`>&-`): what is said there is heard by nobody."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _buffer_stdout() -> None:
    """With PYTHONUNBUFFERED, a write that the system takes in part loses the rest, and says nothing: an answer that a
    full disk cut would be taken for a whole one. So all goes through a buffer, which each line that is said empties."""
    own = sys.stdout is sys.__stdout__  # and nobody else's
    if own and isinstance(sys.stdout, io.TextIOWrapper) and isinstance(sys.stdout.buffer, io.RawIOBase):
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        whole = io.BufferedWriter(sys.stdout.detach())  # pyrefly: ignore[bad-argument-type]
        sys.stdout = sys.__stdout__ = io.TextIOWrapper(whole, encoding, errors, write_through=True)
