"""Which files of a repository or folder make a model, and of what form it is."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pellucid.errors import PellucidError, join_names
from pellucid.files import read_json

CONFIG, SENTENCE = "config.json", "config_sentence_transformers.json"
CONFIG_FILES = (CONFIG, "modules.json", "sentence_*_config.json", SENTENCE)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
)
OTHER_TOKENIZER_FILES = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
WEIGHTS = tuple(name for name in SAFETENSORS + PICKLED if not name.endswith(".json"))
"""Without the indexes of their shards."""

MODULES = ("[0-9]_*/config.json", "[0-9]_*/model.safetensors")
SENTENCE_MODULE_FILES = ("[0-9]_Pooling/config.json", "[0-9]_Normalize/config.json", "[0-9]_Dense/*")
NAMED_TEMPLATES = "additional_chat_templates/*.jinja"
GENERATION = "generation_config.json"
GENERATION_FILES = (GENERATION, "chat_template.jinja", "chat_template.json", NAMED_TEMPLATES)
DESCRIPTION_FILES = ("README.md", *GENERATION_FILES)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SAFETENSORS, ADAPTER_PICKLED = "adapter_model.safetensors", "adapter_model.bin"
"""The weights of an adapter. Only files named above are fetched, and pickles only where there are no safetensors."""

_DESCRIBING = (*CONFIG_FILES, *TOKENIZER_FILES, *OTHER_TOKENIZER_FILES, "target_tokenizer.json", *GENERATION_FILES)

MODEL_FILES = (
    *_DESCRIBING,
    *SENTENCE_MODULE_FILES,
    *SAFETENSORS,
    *PICKLED,
    *(ADAPTER_CONFIG, ADAPTER_SAFETENSORS, ADAPTER_PICKLED),
)
"""Files that define the model: where one is saved over another, none of the old ones may stay."""

FILES_WITHOUT_WEIGHTS = (*_DESCRIBING, *MODULES)
"""A checkpoint without its weights."""

_AUXILIARY_GGUF = re.compile(r"(?i).*mmproj.*|(?!.*[-_.](?:i?q\d|b?f\d\d)).*imatrix.*")
_PARTIAL_GGUF = re.compile(r".*/.*|.*-\d{5}-of-(?!00001)\d{5}\.gguf")
"""GGUF files that accompany a model (vision projectors, importance matrices), and those that are only part of one."""


@dataclass(frozen=True)
class Form:
    """What a set of files is.

    kind: what it is opened as; None where it cannot be opened.
    adapter: whether an adapter config is present, with or without weights, possibly beside a whole checkpoint.
    gguf_files: the GGUF files, without auxiliary ones.
    """

    kind: Literal["checkpoint", "adapter", "gguf"] | None
    adapter: bool
    gguf_files: tuple[str, ...]

    @property
    def gguf_file(self) -> str | None:
        """The single GGUF file that is the whole model; None where there is no such file."""
        is_single = (
            self.kind == "gguf" and len(self.gguf_files) == 1 and not _PARTIAL_GGUF.fullmatch(self.gguf_files[0])
        )
        return self.gguf_files[0] if is_single else None


def form_of(names: Collection[str]) -> Form:
    """The form of files of these names, in a folder or on the hub."""
    adapter, gguf_names = ADAPTER_CONFIG in names, sorted(name for name in names if name.lower().endswith(".gguf"))
    models = tuple(name for name in gguf_names if not _AUXILIARY_GGUF.fullmatch(name))
    has_adapter_weights = adapter and (ADAPTER_SAFETENSORS in names or ADAPTER_PICKLED in names)
    kind = "checkpoint" if CONFIG in names else "adapter" if has_adapter_weights else "gguf" if models else None
    return Form(kind, adapter, models)


def form_of_folder(folder: Path) -> Form:
    """The form of a folder's files; dangling links do not count."""
    return form_of([path.name for path in folder.iterdir() if path.exists()])


def any_matches(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    """Whether any of the names matches any of the patterns."""
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def required_files(files: Iterable[str], snapshot: Path | None = None) -> list[str]:
    """Those files of a repository that make its model.

    snapshot: the local copy so far; where it has weights in one form, the other form is not required.
    """
    files = list(files)
    patterns = [*FILES_WITHOUT_WEIGHTS, ADAPTER_CONFIG]
    if snapshot is None or lacks_weights(snapshot):
        patterns += [*SAFETENSORS, *(() if any_matches(files, SAFETENSORS) else PICKLED)]
    needs_pickled_adapter = ADAPTER_SAFETENSORS not in files or (
        snapshot is not None and (snapshot / ADAPTER_PICKLED).exists()
    )
    patterns.append(ADAPTER_PICKLED if needs_pickled_adapter else ADAPTER_SAFETENSORS)
    return [file for file in files if any_matches([file], tuple(patterns))]


def missing_weights(folder: Path) -> str:
    """The weight files that a folder lacks, as its index lists them, or "weights" for all; "" for none. A dangling link
    counts as missing."""
    names = {path.name for path in folder.iterdir()}
    present = {name for name in names if (folder / name).exists()}
    for one, _, index in (SAFETENSORS, PICKLED):
        if one in names:
            return "" if one in present else one
        if index in names:
            return join_names(sorted(_shards(folder / index) - present)) if index in present else index
    return next((index for _, shards, index in (SAFETENSORS, PICKLED) if any_matches(names, (shards,))), "weights")


def _shards(index: Path) -> set[str]:
    """The files that an index names."""
    weight_map = read_json(index).get("weight_map")
    return {str(shard) for shard in weight_map.values()} if isinstance(weight_map, Mapping) else set()


def lacks_weights(folder: Path) -> bool:
    """Whether weights are missing; True also for an unreadable index, which is reported where it is needed."""
    try:
        return bool(missing_weights(folder))
    except PellucidError:
        return True
