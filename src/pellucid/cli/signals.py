"""Ends a command on a signal: with cleanup, but within a time limit."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells: 128 plus the number of the signal."""

CLEANUP_SECONDS = 5.0
"""The most seconds for cleanup."""


def handle_termination() -> list[signal.Signals]:
    """On SIGTERM or SIGHUP deletes half-written files, as after Ctrl-C, and then ends the process by the same signal;
    a second one ends it at once. Returns the signals that it handles."""
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
    handled = [one for one in known if signal.getsignal(one) is signal.SIG_DFL]  # `nohup` ignores SIGHUP
    for one in handled:
        signal.signal(one, leave)
    atexit.register(end)  # registered first, so it runs last
    return handled


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported in a frame. An exception there may abort the process, or be mistaken for
    another error."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def end_after(seconds: float, end: Callable[..., object], *arguments: int) -> None:
    """Ends the process after so many seconds: Python's exit waits for threads of other libraries."""
    timer = threading.Timer(seconds, end, arguments)
    timer.daemon = True
    timer.start()
