"""The same questions by hand. Sub-commands are found by name and loaded when they are called, so that help is quick."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

PATIENCE = 5.0
"""Seconds that clearing away may take."""


def main() -> None:
    """The command `pellucid`."""
    _open_what_is_closed()
    _check_place()
    _end_in_order()
    try:
        from pellucid.cli.app import app
        from pellucid.cli.errors import run

        atexit.register(gc.freeze)  # or Python walks all that torch has made once more before it ends: 0.3 s and more
        code = run(app)
    except KeyboardInterrupt:  # while Python still reads what could say so, or once more while it was said
        print("pellucid: interrupted", file=sys.stderr)  # noqa: T201
        code = 130
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # one more then ends Python without a traceback
    if code == 130:
        _at_the_latest(0.5, os._exit, code)  # all is cleared away: what still runs is a thread that nobody told
    sys.exit(code)


def _end_in_order() -> None:
    """Whoever ends a command by SIGTERM or SIGHUP finds no half-written file: each is taken away, as after Ctrl-C. Then
    it ends by that very signal; a second one ends it at once."""
    asked: list[int] = []

    def leave(number: int, where: FrameType | None) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_DFL)
        if _imports(where):
            os.kill(os.getpid(), number)
        asked.append(number)
        _at_the_latest(PATIENCE, os.kill, os.getpid(), number)
        sys.exit(128 + number)

    def end() -> None:
        for number in asked:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os.kill(os.getpid(), number)

    there = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [one for one in there if signal.getsignal(one) is signal.SIG_DFL]  # `nohup` has one of them passed over
    for one in heard:
        signal.signal(one, leave)
    atexit.register(end)  # the first that is registered is the last that is done


def _imports(frame: FrameType | None) -> bool:
    """Whether a library is being imported there. What is raised within may abort the process with a page of words, or
    be taken for another error."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _at_the_latest(seconds: float, end: Callable[..., object], *how: int) -> None:
    """Ends the process if it is still there then: Python waits for threads of other libraries, which hear nothing."""
    timer = threading.Timer(seconds, end, how)
    timer.daemon = True
    timer.start()


def _check_place() -> None:
    """A library of PyTorch's ends the process with words of its own where the folder it is in has been deleted."""
    try:
        Path.cwd()
    except OSError as error:
        why = error.strerror or error
        print(f"pellucid: cannot read the folder that this is run in: {why}; go to another one", file=sys.stderr)  # noqa: T201
        sys.exit(3)


def _open_what_is_closed() -> None:
    """Python has None for a stream that a shell closed (`>&-`): what is said there is heard by nobody."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
