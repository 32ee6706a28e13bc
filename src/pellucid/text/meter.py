"""What one rendering of a template costs, and what in it can make much from little."""

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.utils import Namespace

MOST_CHARACTERS = 4_000_000
"""Characters that one rendering may write, and the most that a value in it may have."""
MOST_STEPS = 500_000
SECONDS = 10.0
_MOST_BITS = 4096
_MOST_WIDTH = 10_000


class TooMuchError(TemplateRuntimeError):
    """The template did more than a conversation needs."""


class Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self.steps, self.characters = MOST_STEPS, MOST_CHARACTERS
        self.deadline = time.monotonic() + SECONDS

    def spend(self, steps: int = 1, characters: int = 0) -> None:
        """Counts; raises TooMuchError where nothing is left."""
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise TooMuchError(f"it takes more than {MOST_STEPS:,} steps")
        if self.characters < 0:
            raise TooMuchError(f"it writes more than {MOST_CHARACTERS:,} characters")
        if time.monotonic() > self.deadline:
            raise TooMuchError(f"it takes more than {SECONDS:g} seconds")


BUDGET: ContextVar[Budget] = ContextVar("budget")


def refuse(what: str) -> None:
    """Ends the rendering."""
    raise TooMuchError(f"it builds {what}")


def weigh(value: Any) -> Any:
    """The value itself, where it is small enough; shared parts count each time, since each time they are written."""
    left, stack = MOST_CHARACTERS, [value]  # a thing in a list counts as much as the text of a number
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, Mapping):
            stack += [part for pair in one.items() for part in pair] if len(one) <= left else [left]
            left -= 16 * (1 + len(one))
        elif isinstance(one, list | tuple):
            left -= 16 * (1 + len(one))
            stack += one if left >= 0 else ()
        elif isinstance(one, int) and one.bit_length() > _MOST_BITS:
            refuse("a giant number")
        elif isinstance(one, Namespace) and one is not value:
            refuse("namespaces within namespaces")
        if left < 0:
            refuse("a giant value")
    BUDGET.get().spend(1 + (MOST_CHARACTERS - left) // 1000)
    return value


def _product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            size = 1 + sum(len(x) if isinstance(x, str | list | tuple) else 1 for x in one)
            if size * max(other, 0) > MOST_CHARACTERS:
                refuse("a giant value")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MOST_BITS:
        refuse("a giant number")


def _power(left: Any, right: Any) -> None:
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and left.bit_length() * max(right, 0) > _MOST_BITS:
        refuse("a giant number")


def _modulo(left: Any, right: Any) -> None:
    if isinstance(left, str):
        check_format(left, weigh(right))


def check_format(text: str, *values: Any) -> None:
    """Widths in a format (`%9999d`, `{:9999}`, `{:{}}`) make text from nothing."""
    if re.search(r"\d{4}|\*|\{[^}]*\{", text) or len(text) > _MOST_WIDTH:
        refuse("text by giant formats")
    weigh(list(values))


OPERATORS: dict[str, Callable[[Any, Any], None]] = {"*": _product, "**": _power, "%": _modulo}


# -- what strings and filters may do ----------------------------------------------------------------------------------


def check_widths(arguments: Iterable[Any]) -> None:
    """Refuses a width or a count that no conversation needs."""
    if any(isinstance(a, int | float) and (math.isnan(a) or abs(a) > _MOST_WIDTH) for a in arguments):
        refuse("text of a giant width")


def check_replaced(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    """Refuses a replacement whose text would be giant."""
    if len(str(text)) + (len(str(text)) + 1) * len(str(new)) // max(len(str(old)), 1) > MOST_CHARACTERS:
        refuse("a giant text")


def check_indented(text: Any, width: Any = 4, *rest: Any) -> None:
    """Refuses an indentation whose text would be giant."""
    wide = width if isinstance(width, int) else len(str(width))
    if (str(text).count("\n") + 1) * wide > MOST_CHARACTERS:
        refuse("a giant text")


def check_joined(parts: Any, between: Any) -> Any:
    """The parts as a list; refused where they and what stands between them would be giant."""
    parts = weigh(list(parts))
    if len(parts) * len(str(between)) > MOST_CHARACTERS:
        refuse("a giant text")
    return parts


def check_method(owner: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method of a string, once they are found harmless."""
    if name == "replace":
        check_replaced(owner, *arguments, **named)
    elif name == "join" and arguments:
        return (check_joined(arguments[0], owner),)
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        check_widths([*arguments, *named.values()])
        check_indented(owner.replace("\t", "\n"), *(a for a in (*arguments, *named.values()) if isinstance(a, int)))
    return arguments
