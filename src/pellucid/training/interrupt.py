"""Ctrl-C while something learns."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """While the block lasts, Ctrl-C asks the training to stop after its step; a second one ends it at once."""
    asked = threading.Event()
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked.is_set
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
