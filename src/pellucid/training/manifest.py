"""The manifest of an unfinished run: its progress, what must be the same to resume, and a digest of every file."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid import __version__
from pellucid.checkpoints.loaded import Loaded
from pellucid.checksummed import damaged_error, read_sealed, seal
from pellucid.config.plain import from_json_value
from pellucid.errors import InputError, join_names, shorten
from pellucid.files import cannot_read, write_atomically
from pellucid.text.fingerprint import fingerprint
from pellucid.trace.stored import tensor_digest
from pellucid.training.advice import OVERWRITE_ADVICE
from pellucid.training.loop import Progress

if TYPE_CHECKING:
    from pellucid.training.plan import Plan

NAME = "manifest.json"

FORMAT = 2
"""The format version of the folder; another one is refused."""

MAX_BYTES = 16 * 2**20
"""The most bytes of a manifest."""

MAY_CHANGE = ("accumulation", "activation_checkpointing", "save_every")
"""Settings that may differ when a run is resumed: they only affect memory and time."""

MAY_CHANGE_AFTER_DIVERGENCE = ("learning_rate", "warmup", "clip", "precision", "beta1", "beta2", "epsilon")
"""Further settings that may differ after a run that diverged."""

FILES = re.compile(r"(state|best)-[0-9]{8,12}\.safetensors")

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TrainingIdentity:
    """What must be the same to resume a run, as plain values that an error can print.

    model: digest of the weights and config it started from.  data, held_out: digests of the rows.
    tokenizer_digest: of what its tokenizers do.
    """

    model: str
    data: str
    held_out: str
    objective: dict[str, Any]
    settings: dict[str, Any]
    tokenizer_digest: str

    @classmethod
    def of(cls, plan: "Plan") -> "TrainingIdentity":
        """The identity of a planned run."""
        objective: Any = plan.objective
        names = [one.name for one in fields(objective) if not one.name.startswith("_")]  # those follow from the data
        options = {"name": objective.name} | {name: getattr(objective, name) for name in names}
        if getattr(objective, "loaded_teacher", None) is not None:  # by its weights: those in a folder may change
            options["teacher"] = objective.loaded_teacher
        return cls(
            model=plan.base_digest,
            data=plan.data.digest,
            held_out=plan.held_out.digest if plan.held_out else "",
            objective=_to_json(options),
            settings=_to_json(asdict(plan.settings)),
            tokenizer_digest=_digest_of_tokenizers(plan.base),
        )

    def differences(self, saved: "TrainingIdentity", free: tuple[str, ...]) -> list[str]:
        """What differs from `saved`, each in a few words.  free: options and settings that may differ."""
        found = []
        for now, then in ((self.objective, saved.objective), (self.settings, saved.settings)):
            for name in {**then, **now}:
                if name not in free and then.get(name) != now.get(name):
                    found.append(f"{name} was {_short(then.get(name))} and is {_short(now.get(name))}")
        for name, sentence in (
            ("model", "its base model is another one"),
            ("data", "the data differ"),
            ("held_out", "the held-out data differ"),
            ("tokenizer_digest", "its tokenizer differs"),
        ):
            if getattr(self, name) != getattr(saved, name):
                found.append(sentence)
        return found


@dataclass(frozen=True)
class Manifest:
    """One saved state of a run.

    steps: of the whole run.  files: {name: (bytes, SHA-256)}.  diverged: whether the run ended with DivergedError.
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
        """Its file of a kind, "state" or "best"; {} where there is none."""
        return {name: facts for name, facts in self.files.items() if name.startswith(f"{kind}-")}

    def check(self, about: TrainingIdentity, folder: Path) -> None:
        """Raises InputError, with what differs, for a run that is not the one of this manifest."""
        differences = about.differences(
            self.about, (*MAY_CHANGE, *MAY_CHANGE_AFTER_DIVERGENCE) if self.diverged else MAY_CHANGE
        )
        if differences:
            raise InputError(
                f"the training in {folder} cannot continue: {join_names(differences)}; give what it started with, or ",
                OVERWRITE_ADVICE,
            )


def digest_of_model(loaded: Loaded) -> str:
    """The SHA-256 of a model's config and weights, whatever its source."""
    digest = hashlib.sha256(loaded.config_bytes())
    for name, tensor in loaded.module.state_dict().items():
        digest.update(f"{name} {tensor_digest(tensor)}".encode())
    return digest.hexdigest()


def _digest_of_tokenizers(loaded: Loaded) -> str:
    """The SHA-256 of what the tokenizers of a model do, whatever their source."""
    both = (loaded.tokenizer, loaded.target_tokenizer)
    return hashlib.sha256(" ".join(fingerprint(one) if one else "none" for one in both).encode()).hexdigest()


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Replaces the manifest of a folder atomically. The folder itself is not flushed yet."""
    content = seal(_to_json(asdict(manifest)))
    write_atomically(folder / NAME, lambda file: file.write(content))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none.

    Raises CorruptFileError for one that was changed, and InputError for one of another format version.
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
    """Raises ValueError for contents that no run writes: a valid digest does not prove who wrote the file."""
    names, facts = list(manifest.files), manifest.files.values()
    if not all(map(FILES.fullmatch, names)) or not all(_DIGEST.fullmatch(one) and size >= 0 for size, one in facts):
        raise ValueError(f"it names the files {sorted(names)[:3]}")
    if len(manifest.files_of_kind("state")) != 1 or not 0 <= manifest.step <= 10**12 or manifest.format != FORMAT:
        raise ValueError("it names no state")


def _to_json(value: Any) -> Any:
    """A value for JSON; a model becomes its digest, another object the name of its type."""
    if isinstance(value, Loaded):
        return digest_of_model(value)
    if isinstance(value, Mapping):
        return {str(name): _to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__


def _short(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False), 60)
