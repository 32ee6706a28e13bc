"""Progress bars for long work, at a terminal or in a notebook."""

import functools
import importlib.util
import threading
from collections.abc import Iterable
from typing import Any

from pellucid.errors import InputError, shorten

DELAY = 1.0
"""Seconds of work before a bar is shown."""

UPDATE_INTERVAL = 0.1
"""Minimum seconds between two updates of a bar."""


def progress_bar(
    description: str,
    rows: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    unit: str = "",
    shown: bool | None = None,
    **style: Any,
) -> Any:
    """A bar on stderr, or in a notebook; it disappears when the work is done.

    description: the work, in a word.  rows: iterated over and counted; without them `update` reports progress.
    shown: None shows it once the work has lasted a second, where stderr is a terminal; True elsewhere too.
    style: options of tqdm.
    """
    check_progress(shown)
    options: dict[str, Any] = {"desc": description, "total": total, "unit": unit, "leave": False}
    options |= {"mininterval": UPDATE_INTERVAL, "miniters": 1}  # only the time decides, so no monitor thread is needed
    return _bar_class()(rows, disable=None if shown is None else not shown, delay=DELAY, **options | style)


def check_progress(shown: object) -> None:
    """Refuses a `progress` that is neither a bool nor None, even where the work is too short for a bar."""
    if shown is not None and type(shown) is not bool:
        raise InputError(f"progress is {shorten(repr(shown))}, expected true or false")


@functools.cache
def _bar_class() -> Any:
    """A bar with a lock of its own, since tqdm's is shared by all forks and may be held for ever by a child that was
    killed; and without tqdm's monitor thread, which would last as long as the process."""
    if importlib.util.find_spec("ipywidgets") is None:  # without them tqdm warns in a notebook
        from tqdm.std import tqdm
    else:
        from tqdm.auto import tqdm
    return type("Bar", (tqdm,), {"_lock": threading.RLock(), "monitor_interval": 0})
