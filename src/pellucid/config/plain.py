"""Frozen dataclasses as plain values that JSON can hold, and back: each with its type name, each value type-checked."""

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def to_json_value(value: Any) -> Any:
    """A dataclass, or any value in one, as dictionaries, lists and single values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: to_json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, "facts": inner}
    return [to_json_value(one) for one in value] if isinstance(value, list | tuple) else value


def from_json_value(value: Any, kind: Any) -> Any:
    """The value of type `kind` that `to_json_value` or `dataclasses.asdict` was called on; missing fields get their
    defaults.

    Raises ValueError, in a sentence, where a value has another type or a field is unknown.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_from_json(value, inner)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_from_json(value, kind)
    if origin in (list, tuple) and isinstance(value, list):
        each = inner if origin is tuple and Ellipsis not in inner else [inner[0]] * len(value)
        if len(each) == len(value):
            return origin(from_json_value(one, item_kind) for one, item_kind in zip(value, each))
    elif origin is dict and isinstance(value, dict):
        return {name: from_json_value(one, inner[1]) for name, one in value.items()}
    elif (
        kind is Any
        or (origin is Literal and value in inner)
        or (kind is float and type(value) in (int, float))
        or (isinstance(kind, type) and type(value) is kind)
    ):
        return value
    raise ValueError(f"found {str(value)[:60]!r}, expected {getattr(kind, '__name__', kind)}")


def _union_from_json(value: Any, kinds: tuple[Any, ...]) -> Any:
    type_name = value.get("kind") if isinstance(value, dict) else None
    for kind in kinds:
        if type_name is None or getattr(kind, "__name__", "") == type_name:
            try:
                return from_json_value(value, kind)
            except ValueError:
                if type_name is not None:
                    raise
    names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise ValueError(f"found {str(value)[:60]!r}, expected one of {names}")


def _dataclass_from_json(value: Any, kind: type) -> Any:
    if isinstance(value, dict) and set(value) == {"kind", "facts"}:
        if value["kind"] != kind.__name__:
            raise ValueError(f"found a {str(value['kind'])[:60]}, expected a {kind.__name__}")
        value = value["facts"]
    if not isinstance(value, dict):
        raise ValueError(f"found {str(value)[:60]!r}, expected the facts of a {kind.__name__}")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in value:
        if name not in fields:
            raise ValueError(f"a {kind.__name__} has no {name[:60]!r}")
    nothing = dataclasses.MISSING
    for name, field in fields.items():
        if name not in value and field.default is nothing and field.default_factory is nothing:
            raise ValueError(f"a {kind.__name__} needs {name!r}, which is missing")
    made = {}
    for name, one in value.items():
        try:
            made[name] = from_json_value(one, hints[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return kind(**made)
