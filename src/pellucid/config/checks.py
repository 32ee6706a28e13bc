"""Checks of values. Each error is one sentence that says what is wrong and what was expected."""

import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

from pellucid.errors import Argument, InputError, did_you_mean, shorten
from pellucid.integers import as_integer

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def value_error(name: str, value: object, expected: str) -> InputError:
    """The error for a value of an argument that is not what was expected."""
    return InputError(Argument(name), f" is {shorten(repr(value))}, expected {expected}")


def plain_number(value: Any) -> Any:
    """A NumPy number or bool as the Python one, since settings are stored, compared and written as such; any other
    value unchanged."""
    return value.item() if hasattr(value, "item") and (isinstance(value, Number) or _is_numpy_bool(value)) else value


def _is_numpy_bool(value: Any) -> bool:
    """Whether this is a NumPy bool, which is not a `Number`, under either of its names."""
    return type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")


def plain_numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, with NumPy numbers as Python ones."""
    return {name: plain_number(value) for name, value in settings.items()}


def store_plain_numbers(record: object) -> None:
    """Replaces the NumPy numbers among the fields of a frozen dataclass, which are compared and written to files."""
    for name, value in plain_numbers(vars(record)).items():
        object.__setattr__(record, name, value)


def materialize_iterators(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are read more than once: iterators as lists."""
    return {name: list(value) if isinstance(value, Iterator) else value for name, value in settings.items()}


def check_count(name: str, value: object, maximum: int | None = 100_000_000, minimum: int = 1) -> int:
    """A whole number from `minimum` to `maximum`, also one of NumPy, as an int. Raises InputError for anything else."""
    number = as_integer(value)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        end = "on" if maximum is None else f"to {maximum:,}"
        raise value_error(name, value, f"a whole number from {minimum} {end}")
    return number


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Checks for one of a few strings."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(
            Argument(name),
            f" is {shorten(repr(value))}{did_you_mean(value, choices)}, expected one of {', '.join(choices)}",
        )


def is_one_of(value: object, *choices: str) -> bool:
    """Whether this is one of these strings; False for an array, whose == would be elementwise."""
    return isinstance(value, str) and value in choices


def check_one_of(name: str, value: object, choices: Sequence[str | bool | None]) -> None:
    """Checks for one of a few strings, True, False or None; never an array."""
    if not (value is None or isinstance(value, str | bool)) or value not in choices:
        raise InputError(
            f"{name} is {shorten(repr(value))}, expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
        )


def check_range(
    name: str,
    value: object,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
) -> None:
    """Checks for a finite number in bounds: `minimum` and `maximum` are inclusive, `above` and `below` exclusive."""
    # A comparison, since `math.isfinite` overflows on an integer of 400 digits.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise value_error(name, value, "a finite number")
    if not (minimum <= value <= maximum and above < value < below):
        low = f"at least {minimum:g}" if minimum > -math.inf else f"above {above:g}"
        high = f"at most {maximum:g}" if maximum < math.inf else f"below {below:g}"
        raise value_error(name, value, f"{low} and {high}")


def check_bool(name: str, value: object) -> None:
    """Checks for True or False, not merely a value that is truthy or falsy."""
    if type(value) is not bool:
        raise value_error(name, value, "true or false")


def check_token_id(name: str, value: object, rows: int = 2**31) -> int | None:
    """A token id below `rows`, also one of NumPy, as an int; None where there is no such token."""
    number = as_integer(value)
    if value is not None and (number is None or not 0 <= number < rows):
        raise value_error(name, value, f"the id of a token, 0 to {rows - 1}")
    return number


def check_activation(name: str, value: object) -> None:
    """Checks for the name of an activation that pellucid has."""
    if not isinstance(value, str) or value not in ACTIVATIONS:  # no hint: a similar name is not a similar function
        raise value_error(name, value, f"one of {', '.join(ACTIVATIONS)}")


def check_single_value(name: str, value: Any) -> None:
    """Checks for a value with a truth value of its own, which an array of several and pandas' NA do not have."""
    try:
        bool(value)
    except (TypeError, ValueError, RuntimeError) as error:  # from NA, NumPy and PyTorch
        raise value_error(name, value, "one value") from error


def is_list_like(value: Any) -> bool:
    """Whether this holds several values, in whatever container. Strings, bytes and mappings do not count, nor do NumPy
    or PyTorch scalars, nor data frames, which would iterate over their column names."""
    if isinstance(value, str | bytes | Mapping) or hasattr(type(value), "columns"):
        return False
    try:
        iter(value)
    except TypeError:
        return False
    return True


def unwrap_arrow(values: Any) -> Any:
    """The values in a form to iterate over: Arrow's as Python's own; everything else unchanged."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


def as_list(values: Any) -> list[Any] | None:
    """Several values, in whatever container, as a list; None for anything else, such as a string."""
    return list(unwrap_arrow(values)) if is_list_like(values) else None


def require_list(name: str, value: Any, expected: str) -> list[Any]:
    """`as_list`; raises InputError for what is not list-like."""
    if (found := as_list(value)) is None:
        raise value_error(name, value, expected)
    return found


def require_integers(name: str, value: Any, expected: str) -> list[int]:
    """Several integers, in whatever container, those of NumPy and PyTorch included. Raises InputError otherwise."""
    found = [_index(one) for one in require_list(name, value, expected)]
    numbers = [one for one in found if one is not None]
    if len(numbers) != len(found):
        raise value_error(name, value, expected)
    return numbers


def require_integer(name: str, value: Any, expected: str) -> int:
    """One integer, also of NumPy or PyTorch. Raises InputError otherwise."""
    if (number := _index(value)) is None:
        raise value_error(name, value, expected)
    return number


def _index(value: Any) -> int | None:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":  # NumPy's bool has no index anyway
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # the latter from a PyTorch tensor that is not an integer
        return None


def require_names(name: str, value: Any, expected: str) -> tuple[str, ...]:
    """One name, or several in whatever container, as a tuple; raises InputError for anything else."""
    found = [value] if isinstance(value, str) else as_list(value)
    if found is None or not all(isinstance(one, str) for one in found):
        raise value_error(name, value, expected)
    return tuple(found)
