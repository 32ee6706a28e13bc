"""Connections whose owner was let go of: whoever comes next closes them. The collector only puts them aside, without a
line of Python, since within it a Ctrl-C would be swallowed."""

import atexit
import sqlite3
import weakref
from typing import Any

from pellucid.search.forks import undivided


class _Owner(weakref.ref[Any]):
    """Whom a connection is there for."""

    connection: sqlite3.Connection


_owned: dict[int, _Owner] = {}
"""What is not closed yet, by the id of its connection: of a reference that nobody holds the collector tells nothing."""

_dropped: list[_Owner] = []


def close_after(owner: object, connection: sqlite3.Connection) -> None:
    """Lets a connection live as long as its owner, and until the next `close_dropped`."""
    held = _Owner(owner, _dropped.append)
    held.connection = connection
    _owned[id(connection)] = held


def close_dropped() -> None:
    """Closes the connections that have no owner any more; other threads may do the same meanwhile."""
    while _dropped:
        try:
            held = _dropped.pop()
        except IndexError:
            return
        _close(held)


def _close(held: _Owner) -> None:
    with undivided:
        held.connection.close()
    _owned.pop(id(held.connection), None)


atexit.register(close_dropped)  # and no other: threads that end with the process may be reading still
