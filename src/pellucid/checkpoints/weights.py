"""The weights of a folder in any supported form: one file, shards, or PyTorch's `.bin`."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.blocks.rounding import BLOCK
from pellucid.checkpoints.cache import fetch_advice
from pellucid.checkpoints.links import path_inside
from pellucid.checkpoints.model_files import PICKLED, SAFETENSORS, WEIGHTS, form_of_folder
from pellucid.checkpoints.pickled import read_pickled
from pellucid.checkpoints.tensors import check_name, read_metadata_value, tensor_spans
from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError, UnsafeFileError, join_names
from pellucid.files import read_json

UNTRAINED = "pellucid.untrained"
"""Key, in the metadata of weights that we wrote, of the list of parts that are still random."""

_NUMBERS_AT_ONCE = 2**17


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor that has not been read yet.

    rows: reads the rows from start to stop; None where only the whole tensor can be read.
    grids: reads a 4-bit matrix in the form of `pellucid.blocks.rounding.GRID`; None for all others.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    rows: Callable[[int, int], Tensor] | None = None
    grids: Callable[[], Tensor] | None = None

    def pieces(self) -> Iterator[Tensor]:
        """The values in order, some rows at a time, so that a large matrix is never in memory as a whole."""
        if self.rows is None or not self.shape:
            yield self.read()
            return
        step = max(1, _NUMBERS_AT_ONCE // max(1, math.prod(self.shape[1:])))
        step = step // BLOCK * BLOCK or step  # a multiple of BLOCK, so that packed blocks of rows are not split
        for start in range(0, self.shape[0], step):
            yield self.rows(start, min(start + step, self.shape[0]))


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint folder by its name in the file; safetensors take precedence over `.bin`."""
    for name, _, index in (SAFETENSORS, PICKLED):
        if os.path.lexists(folder / name):
            return tensors_in_file(existing_path(folder, name))
        if os.path.lexists(folder / index):
            return _sharded_tensors(folder, existing_path(folder, index), Path(name).suffix)
    for _, shards, index in (SAFETENSORS, PICKLED):
        if found := sorted(path.name for path in folder.glob(shards)):
            advice = fetch_advice(folder, (index,)) or ": fetch it too"
            raise NotFoundError(f"{folder} holds {join_names(found, 3)} without {index}, which lists them{advice}")
    if packed := form_of_folder(folder).gguf_files:
        raise NotFoundError(f"{folder} holds a config.json and no weights but {packed[0]}: give its path")
    others = sorted(path.name for path in folder.glob("*.safetensors*"))
    advice = f"; it holds {join_names(others)}, which are read by those names alone: rename them" if others else ""
    advice = advice or fetch_advice(folder, WEIGHTS)
    raise NotFoundError(
        f"{folder} holds no weights: expected model.safetensors, its shards, or pytorch_model.bin{advice}"
    )


def untrained_in(folder: Path) -> tuple[str, ...]:
    """The parts that the weights' metadata lists as random, in the form of `Loaded.untrained`; tools that train and
    save the weights leave that entry out."""
    if not os.path.lexists(folder / SAFETENSORS[0]):
        return ()
    path = existing_path(folder, SAFETENSORS[0])
    parts = read_metadata_value(path, UNTRAINED, [])
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise CorruptFileError(f"{path} has a damaged note in its header: {UNTRAINED} is not a list of names")
    return tuple(parts)


def existing_path(folder: Path, name: str) -> Path:
    """The path of a file in a folder. Raises NotFoundError for a dangling link."""
    path = path_inside(folder, name)
    if not path.exists():
        raise NotFoundError(f"{path} is a link to a file that is gone{fetch_advice(folder, (name,))}")
    return path


def tensors_in_file(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file, read as safetensors or as PyTorch's format by its suffix."""
    if path.suffix == ".safetensors":
        return {
            name: StoredTensor(span.dtype, span.shape, span.read, span.rows)
            for name, span in tensor_spans(path).items()
        }
    return {name: _in_memory(tensor) for name, tensor in read_pickled(path).items()}


def _in_memory(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.dtype, tuple(tensor.shape), lambda: tensor)


def _sharded_tensors(folder: Path, index: Path, ending: str) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if (
        not weight_map
        or not isinstance(weight_map, Mapping)
        or not all(isinstance(shard, str) for shard in weight_map.values())
    ):
        raise CorruptFileError(f"{index} has no weight_map of names and files")
    for name in weight_map:
        check_name(index, name)
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not shard.endswith(ending):
            raise UnsafeFileError(f"{index} names {shard[:80]!r}, expected files ending in {ending}")
    paths = {shard: path_inside(folder, shard) for shard in shards}
    missing = [shard for shard, path in paths.items() if not path.exists()]
    if missing:
        num_present = len(shards) - len(missing)
        message = (
            f"{folder}: {num_present} of {len(shards)} files of the weights are here; missing {join_names(missing)}"
        )
        raise NotFoundError(message + fetch_advice(folder, WEIGHTS))
    found: dict[str, StoredTensor] = {}
    for shard, path in paths.items():
        tensors = tensors_in_file(path)
        misplaced = [name for name in tensors if weight_map.get(name) != shard]
        if misplaced:
            raise CheckpointMismatchError(
                f"{path} holds {join_names(misplaced)}, which {index.name} does not list there"
            )
        found |= tensors
    unstored = [name for name in weight_map if name not in found]
    if unstored:
        raise CheckpointMismatchError(f"{index} lists {join_names(unstored)}, which no file holds")
    return found
