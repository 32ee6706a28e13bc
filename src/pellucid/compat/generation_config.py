"""Generation settings: from a model's files, its `generation_config`, and the settings of a call."""

import copy
import json
import os
from collections.abc import Collection
from typing import Any, Self

from pellucid.checkpoints.generation import FILE, check_settings, generation_file_name, plain_settings
from pellucid.checkpoints.load import read_generation
from pellucid.checkpoints.loaded import Loaded
from pellucid.compat.arguments import (
    UnsupportedArguments,
    missing_attribute_error,
    pop_hub_options,
    without_unsupported,
)
from pellucid.errors import InputError, shorten
from pellucid.generation.checkpoint_settings import UNSUPPORTED as IDLE
from pellucid.generation.checkpoint_settings import decoder_start_token, has_effect

TOKEN_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")

NOT_IN_REFERENCE = ("logit_bias", "frequency_penalty", "presence_penalty")
"""Options of ours that the reference does not have, and ignores in a file."""

UNSUPPORTED: UnsupportedArguments = {
    **dict.fromkeys(
        """use_cache cache_implementation synced_gpus tokenizer disable_compile low_memory
        prompt_lookup_num_tokens""".split()
    ),
    **dict.fromkeys(
        ("output_scores", "output_logits", "output_attentions", "output_hidden_states"),
        "model.pellucid.trace_writing(prompt) shows every step",
    ),
    **dict.fromkeys(
        ("stop_strings", "stopping_criteria"),
        "model.pellucid.generate(prompt, stop=[...]) ends at a text, and eos_token_id at a token",
    ),
    **dict.fromkeys(
        ("logits_processor", "prefix_allowed_tokens_fn"),
        "rules are given by name, such as repetition_penalty=1.1 or bad_words_ids=[[3]]",
    ),
    **dict.fromkeys(
        ("past_key_values", "cache", "inputs_embeds", "assistant_model"),
        "a prompt is read whole, and by this model alone: leave it out",
    ),
}
"""Options that are not supported with ids, each with its alternative."""


_METHODS = "save_pretrained update validate to_json_string to_json_file push_to_hub".split()
"""Methods of the reference's settings that do not exist here, so that such a name does not read as an unset setting."""


class GenerationConfig:
    """The default generation settings of a model: any option of `generate` as an attribute; None is not set."""

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)

    @classmethod
    def of(cls, loaded: Loaded) -> Self:
        """A checkpoint's settings: from `generation_config.json`, or where there is none from its `config.json`."""
        own = {name: value for name, value in loaded.generation.items() if name not in NOT_IN_REFERENCE}
        if loaded.generation and generation_file_name(loaded.generation, loaded.config.inert) == FILE:
            return cls(**own)
        ids = {name: getattr(loaded.config, name) for name in TOKEN_IDS}
        ids["decoder_start_token_id"] = loaded.config.decoder and loaded.config.decoder.decoder_start_token_id
        ids = {name: list(one) if isinstance(one, tuple) else one for name, one in ids.items()}
        return cls(**ids | own)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **settings: Any) -> Self:
        """The settings of a checkpoint's `generation_config.json`, with some changed."""
        return cls(**read_generation(name, pop_hub_options(settings)) | settings)

    @classmethod
    def from_model_config(cls, model_config: Any) -> Self:
        """The special tokens of a model's config; its generation settings are in `from_pretrained(NAME)`."""
        names = (*TOKEN_IDS, "decoder_start_token_id")
        return cls(**{name: getattr(model_config, name, None) for name in names})

    def __setattr__(self, name: str, value: Any) -> None:
        check_settings(plain_settings({name: value}))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # read by copy and pickle
            raise AttributeError(name)
        if name.startswith("_"):
            advice = "generation_config=transformers.GenerationConfig.from_pretrained(folder)"
            raise AttributeError(f"{name} is the reference's own: its Seq2SeqTrainingArguments take {advice}")
        if name in _METHODS:
            elsewhere = ": set attributes; to_dict() gives them, and the model's save_pretrained(folder) writes them"
            raise missing_attribute_error("a GenerationConfig", name, (), elsewhere)

    def to_dict(self) -> dict[str, Any]:
        """The settings that are not None."""
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if value is not None}

    to_diff_dict = to_dict

    def __repr__(self) -> str:
        return f"GenerationConfig {json.dumps(_settings_dict(self), indent=2, default=repr)}"


def merged_settings(loaded: Loaded, own: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model, overridden by those of a call. Removes the latter from `options`, with the options that
    have no effect here.

    own: the model's `generation_config`.
    Raises InputError for an unsupported setting that the caller requested; one in a file only causes a warning.
    """
    call_settings, own_settings = _settings_dict(options.pop("generation_config", None)), _settings_dict(own)
    without_unsupported(call_settings, UNSUPPORTED)
    file = GenerationConfig.of(loaded).to_dict()
    idle = {name: options.pop(name) for name in IDLE if name in options}
    changed = {name: value for name, value in own_settings.items() if repr(value) != repr(file.get(name))}
    _check_not_requested(changed | call_settings | idle)
    return own_settings | call_settings | idle


def options_from_settings(
    loaded: Loaded, settings: Any, known: Collection[str], unsupported: UnsupportedArguments
) -> dict[str, Any]:
    """The options in the settings of a call that are `known`; InputError for an unsupported one."""
    requested, start = _settings_dict(settings), decoder_start_token(loaded)
    without_unsupported({name: value for name, value in requested.items() if name not in known}, unsupported)
    _check_not_requested(requested)
    if start is not None and (start_token := requested.get("decoder_start_token_id", start)) != start:
        raise InputError(f"decoder_start_token_id is {start_token}, and this model begins with {start}: leave it out")
    return {name: value for name, value in requested.items() if name in known}


def _check_not_requested(requested: dict[str, Any]) -> None:
    for name, value in requested.items():
        if name in IDLE and has_effect(name, value):
            raise InputError(f"{name} is {shorten(repr(value))}, which is not supported here: leave it out")


def settings_to_save(loaded: Loaded, own: Any) -> dict[str, Any]:
    """The settings for a checkpoint: the loaded ones, unless the model's `generation_config` has been changed."""
    requested = _settings_dict(own)
    return loaded.generation if requested == GenerationConfig.of(loaded).to_dict() else requested


def _settings_dict(settings: Any) -> dict[str, Any]:
    """The settings that are set, as a file would hold them."""
    if settings is None:
        return {}
    if isinstance(settings, type) or not callable(getattr(settings, "to_dict", None)):
        shown = shorten(repr(settings))
        raise InputError(f"generation_config is {shown}, expected settings such as GenerationConfig(max_new_tokens=9)")
    return {name: value for name, value in plain_settings(settings.to_dict()).items() if value is not None}
