"""The cost of rendering a template, and limits on operations that can create large values."""

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
"""Syntax nodes of a template, since compiling takes more than linear time; one of 20,000 characters has about 2,500."""
MAX_STEPS = 500_000
MAX_SECONDS = 10.0
_MAX_BITS = 4096
_MAX_WIDTH = 10_000
_MAX_DECIMALS = 100
_MAX_COMPARED = 1_000_000_000
_SMALL = (float, complex, NoneType, Undefined, GeneratorType)


class TooMuchError(TemplateRuntimeError):
    """The template exceeded the limits of a rendering."""


class Budget:
    """The remaining budget of one rendering."""

    def __init__(self) -> None:
        self.steps, self.characters = MAX_STEPS, MAX_CHARACTERS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int = 1, characters: int = 0) -> None:
        """Subtracts from the budget; raises TooMuchError where it is exhausted."""
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
    """Raises TooMuchError, which ends the rendering."""
    raise TooMuchError(f"it builds {what}")


def charge(value: Any) -> Any:
    """The value, once its size is paid for. Raises TooMuchError where it is too large."""
    BUDGET.get().spend(1 + size_of(value) // 1000)
    return value


def size_of(value: Any) -> int:
    """The size of a value in characters; each item of a collection adds 16, as often as it occurs in the value.

    Raises TooMuchError where it is too large, and for a value nested in another that is not plain: what a namespace, a
    loop or a macro within a macro holds could not be counted.
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
    """Whether this is a macro of the template's top level, whose variables exist once, however often the macro is
    created. A nested macro, or a recursive loop, holds those of each call."""
    return isinstance(one, Macro) and one._func.__qualname__ == "root.<locals>.macro"


def metered(things: Iterable[Any]) -> Iterator[Any]:
    """The items, each paid for as it is yielded."""
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
    """A string as the left operand of `%` is a format."""
    if isinstance(left, str):
        check_format(left, right)


def check_format(text: str, *values: Any) -> None:
    """Refuses formats that create large texts: by widths (`%9999d`, `{:9999}`, `{:{}}`), or by repeating a value."""
    if len(text) > _MAX_WIDTH or re.search(r"\d{4}|\*|\{[^}]*\{", text):
        refuse("text by giant formats")
    if (text.count("{") + text.count("%")) * size_of(values) > MAX_CHARACTERS:
        refuse("text by giant formats")


OPERATOR_CHECKS: dict[str, Callable[[Any, Any], None]] = {"*": _check_product, "**": _check_power, "%": check_remainder}


# -- strings and filters ---------------------------------------------------------------------------------------------


def check_widths(arguments: Iterable[Any], max_width: int = _MAX_WIDTH) -> None:
    """Refuses a width or a count beyond the limit."""
    if any(isinstance(a, int | float) and (math.isnan(a) or abs(a) > max_width) for a in arguments):
        refuse("text of a giant width")


def check_replaced(text: Any, old: Any = "", new: Any = "", count: Any = None) -> None:
    """Refuses a replacement with a huge result."""
    if len(str(text)) + (len(str(text)) + 1) * len(str(new)) // max(len(str(old)), 1) > MAX_CHARACTERS:
        refuse("a giant text")


def check_indented(text: Any, width: Any = 4, *rest: Any, **named: Any) -> None:
    """Refuses an indentation with a huge result."""
    wide = width if isinstance(width, int) else len(str(width))
    if (len(str(text).splitlines()) + 1) * wide > MAX_CHARACTERS:
        refuse("a giant text")


def check_rounded(value: Any, precision: Any = 0, method: Any = "common") -> None:
    """Refuses a huge power of ten, and a value that is no number, which it would multiply."""
    if not isinstance(value, int | float | Undefined) or abs(precision) > _MAX_DECIMALS:
        refuse("a giant number")


def check_summed(values: Any, attribute: Any = None, start: Any = 0) -> None:
    """Refuses a sum of anything but numbers: one of lists copies all of them at each step."""
    if not isinstance(start, int | float):
        refuse("a sum of what are no numbers")


def check_searched(text: Any, *patterns: Any, **named: Any) -> None:
    """Refuses comparing each character of a long text with each of another."""
    max_pattern_length = max((len(one) for one in (*patterns, *named.values()) if isinstance(one, str)), default=0)
    if len(str(text)) * max_pattern_length > _MAX_COMPARED:
        refuse("comparisons of giant texts")


def check_joined(parts: Any, between: Any) -> Any:
    """The parts as a list; refused where the joined text would be huge."""
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
"""Checks that run before the filter of this name."""
_SEARCHES = ("strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition")


def check_method(owner: str, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a string method, after they are checked."""
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
