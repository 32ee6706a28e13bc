"""The notation of weights: the reference's name on the left, ours on the right, `{i}` for the number of a layer.

One row per module: its weight and bias travel together. The table runs both ways, so that saving comes for free.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Names:
    """How a family calls its tensors.

    body: (reference, ours), module by module.
    prefix: stands before the body's names in files saved from a model with a head, and is absent from the others.
    renamed: older spellings of the last word, as (older, newer).
    dropped: patterns of tensors that are known and not needed, each with the reason.
    """

    body: Rows
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)

    def ours(self, theirs: str, rows: Rows) -> str | None:
        """Our name of a tensor in a file, or None where no row speaks of it."""
        stem, _, last = theirs.rpartition(".")
        theirs = f"{stem}.{dict(self.renamed).get(last, last)}" if stem else theirs
        bare = theirs.removeprefix(self.prefix)
        return _translate(bare, self.body) or _translate(theirs, rows)

    def theirs(self, ours: str, rows: Rows, *, prefixed: bool) -> str:
        """The reference's name of one of our parameters."""
        body = _translate(ours, tuple((b, a) for a, b in self.body))
        if body is not None:
            return (self.prefix if prefixed else "") + body
        found = _translate(ours, tuple((b, a) for a, b in rows))
        if found is None:
            raise KeyError(ours)
        return found

    def drop_reason(self, theirs: str) -> str | None:
        """Why this tensor of a file is not needed, or None where it is."""
        bare = theirs.removeprefix(self.prefix)
        return next((why for pattern, why in self.dropped.items() if _match(pattern, bare)), None)


def _translate(name: str, rows: Iterable[tuple[str, str]]) -> str | None:
    """The right side of the row whose left side is `name` or the module that holds it; an exact row goes first."""
    loose = None
    for left, right in rows:
        found = _match(left, name)
        if found is not None and not found["rest"]:
            return right.replace("{i}", found["i"] or "")
        if found is not None and loose is None:
            loose = right.replace("{i}", found["i"] or "") + (found["rest"] or "")
    return loose


def _match(pattern: str, name: str) -> dict[str, str | None] | None:
    """The layer's number `i` and the `rest` of `name` after `pattern` ("" or ".weight"); None for another name."""
    found = _compiled(pattern).fullmatch(name)
    return found and {"i": None, **found.groupdict()}


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    number = re.escape(pattern).replace(r"\{i\}", r"(?P<i>\d+)")
    return re.compile(number + r"(?P<rest>(?:\.(?:weight|bias))?)")
