"""A checkpoint's settings for a generation task: a prefix for each item, and generation settings of the task.

    config.json   "task_specific_params": {"translation_en_to_de": {"prefix": "translate English to German: ", ...}}

Newer files set these for all tasks alike, in `generation_config.json`, or not at all.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pellucid.checkpoints.generation import FILE, check_generation
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import CorruptFileError, join_names, shorten
from pellucid.generation import Settings
from pellucid.generation.checkpoint_settings import (
    checkpoint_options,
    decoder_start_token,
    settings_of,
    with_end_tokens,
)

log = logging.getLogger("pellucid")

_ENDS: Mapping[str, Callable[[Loaded], Any]] = {
    "eos_token_id": lambda loaded: with_end_tokens(loaded).config.end_tokens,
    "decoder_start_token_id": decoder_start_token,
}
"""The tokens that texts end and begin with, whatever the task."""

MAX_PREFIX_CHARACTERS = 10_000
"""The longest prefixes in use have about 40 characters."""


def params_of(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """The parameters of tasks in `config.json`, by the task's name. Raises CorruptFileError for malformed ones."""
    params = loaded.config.inert.get("task_specific_params")
    if params is None:
        return {}
    if not isinstance(params, dict) or not all(isinstance(one, dict) for one in params.values()):
        raise CorruptFileError(
            f"{_config_path(loaded)}: task_specific_params is {shorten(repr(params))}, expected an object of objects"
        )
    return params


def translation_tasks(loaded: Loaded) -> list[str]:
    """Those tasks that name two languages, such as `translation_en_to_de`."""
    return [name for name in params_of(loaded) if name.startswith("translation_")]


def prefix_of(loaded: Loaded, names: Sequence[str]) -> str | None:
    """The text before each item: that of the first of these tasks for which the checkpoint has one, else of any task.

    None where it has none. Raises CorruptFileError for one that is no text.
    """
    params = params_of(loaded)
    found = next((params[name]["prefix"] for name in names if "prefix" in params.get(name, {})), None)
    found = loaded.config.inert.get("prefix") if found is None else found
    if found is not None and (not isinstance(found, str) or len(found) > MAX_PREFIX_CHARACTERS):
        expected = f"a text of at most {MAX_PREFIX_CHARACTERS:,} characters"
        raise CorruptFileError(f"{_config_path(loaded)}: prefix is {shorten(repr(found))}, expected {expected}")
    return found


def with_prefix(loaded: Loaded, prefix: str, names: Sequence[str]) -> Loaded:
    """A checkpoint with this prefix for these tasks, and for all tasks without one of their own."""
    params = params_of(loaded)
    if all((prefix_of(loaded, one) or "") == prefix for one in ([], *([name] for name in names))):
        return loaded
    params_of_task = next((params[name] for name in names if name in params), {})
    own = {name: {**params.get(name, params_of_task), "prefix": prefix} for name in names}
    inert = {**loaded.config.inert, "prefix": prefix} | ({"task_specific_params": {**params, **own}} if own else {})
    return replace(loaded, config=loaded.config.replace(inert=inert))


def task_generation_settings(
    loaded: Loaded, requested: dict[str, Any], names: Sequence[str], defaults: Mapping[str, Any]
) -> Settings:
    """The generation settings: those requested, over those in `config.json` for the first of these tasks that it has,
    over the checkpoint's for all generation, over `defaults`.

    Raises InputError for a requested value, and CorruptFileError for a value of the checkpoint's that is invalid.
    """
    location = f"{_config_path(loaded)}: task_specific_params"
    return settings_of(loaded, requested, _task_options(loaded, names), defaults, location=location)


def _task_options(loaded: Loaded, names: Sequence[str]) -> dict[str, Any]:
    """Our options by name, as far as `config.json` sets them for the task."""
    params = params_of(loaded)
    stated = next((params[name] for name in names if name in params), {})
    stated = check_generation({key: value for key, value in stated.items() if key != "prefix"}, _config_path(loaded))
    if left := [
        name for name, own in _ENDS.items() if name in stated and _as_set(stated[name]) != _as_set(own(loaded))
    ]:
        log.warning(
            "%s: task_specific_params sets %s for one task only; that is ignored, so texts may differ. "
            "To use it, set it in %s",
            *(_config_path(loaded), join_names(left), FILE),
        )
    return checkpoint_options(loaded, stated)


def _as_set(ids: Any) -> set[int]:
    return set(ids) if isinstance(ids, list | tuple) else {ids}


def _config_path(loaded: Loaded) -> Path:
    return loaded.source.folder / "config.json" if loaded.source else Path("config.json")
