"""What an unfinished training says of itself: how far it is, what it is made of, and a digest of every file."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pellucid import __version__
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.plain import from_json_value
from pellucid.errors import InputError, join_names, shorten
from pellucid.files import cannot_read, write_atomically
from pellucid.sealed import damaged_error, read_sealed, seal
from pellucid.text.fingerprint import fingerprint
from pellucid.trace.stored import tensor_digest
from pellucid.training.advice import OVERWRITE_ADVICE
from pellucid.training.loop import Progress
from pellucid.training.settings import Settings

NAME = "manifest.json"

FORMAT = 1
"""Of the folder. A later one is refused with the version that wrote it."""

MAX_BYTES = 16 * 2**20
"""Of a manifest."""

MAY_CHANGE = ("accumulation", "activation_checkpointing", "save_every")
"""Settings that may differ where a training goes on: they change memory and time."""

MAY_CHANGE_AFTER_DIVERGENCE = ("learning_rate", "warmup", "clip", "precision", "beta1", "beta2", "epsilon")
"""Those that may differ as well where it ended because its numbers were none any more."""

FILES = re.compile(r"(state|best)-[0-9]{8,12}\.safetensors")

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TrainingIdentity:
    """What must be the same where a training goes on, as plain values: each can be said in a sentence.

    model: digest of the numbers and facts that it began from.  data, held_out: digests of the rows.
    words: digest of what its tokenizers do; "" in what was kept before that was told.
    """

    model: str
    data: str
    held_out: str
    objective: dict[str, Any]
    settings: dict[str, Any]
    words: str = ""

    @classmethod
    def of(
        cls, model_digest: str, tokenizer_digest: str, data: str, held_out: str, objective: Any, settings: Settings
    ) -> "TrainingIdentity":
        """model_digest: see `digest_of_model`.  tokenizer_digest: see `digest_of_tokenizers`."""
        names = [one.name for one in fields(objective) if not one.name.startswith("_")]  # the others are of the data
        options = {"name": objective.name} | {name: getattr(objective, name) for name in names}
        if getattr(objective, "taught_by", None) is not None:  # by its numbers: a folder may hold others by now
            options["teacher"] = objective.taught_by
        return cls(model_digest, data, held_out, _to_json(options), _to_json(asdict(settings)), tokenizer_digest)

    def differences(self, saved: "TrainingIdentity", free: tuple[str, ...]) -> list[str]:
        """What is other than it was in `saved`, each in a few words."""
        found = []
        for now, then in ((self.objective, saved.objective), (self.settings, saved.settings)):
            for name in {**then, **now}:
                if name not in free and then.get(name) != now.get(name):
                    found.append(f"{name} was {_short(then.get(name))} and is {_short(now.get(name))}")
        for name, sentence in (
            ("model", "its base model is another one"),
            ("data", "the data differ"),
            ("held_out", "the held-out data differ"),
        ):
            if getattr(self, name) != getattr(saved, name):
                found.append(sentence)
        if saved.words and self.words != saved.words:
            found.append("its tokenizer differs")
        return found


@dataclass(frozen=True)
class Manifest:
    """One state of a training.

    steps: of the whole of it.  files: {name: (bytes, sha256)}.  diverged: it ended because its numbers were none.
    """

    steps: int
    progress: Progress
    about: TrainingIdentity
    files: dict[str, tuple[int, str]]
    diverged: bool = False
    pellucid: str = __version__
    format: int = FORMAT

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self.progress.step

    def files_of_kind(self, kind: str) -> dict[str, tuple[int, str]]:
        """Its file of a kind, "state" or "best"; nothing where it has none."""
        return {name: facts for name, facts in self.files.items() if name.startswith(f"{kind}-")}

    def check(self, about: TrainingIdentity, folder: Path) -> None:
        """Raises InputError, with what differs, for a training that is not the one that began here."""
        differences = about.differences(
            self.about, (*MAY_CHANGE, *MAY_CHANGE_AFTER_DIVERGENCE) if self.diverged else MAY_CHANGE
        )
        if differences:
            raise InputError(
                f"the training in {folder} cannot continue: {join_names(differences)}; give what it started with, or ",
                OVERWRITE_ADVICE,
            )


def digest_of_model(loaded: Loaded) -> str:
    """sha256 of a model's facts and numbers, wherever they lie."""
    whole = hashlib.sha256(loaded.config_bytes())
    for name, tensor in loaded.module.state_dict().items():
        whole.update(f"{name} {tensor_digest(tensor)}".encode())
    return whole.hexdigest()


def digest_of_tokenizers(loaded: Loaded) -> str:
    """sha256 of what the tokenizers of a model do, wherever their files lie."""
    both = (loaded.tokenizer, loaded.target_tokenizer)
    return hashlib.sha256(" ".join(fingerprint(one) if one else "none" for one in both).encode()).hexdigest()


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Puts a manifest in the place of the one before. The folder's list of files is not yet flushed."""
    content = seal(_to_json(asdict(manifest)))
    write_atomically(folder / NAME, lambda file: file.write(content))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where no state was ever kept there.

    Raises CorruptFileError for one that was changed, and InputError for one of a later version.
    """
    path = folder / NAME
    try:
        body = read_sealed(path, FORMAT, MAX_BYTES, OVERWRITE_ADVICE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise cannot_read(path, error) from error
    try:
        manifest = from_json_value(body, Manifest)
        _check(manifest)
    except ValueError as error:
        raise damaged_error(path, error, OVERWRITE_ADVICE) from error
    return manifest


def _check(manifest: Manifest) -> None:
    """Raises ValueError for what no training says: a digest of itself is no proof of who wrote it."""
    names, facts = list(manifest.files), manifest.files.values()
    if not all(map(FILES.fullmatch, names)) or not all(_DIGEST.fullmatch(one) and size >= 0 for size, one in facts):
        raise ValueError(f"it names the files {sorted(names)[:3]}")
    if len(manifest.files_of_kind("state")) != 1 or not 0 <= manifest.step <= 10**12 or manifest.format != FORMAT:
        raise ValueError("it names no state")


def _to_json(value: Any) -> Any:
    """A value as JSON has it; of a model its digest, of another object the name of its kind."""
    loaded = getattr(value, "loaded", value)
    if isinstance(loaded, Loaded):
        return digest_of_model(loaded)
    if isinstance(value, Mapping):
        return {str(name): _to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": type(value).__name__} | {one.name: _to_json(getattr(value, one.name)) for one in fields(value)}
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _short(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 60)
