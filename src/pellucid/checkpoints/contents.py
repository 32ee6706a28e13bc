"""The contents of a checkpoint's files, in either form, before they are interpreted."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import CODE
from pellucid.checkpoints.generation import FILE, check_generation, legacy_generation
from pellucid.checkpoints.gguf import open_gguf
from pellucid.checkpoints.sentence_transformers import read_cross_encoder, read_pooling
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.weights import StoredTensor, existing_path, stored_tensors, untrained_in
from pellucid.config import Config
from pellucid.config.pooling import Pooling
from pellucid.errors import NotFoundError
from pellucid.files import read_json
from pellucid.lazy import cached_property
from pellucid.text import Tokenizer
from pellucid.text.files import open_target_tokenizer, open_tokenizer
from pellucid.text.from_gguf import build_tokenizer

TRAINING = "training"
"""Subfolder of an output folder in which training keeps its state for resuming."""


class Contents(ABC):
    """The contents of a checkpoint. Each file is read only on first access.

    facts_path: the file with the facts, for errors.
    """

    facts_path: Path

    facts: dict[str, Any]
    """With the keys of the reference's `config.json`."""
    tensors: dict[str, StoredTensor]
    """By the reference's names; only the headers of the weight files are read."""

    @abstractmethod
    def tokenizer(self, config: Config) -> Tokenizer | None:
        """The tokenizer, limited to the config's length."""

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of a decoder's output where it has its own vocabulary."""
        return None

    @property
    def pooling(self) -> Pooling | None:
        """How hidden states become one vector; None where the files do not say."""
        return None

    @property
    def generation(self) -> dict[str, Any]:
        """The generation settings, by the reference's keys."""
        return {}

    @property
    def untrained(self) -> tuple[str, ...]:
        """The parts whose weights are random according to their file."""
        return ()


def tokenizer_in(folder: Path, config: Config, stated_class: Any) -> Tokenizer | None:
    """The tokenizer of a folder, for a model of this config.  stated_class: the class that its `config.json` names."""
    options = {"token_types": config.type_vocab_size > 1, "model_type": config.family}
    return open_tokenizer(folder, max_length=config.max_sequence_length, stated_class=stated_class, **options)


def read_contents(source: Source) -> Contents:
    """The contents of a checkpoint that is not an adapter."""
    return _FolderContents(source.folder) if source.file is None else _GgufContents(source.file)


class _FolderContents(Contents):
    def __init__(self, folder: Path) -> None:
        self.folder, self.facts_path = folder, folder / "config.json"

    @cached_property
    def facts(self) -> dict[str, Any]:
        if self.facts_path.is_symlink():
            existing_path(self.folder, self.facts_path.name)
        if not self.facts_path.exists():
            read_pooling(self.folder)  # raises where modules.json places the model in another folder
            if (self.folder / TRAINING).is_dir():
                raise NotFoundError(
                    f"{self.folder} holds a training that was interrupted, and no model: resume it first"
                )
            if (self.folder / "training_args.bin").is_file():
                raise NotFoundError(
                    f"{self.facts_path} is missing: of a model of pellucid.compat, transformers' Trainer keeps a state "
                    "dict alone, which its load_state_dict reads; its save_pretrained(folder) writes a checkpoint"
                )
        return read_json(self.facts_path) | read_cross_encoder(self.folder)

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        return stored_tensors(self.folder)

    def tokenizer(self, config: Config) -> Tokenizer | None:
        stated = self.facts.get("tokenizer_class") if self.facts_path.is_file() else None  # a tokenizer may come alone
        return tokenizer_in(self.folder, config, stated)

    @property
    def untrained(self) -> tuple[str, ...]:
        return untrained_in(self.folder)

    @cached_property
    def target_tokenizer(self) -> Tokenizer | None:
        return open_target_tokenizer(self.folder)

    @cached_property
    def pooling(self) -> Pooling | None:
        return read_pooling(self.folder)

    @cached_property
    def generation(self) -> dict[str, Any]:
        path = self.folder / FILE
        if not path.exists():
            return legacy_generation(self.facts, self.facts_path)
        return check_generation({key: value for key, value in read_json(path).items() if key not in CODE}, path)


class _GgufContents(Contents):
    def __init__(self, file: Path) -> None:
        opened = open_gguf(file)
        self.facts_path, self.facts = file, opened.raw
        self.tensors, self._vocabulary = opened.tensors, opened.vocabulary

    def tokenizer(self, config: Config) -> Tokenizer | None:
        if self._vocabulary is None:
            return None
        return build_tokenizer(self._vocabulary, max_length=config.max_sequence_length)
