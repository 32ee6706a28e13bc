"""Byte-level BPE from `vocab.json` and `merges.txt`, the format of GPT-2 and RoBERTa (Radford et al., 2019)."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from pellucid.errors import CorruptFileError, InputError
from pellucid.files import read_json_value, read_text
from pellucid.text.assembly import add_tokens_and_template, with_default_roles
from pellucid.text.layouts import LAYOUTS, Layout, layout_of
from pellucid.text.truncation import panics_as_errors

MAX_BYTES = 64 * 2**20
_MAX_GAPS = 1024
"""Unused ids that a vocabulary may have; an embedding table is as long as its largest id."""


def open_bytelevel(
    path: Path, settings: dict[str, Any], model_type: str | None
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a `vocab.json` and the `merges.txt` next to it, and its settings with all roles filled in.

    Raises InputError for a family whose way of splitting words cannot be derived from these files.
    """
    merges_path = path.with_name("merges.txt")
    vocabulary, merges = _read_vocabulary(path), _read_merges(merges_path)
    layout = layout_of(model_type, settings) or (None if model_type else _guessed_layout(vocabulary))
    if layout is None or layout.form != "bytelevel":
        raise InputError(
            f"{path.parent}: vocab.json and merges.txt do not say how {model_type or 'this model'} splits words, "
            "expected GPT-2's or RoBERTa's family: add its tokenizer.json"
        )
    settings = with_default_roles(layout.roles, settings)
    spaced = settings.get("add_prefix_space", False)
    with panics_as_errors(f"{merges_path} does not fit vocab.json"):
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    add_tokens_and_template(backend, layout, settings, path)
    if layout.trims_offsets:  # as in the reference: offsets exclude the space before a word
        trim = processors.ByteLevel(trim_offsets=settings.get("trim_offsets", True), add_prefix_space=spaced)
        backend.post_processor = processors.Sequence([trim, backend.post_processor])
    return backend, settings


def _guessed_layout(vocabulary: dict[str, int]) -> Layout | None:
    """The layout of files without a stated family, guessed from the special tokens in the vocabulary."""
    if {"<s>", "</s>", "<mask>"} <= vocabulary.keys():
        return LAYOUTS["roberta"]
    return LAYOUTS["gpt2"] if "<|endoftext|>" in vocabulary else None


def _read_vocabulary(path: Path) -> dict[str, int]:
    found = read_json_value(path, MAX_BYTES)
    if not isinstance(found, dict) or not found or not all(type(i) is int for i in found.values()):
        raise CorruptFileError(f"{path} is not a vocabulary, expected an object of words and their ids")
    ids = set(found.values())
    if len(ids) != len(found) or min(ids) < 0 or max(ids) >= len(ids) + _MAX_GAPS:
        raise CorruptFileError(f"{path} gives {len(found)} words the ids {min(ids)} to {max(ids)}, expected each once")
    return found


def _read_merges(path: Path) -> list[tuple[str, str]]:
    if not path.exists():
        raise CorruptFileError(f"{path} is missing, expected it beside vocab.json")
    merges = []
    for number, line in enumerate(read_text(path, MAX_BYTES).split("\n"), 1):
        if (number == 1 and line.startswith("#version")) or not line.strip():
            continue
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise CorruptFileError(f"{path}, line {number}: {line[:60]!a}, expected two pieces and one space")
        merges.append((parts[0], parts[1]))
    return merges
