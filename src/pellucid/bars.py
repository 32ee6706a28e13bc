"""How far a long work has come, for whoever waits at a terminal or in a notebook."""

import functools
import importlib.util
import threading
from collections.abc import Iterable
from typing import Any

from pellucid.errors import InputError, shorten

PATIENCE = 1.0
"""Work that is done within so many seconds shows no bar."""

PACE = 0.1
"""Seconds from one drawing of a bar to the next, at least."""


def progress_bar(
    description: str,
    rows: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    unit: str = "",
    shown: bool | None = None,
    **style: Any,
) -> Any:
    """A bar on stderr, or in a notebook; it goes when the work is done.

    description: the work, in a word.  rows: counted while the bar is iterated over; else `update` reports progress.
    shown: None shows it once the work has lasted a second, where stderr is a terminal; True elsewhere too.
    style: of tqdm.
    """
    check_progress(shown)
    options: dict[str, Any] = {"desc": description, "total": total, "unit": unit, "leave": False}
    options |= {"mininterval": PACE, "miniters": 1}  # the clock alone decides, which needs no thread to watch over it
    return _bar_class()(rows, disable=None if shown is None else not shown, delay=PATIENCE, **options | style)


def check_progress(shown: object) -> None:
    """Refuses what does not say whether a bar is shown, also where work is too short for one."""
    if shown is not None and type(shown) is not bool:
        raise InputError(f"progress is {shorten(repr(shown))}, expected true or false")


@functools.cache
def _bar_class() -> Any:
    """A bar with a lock of its own, since tqdm's is shared by all forks and a child that is killed may hold it for
    ever; and without tqdm's thread that watches over all bars, which would stay as long as the process."""
    if importlib.util.find_spec("ipywidgets") is None:  # without them tqdm warns in a notebook
        from tqdm.std import tqdm
    else:
        from tqdm.auto import tqdm
    return type("Bar", (tqdm,), {"_lock": threading.RLock(), "monitor_interval": 0})
