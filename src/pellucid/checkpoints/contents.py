"""A checkpoint before it is understood: what its files say, whichever form they have."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import CODE, read_json
from pellucid.checkpoints.generation import FILE, check_generation, legacy_generation
from pellucid.checkpoints.gguf import open_gguf
from pellucid.checkpoints.sentence import Pooling, read_pooling
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.weights import Stored, stored
from pellucid.config import Config
from pellucid.text import Tokenizer
from pellucid.text.files import open_target_tokenizer, open_tokenizer
from pellucid.text.from_gguf import build_tokenizer


@dataclass(frozen=True)
class Contents:
    """What the files of a checkpoint say.

    said_in: the file with the facts, for errors.  facts: as the reference's `config.json` says them.
    tensors: by the reference's names, none read yet.  tokenizer: opens it, once the model's limits are known;
    target_tokenizer: the same for what a decoder writes in words of its own.
    generation: how it is to write, by the reference's keys.
    """

    said_in: Path
    facts: dict[str, Any]
    tensors: dict[str, Stored]
    tokenizer: Callable[[Config], Tokenizer | None]
    pooling: Pooling | None = None
    target_tokenizer: Tokenizer | None = None
    generation: dict[str, Any] = field(default_factory=dict)


def read_contents(source: Source) -> Contents:
    """Reads the facts and the heads of the weight files; the weights themselves are left where they are."""
    return _of_folder(source.folder) if source.file is None else _of_gguf(source.file)


def _of_folder(folder: Path) -> Contents:
    facts = read_json(folder / "config.json")

    def tokenizer(config: Config) -> Tokenizer | None:
        return open_tokenizer(
            folder,
            max_length=config.longest,
            token_types=config.type_vocab_size > 1,
            model_type=config.family,
        )

    return Contents(
        said_in=folder / "config.json",
        facts=facts,
        tensors=stored(folder),
        tokenizer=tokenizer,
        pooling=read_pooling(folder),
        target_tokenizer=open_target_tokenizer(folder),
        generation=_generation(folder, facts),
    )


def _generation(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    path = folder / FILE
    if not path.is_file():
        return legacy_generation(facts, folder / "config.json")
    return check_generation({key: value for key, value in read_json(path).items() if key not in CODE}, path)


def _of_gguf(file: Path) -> Contents:
    held = open_gguf(file)

    def tokenizer(config: Config) -> Tokenizer | None:
        return None if held.vocabulary is None else build_tokenizer(held.vocabulary, max_length=config.longest)

    return Contents(file, held.raw, held.tensors, tokenizer)
