"""The folder of sentence-transformers: which modules follow the encoder to make one vector of a text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.checkpoints.source import inside
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, UnsafeFileError, near
from pellucid.files import read_any, read_json

MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The ways to make one vector of many, and the keys that older files name them by."""

STATED = "config_sentence_transformers.json"

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
"""The ways to compare two vectors; the last two are distances, less than nothing."""


@dataclass(frozen=True)
class Pooling:
    """How a text becomes one vector.

    modes: names from `MODES`; several are laid side by side.
    normalize: scale the vector to length 1.
    max_length: longer texts are cut to so many tokens; None for the model's own limit.
    similarity: how such vectors are compared, a name from `SIMILARITIES`.
    """

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    similarity: str = "cosine"

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise InputError(f"pooling {mode!r} is not known{near(mode, MODES)}: one of {', '.join(MODES)}")


def read_pooling(folder: Path) -> Pooling | None:
    """What `modules.json` says, or None where the folder is a plain checkpoint."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modes: tuple[str, ...] = ()
    normalize = False
    for i, module in enumerate(_modules(path)):
        named = str(module.get("type"))[:100]
        kind = named.rpartition(".")[2]
        if not named.startswith("sentence_transformers."):
            raise UnsafeFileError(f"{path} names code of its own, {named!r}; pellucid never runs it")
        if kind == "Pooling":
            modes = _modes(inside(folder, module.get("path")) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer" or i:
            raise CheckpointMismatchError(f"{path}: module {kind!r} is not known; Transformer, Pooling, Normalize are")
    longest, similarity = _longest(folder / "sentence_bert_config.json"), _similarity(folder / STATED)
    return Pooling(modes or ("mean",), normalize, longest, similarity)


def write_pooling(pooling: Pooling, width: int, folder: Path) -> None:
    """The same folder layout, which sentence-transformers opens."""
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * pooling.normalize
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": paths[i], "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "1_Pooling").mkdir()
    flags = {key: mode in pooling.modes for mode, key in MODES.items()}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    _write(folder / "modules.json", modules)
    _write(folder / STATED, {"similarity_fn_name": pooling.similarity})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": pooling.max_length, "do_lower_case": False})


def _modules(path: Path) -> list[dict[str, Any]]:
    found = read_any(path)
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CorruptFileError(f"{path} is damaged, expected a list of modules")
    return found


def _modes(path: Path) -> tuple[str, ...]:
    found = read_json(path)
    stated = found.get("pooling_mode")
    if stated is None:
        return tuple(mode for mode, key in MODES.items() if found.get(key)) or ("mean",)
    names = stated if isinstance(stated, list) else [stated]
    modes = tuple(str(name).removesuffix("_tokens") for name in names)
    if not modes or not set(modes) <= set(MODES):
        raise CorruptFileError(f"{path}: pooling_mode is {repr(stated)[:60]}, expected one of {', '.join(MODES)}")
    return modes


def _longest(path: Path) -> int | None:
    length = read_json(path).get("max_seq_length") if path.is_file() else None
    if length is not None and (type(length) is not int or length < 1):
        raise CorruptFileError(f"{path}: max_seq_length is {length!r}, expected a whole number from 1")
    return length


def _similarity(path: Path) -> str:
    stated = read_json(path).get("similarity_fn_name") if path.is_file() else None
    if stated is not None and stated not in SIMILARITIES:
        raise CorruptFileError(
            f"{path}: similarity_fn_name is {repr(stated)[:60]}, expected one of {', '.join(SIMILARITIES)}"
        )
    return stated or "cosine"


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
