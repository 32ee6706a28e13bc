"""How a command ends when somebody ends it: in order, and not too late."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130
"""The code of a command that Ctrl-C has ended, as shells have it: 128, and the number of the signal."""

CLEANUP_SECONDS = 5.0
"""Seconds that clearing away may take."""


def handle_termination() -> None:
    """Whoever ends a command by SIGTERM or SIGHUP finds no half-written file: each is taken away, as after Ctrl-C. Then
    it ends by that very signal; a second one ends it at once."""
    received: list[int] = []

    def leave(number: int, where: FrameType | None) -> None:
        for one in handled:
            signal.signal(one, signal.SIG_DFL)
        if _is_importing(where):
            os.kill(os.getpid(), number)
        received.append(number)
        end_after(CLEANUP_SECONDS, os.kill, os.getpid(), number)
        sys.exit(128 + number)

    def end() -> None:
        for number in received:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            os.kill(os.getpid(), number)

    known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [one for one in known if signal.getsignal(one) is signal.SIG_DFL]  # `nohup` has one of them passed over
    for one in handled:
        signal.signal(one, leave)
    atexit.register(end)  # the first that is registered is the last that is done


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a library is being imported there. What is raised within may abort the process with a page of words, or
    be taken for another error."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def end_after(seconds: float, end: Callable[..., object], *arguments: int) -> None:
    """Ends the process if it is still there then: Python waits for threads of other libraries, which hear nothing."""
    timer = threading.Timer(seconds, end, arguments)
    timer.daemon = True
    timer.start()
