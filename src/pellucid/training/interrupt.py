"""Ctrl-C during training."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from pellucid.errors import handle_sigint


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within the block, Ctrl-C requests a stop after the current step; a second one interrupts at once. The yielded
    function returns whether a stop was requested. Other handlers of Ctrl-C are left in place."""
    stop_requested = threading.Event()
    mine = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not mine or before not in (signal.default_int_handler, handle_sigint):
        yield stop_requested.is_set
        return

    def ask(*_: object) -> None:
        stop_requested.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stop_requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)
