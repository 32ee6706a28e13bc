"""The sentence-transformers folder format: which modules after the encoder make one vector of a text."""

import json
import logging
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import warn_of_unknown_keys
from pellucid.checkpoints.links import path_inside
from pellucid.checkpoints.model_files import SENTENCE
from pellucid.config.checks import check_bool, check_choice, check_count
from pellucid.config.pooling import MODES, SIMILARITIES, Pooling
from pellucid.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    UnsafeFileError,
    blaming,
    join_names,
    shorten,
)
from pellucid.files import read_json, read_json_value
from pellucid.text.truncation import replace_surrogates

log = logging.getLogger("pellucid")

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The keys of pooling modes in older files."""

SENTENCE_CONFIG = SENTENCE
TRANSFORMER_CONFIGS = [
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
"""Settings for reading texts: the first of these files that exists is used, whatever the model, as in the reference."""

SETTINGS = "config_args config_kwargs model_args model_kwargs tokenizer_args processor_kwargs processing_kwargs".split()
"""Keys, in older and newer spellings, with which a file of `TRANSFORMER_CONFIGS` overrides other files of the
checkpoint."""

INERT_SETTINGS = ("trust_remote_code", "attn_implementation", "use_safetensors", "low_cpu_mem_usage", "use_cache")
"""Settings under these keys that do not affect vectors; the reference does not follow the first either."""

MODULE_ORDERS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
"""The supported sequences of modules that make a vector."""

_INERT_KEYS = ("__version__", "model_type")


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling in `modules.json` and the files that it names, or None where the folder is a plain checkpoint."""
    path = folder / "modules.json"
    if not path.exists():
        return None
    modules = _modules(path)
    kinds = [_module_type(path, module) for module in modules]
    is_cross_encoder = kinds == MODULE_ORDERS[0][:1] and _is_cross_encoder(folder)
    if not is_cross_encoder and kinds not in MODULE_ORDERS:
        found = join_names(kinds, 9) or "none"
        raise CheckpointMismatchError(
            f"{path}: the modules are {found}; only Transformer, Pooling and then, if at all, Normalize are understood"
        )
    if first_path := _module_path(modules[0]):
        raise CheckpointMismatchError(
            f"{path} says that the Transformer is in {shorten(repr(first_path))}, and it is read beside modules.json "
            "alone: move the files of that folder there, and set that path to the empty text"
        )
    if is_cross_encoder:
        return None
    try:
        module_path = path_inside(folder, _module_path(modules[1]))
    except UnsafeFileError as error:
        raise UnsafeFileError(f"{path}: path of the module Pooling: {error}") from error
    pooled = _read_pooling_module(module_path / "config.json")
    return Pooling(
        normalize="Normalize" in kinds,
        **pooled,
        **_read_transformer_module(folder),
        **_read_sentence_config(folder / SENTENCE_CONFIG),
    )


def read_cross_encoder(folder: Path) -> dict[str, Any]:
    """Facts of a cross-encoder from files beside `config.json`, under that file's keys; empty for other folders.

    sentence-transformers 6 and later write them so. Raises CheckpointMismatchError for unsupported settings.
    """
    if not ((folder / "modules.json").exists() and _is_cross_encoder(folder)):
        return {}
    path = folder / SENTENCE_CONFIG
    found = _read_known_keys(path, ("activation_fn", "default_prompt_name", *_INERT_KEYS))
    _prompts(path, found)
    read = _read_transformer_module(folder, "sequence-classification", "logits")
    if read.get("max_length") or read.get("do_lower_case"):
        raise CheckpointMismatchError(
            f"{folder}: max_seq_length and do_lower_case of a cross-encoder are not read from there: "
            "write model_max_length and do_lower_case into tokenizer_config.json, and remove them there"
        )
    return {"sentence_transformers": {"activation_fn": found["activation_fn"]}} if found.get("activation_fn") else {}


