"""What can go wrong, as few kinds as a person can act on. Every message is one sentence that names the file, field or
value, what was expected, and what to do. `exit_code` is what the command line answers with."""

import difflib
from collections.abc import Iterable


class PellucidError(Exception):
    """The root of every error that pellucid raises on purpose."""

    exit_code = 1


class InputError(PellucidError, ValueError):
    """A value that a person gave cannot be used: a text, a name, an argument, a setting."""

    exit_code = 3


class NotFoundError(InputError, FileNotFoundError):
    """A checkpoint, file, layer or name that is not there."""


class UnsafeFileError(PellucidError):
    """A file that could run code, reach outside its folder or exhaust the machine; it was not opened."""

    exit_code = 4


class CorruptFileError(PellucidError):
    """A file that is damaged, cut short or not what its name says."""

    exit_code = 5


class CheckpointMismatchError(PellucidError):
    """Weights, configuration and tokenizer that do not belong together; nothing was loaded."""

    exit_code = 5


class ResourceError(PellucidError):
    """Not enough memory or disk for what was asked."""

    exit_code = 6


_MOST_ASKED = 300
"""Characters of a name that is looked for: a file may hold one of megabytes, and the search grows with its length."""


def near(name: str, known: Iterable[str], most: int = 3) -> str:
    """` (did you mean a, b?)` for the names nearest to `name`, or nothing when none is near, as none is to a page."""
    hits = difflib.get_close_matches(name, list(known), n=most, cutoff=0.6) if len(name) <= _MOST_ASKED else []
    return f" (did you mean {', '.join(hits)}?)" if hits else ""


def several(names: Iterable[str], most: int = 6) -> str:
    """`a, b, c and 4 more`: a list that stays readable however long it is."""
    names = list(names)
    shown = ", ".join(name if len(name) <= 80 else f"{name[:79]}…" for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
