"""What a value may be. Each check says in one sentence what is wrong and what was expected."""

import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

from pellucid.errors import Argument, InputError, did_you_mean, shorten

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def plain_number(value: Any) -> Any:
    """A number of NumPy, or its true or false, as Python's own, since a setting is kept, compared and written as one;
    else what was given."""
    return value.item() if hasattr(value, "item") and (isinstance(value, Number) or _is_numpy_bool(value)) else value


def _is_numpy_bool(value: Any) -> bool:
    """Whether this is NumPy's true or false, which it counts among no numbers, whichever name it has there."""
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def plain_numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, the numbers of NumPy among them as Python's own."""
    return {name: plain_number(value) for name, value in settings.items()}


def materialize_iterators(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are asked about more than once: what can be walked through but once, as a list."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in settings.items()}


def check_count(name: str, value: object, most: int = 100_000_000, least: int = 1) -> None:
    """A whole number, as a rule from 1."""
    if type(value) is not int or not least <= value <= most:
        raise InputError(
            Argument(name), f" is {shorten(repr(value))}, expected a whole number from {least} to {most:,}"
        )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(
            Argument(name),
            f" is {shorten(repr(value))}{did_you_mean(str(value), choices)}, expected one of {', '.join(choices)}",
        )


def is_one_of(value: object, *choices: str) -> bool:
    """Whether this is one of these words; an array would answer for each of its values."""
    return isinstance(value, str) and value in choices


def check_one_of(name: str, value: object, choices: Sequence[str | bool | None]) -> None:
    """One of a few words, or True, False or None; arrays are none of these."""
    if not (value is None or isinstance(value, str | bool)) or value not in choices:
        raise InputError(
            f"{name} is {shorten(repr(value))}, expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        )


def check_range(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> None:
    """A finite number between bounds: `least` and `most` belong to the range, `above` and `below` do not."""
    # Compared rather than asked by `math.isfinite`, which cannot read a whole number of 400 digits.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected a finite number")
    if not (least <= value <= most and above < value < below):
        low = f"at least {least:g}" if least > -math.inf else f"above {above:g}"
        high = f"at most {most:g}" if most < math.inf else f"below {below:g}"
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected {low} and {high}")


def check_bool(name: str, value: object) -> None:
    """True or false, and nothing that only counts as one of them."""
    if type(value) is not bool:
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected true or false")


def check_token_id(name: str, value: object, rows: int = 2**31) -> None:
    """The id of a token, or None where there is no such token; below `rows` where it is looked up in a table."""
    if value is not None and not (type(value) is int and 0 <= value < rows):
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected the id of a token, 0 to {rows - 1}")


def check_activation(name: str, value: object) -> None:
    """The name of an activation that pellucid has."""
    if not isinstance(value, str) or value not in ACTIVATIONS:  # without a hint: near in name is far in numbers
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected one of {', '.join(ACTIVATIONS)}")


def check_single_value(name: str, value: Any) -> None:
    """A value that is true or false by itself: an array of several is neither, and pandas' NA is not."""
    try:
        bool(value)
    except (TypeError, ValueError, RuntimeError) as error:  # NA's, NumPy's and PyTorch's
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected one value") from error


def is_list_like(value: Any) -> bool:
    """Whether this holds several things, in whatever form; a single number of NumPy or PyTorch only looks as if, and a
    data frame's are the names of its columns, which nobody means."""
    if isinstance(value, str | bytes | Mapping) or hasattr(type(value), "columns"):
        return False
    try:
        iter(value)
    except TypeError:
        return False
    return True


def unwrap_arrow(values: Any) -> Any:
    """What holds several things, as it can be walked through: Arrow's gives Python's own values only if it is asked."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


def as_list(values: Any) -> list[Any] | None:
    """Several things in whatever holds them, as a list; None for what holds nothing, a text among it."""
    return list(unwrap_arrow(values)) if is_list_like(values) else None


def require_list(name: str, value: Any, expected: str) -> list[Any]:
    """`as_list`; InputError for what holds nothing."""
    if (found := as_list(value)) is None:
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected {expected}")
    return found


def require_integers(name: str, value: Any, expected: str) -> list[int]:
    """Several whole numbers in whatever holds them, those of NumPy and PyTorch among them."""
    found = [_index(one) for one in require_list(name, value, expected)]
    numbers = [one for one in found if one is not None]
    if len(numbers) != len(found):
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected {expected}")
    return numbers


def require_integer(name: str, value: Any, expected: str) -> int:
    """One whole number, those of NumPy and PyTorch too."""
    if (number := _index(value)) is None:
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected {expected}")
    return number


def _index(value: Any) -> int | None:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":  # NumPy's is no index by itself
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # PyTorch's, of a tensor that is no whole number
        return None


def require_names(name: str, value: Any, expected: str) -> tuple[str, ...]:
    """One name, or several in whatever holds them, as a tuple; InputError where it holds anything else."""
    found = [value] if isinstance(value, str) else as_list(value)
    if found is None or not all(isinstance(one, str) for one in found):
        raise InputError(Argument(name), f" is {shorten(repr(value))}, expected {expected}")
    return tuple(found)