def _is_cross_encoder(folder: Path) -> bool:
    """Whether the files describe a cross-encoder that answers by its classification head."""
    found = read_json(folder / SENTENCE_CONFIG) if (folder / SENTENCE_CONFIG).exists() else {}
    path = _transformer_config_path(folder)
    task = read_json(path).get("transformer_task") if path else None
    return found.get("model_type") == "CrossEncoder" and task in (None, "sequence-classification")


def _module_path(module: dict[str, Any]) -> Any:
    """A module's path, normalised from spellings of other tools: `1_Pooling/`, and `.` for the folder itself."""
    stated = module.get("path")
    path = stated.removesuffix("/") or stated if isinstance(stated, str) else stated
    return "" if path == "." else path


def write_pooling(pooling: Pooling, hidden: int, folder: Path) -> None:
    """Writes the folder layout of sentence-transformers.  hidden: width of a hidden state."""
    kinds = MODULE_ORDERS[1] if pooling.normalize else MODULE_ORDERS[0]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    modes: dict[str, Any] = {key: mode in pooling.modes for mode, key in _FLAGS.items()}
    if pooling.modes != tuple(mode for mode in MODES if mode in pooling.modes):  # an order that flags cannot express
        modes = {"pooling_mode": [mode.replace("sqrt_len", "sqrt_len_tokens") for mode in pooling.modes]}
    pooled = {"word_embedding_dimension": hidden, **modes, "include_prompt": pooling.include_prompt}
    stated: dict[str, Any] = {"similarity_fn_name": pooling.similarity, "prompts": pooling.prompts}
    if pooling.truncate_dim is not None:
        stated["truncate_dim"] = pooling.truncate_dim
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", pooled)
    _write(folder / "modules.json", modules)
    _write(folder / SENTENCE_CONFIG, stated)
    _write(
        folder / TRANSFORMER_CONFIGS[0], {"max_seq_length": pooling.max_length, "do_lower_case": pooling.do_lower_case}
    )


def _modules(path: Path) -> list[dict[str, Any]]:
    found = read_json_value(path)
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CorruptFileError(f"{path} is damaged, expected a list of modules")
    return found


def _module_type(path: Path, module: dict[str, Any]) -> str:
    """The class name of a module's type; refuses third-party code."""
    named = str(module.get("type"))[:100]
    if not named.startswith("sentence_transformers."):
        raise UnsafeFileError(f"{path} names code of its own, {named!r}; pellucid never runs it")
    return named.rpartition(".")[2]


def _read_pooling_module(path: Path) -> dict[str, Any]:
    """The settings of the module `Pooling`."""
    sizes = ("embedding_dimension", "word_embedding_dimension")
    found = _read_known_keys(path, (*_FLAGS.values(), "pooling_mode", "include_prompt", *sizes))
    include = found.get("include_prompt", True)
    hidden = next((found[name] for name in sizes if found.get(name) is not None), None)
    with blaming(path):
        check_bool("include_prompt", include)
        if hidden is not None:
            check_count("word_embedding_dimension", hidden)
    if not include:
        log.warning(
            "%s: include_prompt is false and is ignored: a prompt before a text is part of its vector here", path
        )
    return {"modes": _modes(path, found), "include_prompt": include, "hidden": hidden}


def _modes(path: Path, found: dict[str, Any]) -> tuple[str, ...]:
    stated = found.get("pooling_mode")
    if stated is None:
        with blaming(path):
            for key in _FLAGS.values():
                check_bool(key, False if found.get(key) is None else found[key])
        return tuple(mode for mode, key in _FLAGS.items() if found.get(key)) or ("mean",)
    modes = tuple(str(name).removesuffix("_tokens") for name in (stated if isinstance(stated, list) else [stated]))
    if not modes or not set(modes) <= set(MODES):
        raise CorruptFileError(f"{path}: pooling_mode is {shorten(repr(stated))}, expected one of {', '.join(MODES)}")
    return modes


def _transformer_config_path(folder: Path) -> Path | None:
    """The file with the settings for reading texts."""
    return next((folder / name for name in TRANSFORMER_CONFIGS if (folder / name).exists()), None)


