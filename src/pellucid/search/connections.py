"""Connections whose owner was let go of: whoever comes next closes them. The collector only puts them aside, without a
line of Python, since within it a Ctrl-C would be swallowed."""

import atexit
import sqlite3
import weakref
from typing import Any

from pellucid.search.forks import fork_guard

_owned: dict[int, tuple[weakref.ref[Any], sqlite3.Connection]] = {}
"""What is not closed yet, by the id of a reference to its owner: of one that nobody has the collector is silent."""

_dropped: list[weakref.ref[Any]] = []


def close_after(owner: object, connection: sqlite3.Connection) -> None:
    """Lets a connection live as long as its owner, and until the next `close_dropped`."""
    reference = weakref.ref(owner, _dropped.append)
    _owned[id(reference)] = reference, connection


def close_dropped() -> None:
    """Closes the connections that have no owner any more; other threads may do the same meanwhile."""
    while _dropped:
        try:
            reference = _dropped.pop()
        except IndexError:
            return
        with fork_guard:
            _owned[id(reference)][1].close()
        del _owned[id(reference)]


atexit.register(close_dropped)  # and no other: threads that end with the process may be reading still
