"""Which files make a model, of all that a repository or a folder holds."""

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
TARGET_TOKENIZER = "target_tokenizer.json"
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
WEIGHTS = tuple(name for name in SAFETENSORS + PICKLED if not name.endswith(".json"))
"""Without the indexes of their shards."""

MODULES = ("[0-9]_*/config.json", "[0-9]_*/model.safetensors")
SENTENCE_MODULE_FILES = ("[0-9]_Pooling/config.json", "[0-9]_Normalize/config.json", "[0-9]_Dense/*")
NAMED_TEMPLATES = "additional_chat_templates/*.jinja"
GENERATION = "generation_config.json"
GENERATION_FILES = (GENERATION, "chat_template.jinja", "chat_template.json", NAMED_TEMPLATES)
ABOUT = ("README.md", *GENERATION_FILES)
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SAFETENSORS, ADAPTER_PICKLED = "adapter_model.safetensors", "adapter_model.bin"
"""What a checkpoint consists of; nothing else is fetched, and pickles only where there is no safetensors."""

MODEL_FILES = (
    *(
        *CONFIG_FILES,
        *SENTENCE_MODULE_FILES,
        *TOKENIZER_FILES,
        *OTHER_TOKENIZER_FILES,
        TARGET_TOKENIZER,
        *GENERATION_FILES,
        *SAFETENSORS,
        *PICKLED,
    ),
    *(ADAPTER_CONFIG, ADAPTER_SAFETENSORS, ADAPTER_PICKLED),
)
"""Files that say what the model is: where one is saved over another, none of the older may stay."""

FILES_WITHOUT_WEIGHTS = (
    *CONFIG_FILES,
    *TOKENIZER_FILES,
    *OTHER_TOKENIZER_FILES,
    TARGET_TOKENIZER,
    *GENERATION_FILES,
    *MODULES,
)
"""What a checkpoint is but for its numbers."""

_AUXILIARY_GGUF = re.compile(r"(?i).*mmproj.*|(?!.*[-_.](?:i?q\d|b?f\d\d)).*imatrix.*")
_PARTIAL_GGUF = re.compile(r".*/.*|.*-\d{5}-of-(?!00001)\d{5}\.gguf")
"""Files of GGUF: what sees pictures for a model or what one was rounded by, and those that are no model alone."""


@dataclass(frozen=True)
class Form:
    """What files are together.

    kind: what they are opened as; None where they cannot be.
    adapter: whether one says here what it is: without its numbers too, or in a checkpoint.
    gguf_files: the files of GGUF, but for what lies beside models.
    """

    kind: Literal["checkpoint", "adapter", "gguf"] | None
    adapter: bool
    gguf_files: tuple[str, ...]

    @property
    def gguf_file(self) -> str | None:
        """The one file that is the whole model, where it is that."""
        is_single = (
            self.kind == "gguf" and len(self.gguf_files) == 1 and not _PARTIAL_GGUF.fullmatch(self.gguf_files[0])
        )
        return self.gguf_files[0] if is_single else None


def form_of(names: Collection[str]) -> Form:
    """What files of these names are, in a folder or on the hub."""
    adapter, gguf_names = ADAPTER_CONFIG in names, sorted(name for name in names if name.lower().endswith(".gguf"))
    models = tuple(name for name in gguf_names if not _AUXILIARY_GGUF.fullmatch(name))
    has_adapter_weights = adapter and (ADAPTER_SAFETENSORS in names or ADAPTER_PICKLED in names)
    kind = "checkpoint" if CONFIG in names else "adapter" if has_adapter_weights else "gguf" if models else None
    return Form(kind, adapter, models)


def form_of_folder(folder: Path) -> Form:
    """What the files of a folder are; a link that leads nowhere is none."""
    return form_of([path.name for path in folder.iterdir() if path.exists()])


def any_matches(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    """Whether one of the names fits one of the patterns."""
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def required_files(files: Iterable[str], snapshot: Path | None = None) -> list[str]:
    """Those files of a repository that make its model.

    snapshot: what is there of it; weights that it has are not wanted in another form.
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
    """The files of the weights that a folder lacks, as its index names them, or "weights" for all; "" for none. A link
    that leads nowhere is a file that is missing."""
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
    table = read_json(index).get("weight_map")
    return {str(shard) for shard in table.values()} if isinstance(table, Mapping) else set()


def lacks_weights(folder: Path) -> bool:
    """Whether weights are missing; where their index cannot be read, whoever needs it says so."""
    try:
        return bool(missing_weights(folder))
    except PellucidError:
        return True
