"""What one rendering of a template costs, and what in it can make much from little."""

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import GeneratorType, NoneType
from typing import Any

from jinja2.exceptions import TemplateRuntimeError
from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

MAX_CHARACTERS = 4_000_000
"""Characters that one rendering may write, and the most that a value in it may have."""
MAX_PARTS = 10_000
"""Names, texts, tags and the like of a template, since Python compiles twice as many in more than twice the time; one
of 20,000 characters has about 2,500."""
MAX_STEPS = 500_000
MAX_SECONDS = 10.0
_MAX_BITS = 4096
_MAX_WIDTH = 10_000
_MAX_DECIMALS = 100
_MAX_COMPARED = 1_000_000_000
_SMALL = (float, complex, NoneType, Undefined, GeneratorType)


class TooMuchError(TemplateRuntimeError):
    """The template did more than a conversation needs."""


class Budget:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self.steps, self.characters = MAX_STEPS, MAX_CHARACTERS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int = 1, characters: int = 0) -> None:
        """Counts; raises TooMuchError where nothing is left."""
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise TooMuchError(f"it takes more than {MAX_STEPS:,} steps")
        if self.characters < 0:
            raise TooMuchError(f"it writes more than {MAX_CHARACTERS:,} characters")
        if time.monotonic() > self.deadline:
            raise TooMuchError(f"it takes more than {MAX_SECONDS:g} seconds")


BUDGET: ContextVar[Budget] = ContextVar("budget")


def refuse(what: str) -> None:
    """Ends the rendering."""
    raise TooMuchError(f"it builds {what}")


def charge(value: Any) -> Any:
    """The value itself, where it is small enough."""
    BUDGET.get().spend(1 + size_of(value) // 1000)
    return value


def size_of(value: Any) -> int:
    """How many characters a value has; a thing in another counts 16, as often as it stands there.

    Ends the rendering where they are too many, and where something stands in another that is no plain value: what a
    namespace, a loop or a macro within a macro holds would be counted nowhere.
    """
    left, stack = MAX_CHARACTERS, [value]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            left -= len(one)
        elif isinstance(one, int):
            if one.bit_length() > _MAX_BITS:
                refuse("a giant number")
        elif isinstance(one, Collection):
            left -= 16 * (1 + len(one))
            if left >= 0 and not isinstance(one, range):
                stack += [part for pair in one.items() for part in pair] if isinstance(one, Mapping) else one
        elif one is value and isinstance(one, Namespace):
            stack += one._Namespace__attrs.values()  # type: ignore[attr-defined]
        elif one is not value and not isinstance(one, _SMALL) and not _is_top_level_macro(one):
            refuse(f"a value with a {type(one).__name__.strip('_')} in it")
        if left < 0:
            refuse("a giant value")
    return MAX_CHARACTERS - left


def _is_top_level_macro(one: Any) -> bool:
    """Whether this is a macro of the template's own level: what it reads are that level's variables, which are there
    once, however often it is made. A macro that another makes, or a loop that calls itself, keeps those of each call.
    """
    return isinstance(one, Macro) and one._func.__qualname__ == "root.<locals>.macro"


def metered(things: Iterable[Any]) -> Iterator[Any]:
    """The things one by one, each paid for as it comes."""
    for one in things:
        charge((one,))
        yield one


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            size = 1 + sum(len(x) if isinstance(x, str | list | tuple) else 1 for x in one)
            if size * max(other, 0) > MAX_CHARACTERS:
                refuse("a giant value")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
        refuse("a giant number")


def _check_power(left: Any, right: Any) -> None:
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and left.bit_length() * max(right, 0) > _MAX_BITS:
        refuse("a giant number")


def check_remainder(left: Any, right: Any) -> None:
    """A text takes `%` for a format."""
    if isinstance(left, str):
        check_format(left, right)


def check_format(text: str, *values: Any) -> None:
    """Widths in a format (`%9999d`, `{:9999}`, `{:{}}`) make text from nothing, and a name in it may stand often."""
    if len(text) > _MAX_WIDTH or re.search(r"\d{4}|\*|\{[^}]*\{", text):
        refuse("text by giant formats")
    if (text.count("{") + text.count("%")) * size_of(values) > MAX_CHARACTERS:
        refuse("text by giant formats")


OPERATOR_CHECKS: dict[str, Callable[[Any, Any], None]] = {"*": _check_product, "**": _check_power, "%": check_remainder}


# -- what strings and filters may do ----------------------------------------------------------------------------------


def check_widths(arguments: Iterable[Any], max_width: int = _MAX_WIDTH) -> None:
    """Refuses a width or a count that no conversation needs."""
    if any(isinstance(a, int | float) and (math.isnan(a) or abs(a) > max_width) for a in arguments):
        refuse("text of a giant width")


def check_replaced(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    """Refuses a replacement whose text would be giant."""
    if len(str(text)) + (len(str(text)) + 1) * len(str(new)) // max(len(str(old)), 1) > MAX_CHARACTERS:
        refuse("a giant text")


def check_indented(text: Any, width: Any = 4, *rest: Any, **named: Any) -> None:
    """Refuses an indentation whose text would be giant."""
    wide = width if isinstance(width, int) else len(str(width))
    if (len(str(text).splitlines()) + 1) * wide > MAX_CHARACTERS:
        refuse("a giant text")


def check_rounded(value: Any, precision: Any = 0, method: Any = "common") -> None:
    """Refuses a power of ten that no conversation needs, and what it would multiply that is no number."""
    if not isinstance(value, int | float | Undefined) or abs(precision) > _MAX_DECIMALS:
        refuse("a giant number")


def check_summed(values: Any, attribute: Any = None, start: Any = 0) -> None:
    """Refuses a sum of anything but numbers: one of lists copies all of them at each step."""
    if not isinstance(start, int | float):
        refuse("a sum of what are no numbers")


def check_searched(text: Any, *patterns: Any, **named: Any) -> None:
    """Refuses what compares each character of a text with each of another, where both are long."""
    max_pattern_length = max((len(one) for one in (*patterns, *named.values()) if isinstance(one, str)), default=0)
    if len(str(text)) * max_pattern_length > _MAX_COMPARED:
        refuse("comparisons of giant texts")


def check_joined(parts: Any, between: Any) -> Any:
    """The parts as a list; refused where they and what stands between them would be giant."""
    parts = charge(list(parts))
    if len(parts) * len(str(between)) > MAX_CHARACTERS:
        refuse("a giant text")
    return parts


FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "center": lambda text, *widths, **named: check_widths([*widths, *named.values()]),
    "format": lambda text, *values, **named: check_format(str(text), *values, named),
    "replace": check_replaced,
    "indent": check_indented,
    "round": check_rounded,
    "sum": check_summed,
    "trim": check_searched,
}
"""What is looked at before a filter of this name runs."""
_SEARCHES = ("strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition")


def check_method(owner: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method of a string, once they are found harmless."""
    if not hasattr(str, name) or name in ("encode", "translate"):
        refuse(f"bytes, or text by {name}()")
    if name == "replace":
        check_replaced(owner, *arguments, **named)
    elif name in _SEARCHES:
        check_searched(owner, *arguments, **named)
    elif name == "join" and arguments:
        return (check_joined(arguments[0], owner),)
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        check_widths([*arguments, *named.values()])
        check_indented(owner.replace("\t", "\n"), *(a for a in (*arguments, *named.values()) if isinstance(a, int)))
    return arguments