def _read_transformer_module(
    folder: Path, task: str = "feature-extraction", output: str = "last_hidden_state"
) -> dict[str, Any]:
    """How the module `Transformer` reads a text.  task, output: the only task and text output that are supported."""
    path = _transformer_config_path(folder)
    if path is None:
        return {}
    inert = ("transformer_task", "module_output_name", "unpad_inputs")
    found = _read_known_keys(path, ("max_seq_length", "do_lower_case", "modality_config", *SETTINGS, *inert))
    _refuse_settings(path, found)
    _refuse_other_inputs(path, found, task, output)
    length, lower = found.get("max_seq_length"), found.get("do_lower_case", False)
    with blaming(path):
        if length is not None:
            check_count("max_seq_length", length)
        check_bool("do_lower_case", lower)
    return {"max_length": length, "do_lower_case": lower}


def _refuse_settings(path: Path, found: dict[str, Any]) -> None:
    """Refuses settings that override other files, except dtype, which is up to the caller as everywhere."""
    for key in SETTINGS:
        settings = found.get(key) or {}
        if not isinstance(settings, dict):
            raise CorruptFileError(f"{path}: {key} is {shorten(repr(settings))}, expected an object")
        if changing := sorted(settings.keys() - {*INERT_SETTINGS, "dtype", "torch_dtype"}):
            raise CheckpointMismatchError(
                f"{path}: {key} sets {join_names(map(ascii, changing), 3)}, which is not supported here and may change "
                "the vectors: write it into the file that it belongs to, and remove it here"
            )
        warn_of_unknown_keys(path, (f"{key}.{name}" for name in ("dtype", "torch_dtype") if name in settings))


def _refuse_other_inputs(path: Path, found: dict[str, Any], task: str, output: str) -> None:
    """Refuses another task, and since version 6 the use of the tokenizer's chat template."""
    stated_task, modalities = found.get("transformer_task"), found.get("modality_config") or {}
    if stated_task not in (None, task):
        raise CheckpointMismatchError(
            f"{path}: transformer_task is {shorten(repr(stated_task))}, expected {task!r} here"
        )
    expected = {"method": "forward", "method_output_name": output}
    if not isinstance(modalities, dict) or "message" in modalities or modalities.get("text", expected) != expected:
        supported = f"a text is read without a chat template, for its {output}"
        message = f"{path}: modality_config is {shorten(repr(modalities), 200)}, and here {supported}"
        raise CheckpointMismatchError(f"{message}: remove it, if the model was trained on texts as they are")


def _read_sentence_config(path: Path) -> dict[str, Any]:
    """The settings of the whole model."""
    if not path.exists():
        return {}
    found = _read_known_keys(
        path, ("similarity_fn_name", "truncate_dim", "prompts", "default_prompt_name", *_INERT_KEYS)
    )
    similarity, size = found.get("similarity_fn_name"), found.get("truncate_dim")
    with blaming(path):
        if similarity is not None:
            check_choice("similarity_fn_name", similarity, SIMILARITIES)
        if size is not None:
            check_count("truncate_dim", size)
    return {"similarity": similarity or "cosine", "truncate_dim": size, "prompts": _prompts(path, found)}


def _prompts(path: Path, found: dict[str, Any]) -> dict[str, str]:
    prompts = found.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise CorruptFileError(f"{path}: prompts is {shorten(repr(prompts))}, expected texts by name")
    default = found.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts or prompts[default]):
        raise CheckpointMismatchError(
            f"{path}: default_prompt_name is {shorten(repr(default))}, a prompt before every text, and nothing is put "
            "before texts here: set it to null, and write the prompt before the texts that need it"
        )
    return {name: text or "" for name, text in prompts.items()}


def _read_known_keys(path: Path, known: tuple[str, ...]) -> dict[str, Any]:
    """A file's content; warns of unknown keys that are set."""
    found = read_json(path)
    warn_of_unknown_keys(path, [key for key, value in found.items() if key not in known and value])
    return found


def _write(path: Path, value: Any) -> None:
    path.write_text(replace_surrogates(json.dumps(value, indent=2, ensure_ascii=False)) + "\n", encoding="utf-8")
