"""From options by name to an objective and its settings; each value is converted to the type of its field."""

import json
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from pellucid.config.checks import as_list, is_one_of, plain_number
from pellucid.errors import Argument, InputError, did_you_mean, join_names, shorten
from pellucid.training.names import OBJECTIVES, Name
from pellucid.training.settings import Settings

if TYPE_CHECKING:
    from pellucid.training.objective import Objective

NOTHING = "none"
"""How None is written in a recipe and on the command line."""

FOREIGN_NAMES = {
    "lr": "learning_rate",
    "num_train_epochs": "epochs",
    "num_epochs": "epochs",
    "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpointing": "activation_checkpointing",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "lr_scheduler_type": "schedule",
    "max_grad_norm": "clip",
    "eval_steps": "evaluate_every",
    "early_stopping_patience": "patience",
    "save_steps": "save_every",
}
"""Names of settings in other libraries, for suggestions in errors."""

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): f"{NOTHING!r}"}


class CommandLineText(str):
    """An untyped value from the command line, which is parsed by the type of its field."""


def options_of(name: Name) -> dict[str, Any]:
    """The options of an objective with their types, without private fields, which are fitted to the data."""
    return _field_types(name.objective())


def convert_options(name: Name, options: Mapping[str, Any], error_prefix: str = "") -> dict[str, Any]:
    """The options with each value converted to the type of its field.

    options: options of the objective and settings, by name.  error_prefix: begins each error, such as "recipe.toml: ".
    Raises InputError for an unknown name, and for a value of another type.
    """
    setting_types, option_types = _field_types(Settings), options_of(name)
    for one in options:
        if one not in setting_types and one not in option_types:
            raise InputError(f"{error_prefix}{_unknown_option_message(name, one, option_types, setting_types)}")
    return {
        one: convert_value(one, value, (setting_types | option_types)[one], error_prefix)
        for one, value in options.items()
    }


def objective_and_settings(name: Name, options: Mapping[str, Any]) -> "tuple[Objective, Settings]":
    """The objective and the settings for these options; settings not given have the objective's defaults.

    Raises InputError as `convert_options` does, and for an invalid value.
    """
    kind, own, found = name.objective(), options_of(name), convert_options(name, options)
    settings = Settings.of({one: value for one, value in found.items() if one not in own}, kind.default_settings)
    return kind(**{one: value for one, value in found.items() if one in own}), settings


def convert_value(name: str, value: Any, hint: Any, error_prefix: str = "") -> Any:
    """A value converted to the type of its field: a list or "a,b" to a tuple, "none" to None, 1 to 1.0.

    hint: `Any`, or types of `_WORDS` and tuples of one of them (`tuple[str, ...]`), joined by `|`.
    Raises InputError for a value of another type.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if type(None) in kinds and (value is None or is_one_of(value, NOTHING)):
        return None
    if hint is Any:
        return _untyped_value(value)
    for one in _candidates(value):
        for kind in kinds:
            if (found := _converted(one, kind)) is not None:
                return found
    message = f" is {shorten(repr(value))}, expected {' or '.join(map(_type_in_words, kinds))}"
    raise InputError(f"{error_prefix}{name}{message}") if error_prefix else InputError(Argument(name), message)


def _field_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if not field.name.startswith("_")}


def _untyped_value(value: Any) -> Any:
    """The value for a field of any type: text that is a JSON list or object is parsed, other text is kept."""
    found = _candidates(value)
    return found[0] if isinstance(found[0], dict | list) else found[-1]


def _candidates(value: Any) -> list[Any]:
    """The possible meanings of a value: for text of the command line, first the parsed JSON, then the text."""
    if not isinstance(value, CommandLineText):
        return [value]
    try:
        return [json.loads(value), str(value)]
    except (ValueError, RecursionError):
        return [str(value)]


def _converted(value: Any, kind: Any) -> Any:
    """The value as this type; None where it is of another."""
    value = plain_number(value)
    if get_origin(kind) is tuple:
        return _listed(value, get_args(kind)[0])
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2.0**1000:
        return float(value)
    if kind in (float, str) and isinstance(value, kind):
        return kind(value)  # also NumPy's
    return value if type(value) is kind else None


def _listed(value: Any, kind: Any) -> tuple[Any, ...] | None:
    """The values as a tuple of this type, or None; for a field of texts, a single text is split at its commas."""
    if isinstance(value, str) and kind is str:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if (values := as_list(value)) is None:
        return None
    found = [_converted(one, kind) for one in values]
    return None if None in found else tuple(found)


def _type_in_words(kind: Any) -> str:
    return f"a list, each {_WORDS[get_args(kind)[0]]}" if get_origin(kind) is tuple else _WORDS[kind]


def _unknown_option_message(name: Name, option: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    other = FOREIGN_NAMES.get(option)
    hint = f" (did you mean {other}?)" if other else did_you_mean(option, {**options, **settings})
    if not hint and (others := [one.name for one in OBJECTIVES if option in options_of(one)]):
        hint = f", which is an option of {join_names(others)}"
    every = f": its options are {', '.join(options)}; the settings are {', '.join(settings)}"
    advice = f"{hint}: docs/training.md has them all" if hint else every
    return f"{name.name} has no setting {shorten(repr(option))}{advice}"
