"""What a checkpoint says about how it writes, as our options; and both what was asked for and what it says."""

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
"""Keys of a checkpoint that are fields of `Settings`; those that are options of rules come beside them."""

REFERENCE_LENGTH = 20
"""What `max_length` is in files that never meant to say anything of all writing."""

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
"""Keys by which the reference writes other words and we do not, each with the value that asks for nothing."""


def settings_of(
    loaded: Loaded,
    requested: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    *,
    location: object = None,
) -> Settings:
    """What was asked for, over what the checkpoint says of one task, over what it says of all writing, over defaults.

    task: our options by name, as far as it sets them for the task.  location: where it does.
    Raises InputError for what was asked, and CorruptFileError for a value of the checkpoint's that cannot be followed.
    """
    requested, general = plain_numbers(requested), checkpoint_options(loaded)
    from_checkpoint = general | dict(task or {})
    keywords: dict[str, Any] = {"defaults": defaults, "vocab_size": loaded.config.vocab_size}
    try:
        return read_settings(requested, from_checkpoint, **keywords)
    except InputError:
        read_settings(requested, **keywords)  # where this fails too, no file is at fault
        with blaming_checkpoint(generation_file(loaded), general):
            read_settings(requested, general, **keywords)
        with blaming_checkpoint(location, from_checkpoint):
            raise


def checkpoint_options(loaded: Loaded, task: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Our options by name, as far as the checkpoint sets them.  task: what it says of one, by the same keys."""
    keys = loaded.generation if task is None else task
    if unsupported := _unsupported_keys(loaded, keys):
        log.warning(
            "%s says %s, which is not supported: texts may differ", generation_file(loaded), join_names(unsupported)
        )
    options = {name: value for name, value in keys.items() if name in SETTINGS_KEYS or name in OPTIONS}
    max_length = keys.get("max_length")
    is_limit = max_length is not None and (task is not None or max_length != REFERENCE_LENGTH)
    if is_limit and "max_new_tokens" not in keys and loaded.config.kind == "encoder-decoder":
        options["max_new_tokens"] = max_length - 1  # the start token counts there
    if "stop_strings" in keys:
        options["stop"] = keys["stop_strings"]
    if keys.get("force_bos_token_to_be_generated") and loaded.config.bos_token_id is not None:
        options.setdefault("forced_bos_token_id", loaded.config.bos_token_id)
    return options


def with_end_tokens(loaded: Loaded, extra: Iterable[int] = ()) -> Loaded:
    """The same model, which ends a text also with the end tokens of its `generation_config.json`, and with `extra`."""
    stated, model_ends = loaded.generation.get("eos_token_id", []), loaded.config.end_tokens
    ends = tuple(dict.fromkeys((*model_ends, *(stated if isinstance(stated, list) else [stated]), *extra)))
    if ends == model_ends:
        return loaded
    with blaming_checkpoint(generation_file(loaded), ("eos_token_id",)):
        return dataclasses.replace(loaded, config=loaded.config.replace(eos_token_id=ends))


def decoder_start_token(loaded: Loaded) -> int | None:
    """The token that a decoder beside an encoder begins a text with: what is said of writing counts before what the
    architecture says, and in either the start token before the one that begins a text, as in the reference. None where
    nothing says it, and for a model without an encoder."""
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
    """The same; InputError where there is none."""
    if (start := decoder_start_token(loaded)) is None:
        raise InputError(
            "this model has no decoder_start_token_id, the first input of its decoder, and no bos_token_id: set "
            "one in its config.json"
        )
    return start


def blaming_checkpoint(location: object, option_names: Container[str]) -> AbstractContextManager[None]:
    """An error about what nobody asked for names the place that says it.

    option_names: our options that stand there; of others the error speaks as of what can be asked for.
    """
    return blaming(location, keys=lambda name: name if name in option_names else Argument(name))


def generation_file(loaded: Loaded) -> Path:
    """The file that says how to write."""
    return generation_path(
        loaded.generation, loaded.config.inert, None if loaded.source is None else loaded.source.folder
    )


def has_effect(name: str, value: Any) -> bool:
    """Whether this value of a key that is not followed asks for something."""
    plain = value is None or isinstance(value, bool | int | float | list)
    return not (plain and value in (None, [], UNSUPPORTED[name]))


def _unsupported_keys(loaded: Loaded, keys: Mapping[str, Any]) -> list[str]:
    """The keys of what a checkpoint says that ask for something which is not done."""
    unsupported = [name for name in UNSUPPORTED if has_effect(name, keys.get(name))]
    has_start_token_per_text = loaded.config.decoder is not None and isinstance(
        keys.get("decoder_start_token_id"), list
    )
    return [*unsupported, "decoder_start_token_id"] if has_start_token_per_text else unsupported
