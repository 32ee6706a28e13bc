"""Generation settings of a checkpoint as our options, and their combination with requested ones."""

import dataclasses
import logging
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pellucid.checkpoints.generation import generation_path
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_token_id, plain_numbers
from pellucid.errors import Argument, InputError, blaming, join_names
from pellucid.generation.rules import OPTIONS
from pellucid.generation.settings import Settings, read_settings

log = logging.getLogger("pellucid")

SETTINGS_KEYS = "max_new_tokens max_time do_sample num_beams length_penalty early_stopping num_return_sequences".split()
"""Keys of a checkpoint that are fields of `Settings`; options of rules are read as well."""

REFERENCE_LENGTH = 20
"""The default of `max_length` in the reference, which many files hold without meaning it."""

UNSUPPORTED: Mapping[str, Any] = {
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "renormalize_logits": False,
    "top_h": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "penalty_alpha": 0.0,
    "num_beam_groups": 1,
    "constraints": None,
    "force_words_ids": None,
    "dola_layers": None,
    "token_healing": False,
}
"""Keys that change what the reference generates and are not supported here, each with the value that has no effect."""


def settings_of(
    loaded: Loaded,
    requested: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    *,
    location: object = None,
) -> Settings:
    """Returns settings: as requested, else the checkpoint's for the task, else its general ones, else `defaults`.

    task: our options by name, as far as the checkpoint sets them for the task.  location: where it does.
    Raises InputError for an invalid request, and CorruptFileError for an invalid value of the checkpoint.
    """
    requested, general = plain_numbers(requested), checkpoint_options(loaded)
    from_checkpoint = general | dict(task or {})
    keywords: dict[str, Any] = {"defaults": defaults, "vocab_size": loaded.config.vocab_size}
    try:
        return read_settings(requested, from_checkpoint, **keywords)
    except InputError:
        read_settings(requested, **keywords)  # if this fails too, no file is at fault
        with blaming_checkpoint(generation_file(loaded), general):
            read_settings(requested, general, **keywords)
        with blaming_checkpoint(location, from_checkpoint):
            raise


def checkpoint_options(loaded: Loaded, task: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The checkpoint's settings as our options by name.  task: those of one task, by the same keys."""
    keys = loaded.generation if task is None else task
    if unsupported := _unsupported_keys(loaded, keys):
        log.warning(
            "%s says %s, which is not supported: texts may differ", generation_file(loaded), join_names(unsupported)
        )
    options = {name: value for name, value in keys.items() if name in SETTINGS_KEYS or name in OPTIONS}
    max_length = keys.get("max_length")
    is_limit = max_length is not None and (task is not None or max_length != REFERENCE_LENGTH)
    if is_limit and "max_new_tokens" not in keys and loaded.config.kind == "encoder-decoder":
        options["max_new_tokens"] = max_length - 1  # it includes the start token
    if "stop_strings" in keys:
        options["stop"] = keys["stop_strings"]
    if keys.get("force_bos_token_to_be_generated") and loaded.config.bos_token_id is not None:
        options.setdefault("forced_bos_token_id", loaded.config.bos_token_id)
    return options


def with_end_tokens(loaded: Loaded, extra: Iterable[int] = ()) -> Loaded:
    """The same model, with the end tokens of its `generation_config.json` and `extra` in addition."""
    stated, model_ends = loaded.generation.get("eos_token_id", []), loaded.config.end_tokens
    ends = tuple(dict.fromkeys((*model_ends, *(stated if isinstance(stated, list) else [stated]), *extra)))
    if ends == model_ends:
        return loaded
    with blaming_checkpoint(generation_file(loaded), ("eos_token_id",)):
        return dataclasses.replace(loaded, config=loaded.config.replace(eos_token_id=ends))


def decoder_start_token(loaded: Loaded) -> int | None:
    """The start token of a decoder with an encoder: the generation config precedes the architecture's config, and in
    either decoder_start_token_id precedes bos_token_id, as in the reference. None if neither has one, and without an
    encoder."""
    side = loaded.config.decoder
    if side is None:
        return None
    for name in ("decoder_start_token_id", "bos_token_id"):
        if type(token := loaded.generation.get(name)) is int:
            with blaming_checkpoint(generation_file(loaded), (name,)):
                check_token_id(name, token, loaded.config.vocab_size)
            return token
    return loaded.config.bos_token_id if side.decoder_start_token_id is None else side.decoder_start_token_id


def required_start_token(loaded: Loaded) -> int:
    """The same, but raises InputError if there is none."""
    if (start := decoder_start_token(loaded)) is None:
        raise InputError(
            "this model has no decoder_start_token_id, the first input of its decoder, and no bos_token_id: set "
            "one in its config.json"
        )
    return start


def blaming_checkpoint(location: object, option_names: Container[str]) -> AbstractContextManager[None]:
    """Makes errors about values of the checkpoint name their location.

    option_names: the options set there; errors about others refer to them as arguments.
    """
    return blaming(location, keys=lambda name: name if name in option_names else Argument(name))


def generation_file(loaded: Loaded) -> Path:
    """The file that the generation settings come from."""
    return generation_path(
        loaded.generation, loaded.config.inert, None if loaded.source is None else loaded.source.folder
    )


def has_effect(name: str, value: Any) -> bool:
    """Whether this value of an unsupported key would have an effect."""
    plain = value is None or isinstance(value, bool | int | float | list)
    return not (plain and value in (None, [], UNSUPPORTED[name]))


def _unsupported_keys(loaded: Loaded, keys: Mapping[str, Any]) -> list[str]:
    """The checkpoint's keys that would have an effect but are not supported."""
    unsupported = [name for name in UNSUPPORTED if has_effect(name, keys.get(name))]
    has_start_token_per_text = loaded.config.decoder is not None and isinstance(
        keys.get("decoder_start_token_id"), list
    )
    return [*unsupported, "decoder_start_token_id"] if has_start_token_per_text else unsupported
