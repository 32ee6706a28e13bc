"""Tiny checkpoints that are the same on every machine: each weight is computed from the name of its tensor.

    python -m tests.parity.tiny NAME FOLDER

writes the checkpoint NAME of `recipes.py`. Its tensors are those of the reference, whose names and shapes are in
`golden/shapes.json`; its tokenizer is one of `golden/tokenizers`.
"""

import hashlib
import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file

from tests.parity.recipes import RECIPES, Recipe

GOLDEN = Path(__file__).parent / "golden"
_NORMS = ("norm", "ln_")
_TABLES = ("embed", "shared", "wte", "wpe")
_GAIN = 1.5


def write(name: str, folder: Path) -> Path:
    """Writes the checkpoint to `folder`, which is created if missing."""
    recipe = RECIPES[name]
    shapes = json.loads((GOLDEN / "shapes.json").read_text(encoding="utf-8"))[name]
    folder.mkdir(parents=True, exist_ok=True)
    write_facts(name, folder)
    tensors = {tensor: random_weights(recipe, tensor, shape) for tensor, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_facts(name: str, folder: Path) -> None:
    """Writes everything but the weights: the facts, the generation settings, the tokenizer."""
    recipe = RECIPES[name]
    _dump(folder / "config.json", recipe.config)
    if recipe.generation:
        _dump(folder / "generation_config.json", recipe.generation)
    kind = GOLDEN / "tokenizers" / recipe.tokenizer
    shutil.copyfile(kind / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((kind / "tokenizer_config.json").read_text(encoding="utf-8"))
    _dump(folder / "tokenizer_config.json", settings | recipe.settings)


def random_weights(recipe: Recipe, name: str, shape: list[int]) -> numpy.ndarray:
    """The weights of one tensor, uniformly distributed.

    NumPy guarantees that the raw stream of this generator never changes, but not the distributions that it derives.
    """
    seed = int.from_bytes(hashlib.sha256(f"{recipe.seed} {name}".encode()).digest()[:8], "little")
    raw = numpy.random.PCG64(seed).random_raw(math.prod(shape))
    unit = ((raw >> numpy.uint64(11)) * 2.0**-52 - 1.0) * math.sqrt(3.0)  # mean 0, variance 1
    values = _mean(name) + _standard_deviation(recipe, name, shape) * unit.reshape(shape)
    for part, rows in recipe.row_factors.items():
        for row, factor in rows.items() if name.endswith(part) else ():
            values[row] *= factor
    return values.astype(numpy.float32)


def _mean(name: str) -> float:
    return 1.0 if name.endswith("weight") and any(part in name.lower() for part in _NORMS) else 0.0


def _standard_deviation(recipe: Recipe, name: str, shape: list[int]) -> float:
    """The standard deviation: 0.1 for vectors, 1 for embeddings, else such that a row's sum stays about `_GAIN`."""
    gain = math.prod((value for part, value in recipe.gains.items() if part in name), start=1.0)
    if len(shape) < 2:
        return 0.1 * gain
    if any(part in name.lower() for part in _TABLES) and "mapping" not in name:
        return gain
    return gain * _GAIN / math.sqrt(shape[-1])


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
