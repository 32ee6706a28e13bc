"""Closes connections whose owner was garbage-collected, at the next call. The collector itself only lists them, without
running Python code, in which a Ctrl-C would be swallowed."""

import atexit
import sqlite3
import weakref
from typing import Any

from pellucid.search.forks import fork_guard

_open_connections: dict[int, tuple[weakref.ref[Any], sqlite3.Connection]] = {}
"""Open connections by the id of the weak reference to their owner, which must exist for the collector to report it."""

_dead_references: list[weakref.ref[Any]] = []


def close_after(owner: object, connection: sqlite3.Connection) -> None:
    """Keeps a connection open as long as its owner exists, and until the next `close_dropped`."""
    reference = weakref.ref(owner, _dead_references.append)
    _open_connections[id(reference)] = reference, connection


def close_dropped() -> None:
    """Closes the connections without an owner; other threads may do so at the same time."""
    while _dead_references:
        try:
            reference = _dead_references.pop()
        except IndexError:
            return
        with fork_guard:
            _open_connections[id(reference)][1].close()
        del _open_connections[id(reference)]


atexit.register(close_dropped)  # only these: daemon threads may still be reading
