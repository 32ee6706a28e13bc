"""Reads a checkpoint from one GGUF file in the reference's terms: facts, tensors, vocabulary."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pellucid.checkpoints.gguf.block_types import PackedTensor
from pellucid.checkpoints.gguf.dequantise import dtype_of, grids_of, unpack
from pellucid.checkpoints.gguf.facts import config_facts
from pellucid.checkpoints.gguf.header import Header, read_header
from pellucid.checkpoints.gguf.names import NAMINGS, Naming, part_of, reference_name, uninterleave
from pellucid.checkpoints.weights import StoredTensor
from pellucid.errors import CheckpointMismatchError, join_names
from pellucid.text.gguf_vocabulary import Vocabulary, read_vocabulary


@dataclass(frozen=True)
class Gguf:
    """A GGUF file whose header has been checked completely; tensors are not read yet.

    raw: the facts under the keys of a reference `config.json`.
    tensors: by the reference's names and in its shapes; quantised ones become float32 when read.
    vocabulary: for building a tokenizer (`pellucid.text.from_gguf.build_tokenizer`); None where the file has none.
    """

    raw: dict[str, Any]
    tensors: dict[str, StoredTensor]
    vocabulary: Vocabulary | None


def open_gguf(path: Path) -> Gguf:
    """Opens a GGUF file of a Llama kind (llama, qwen2) or GPT-2; tensors are not read until `read()`.

    Raises CorruptFileError for a file that is damaged or contradicts itself, UnsafeFileError for excessive sizes,
    CheckpointMismatchError for an unsupported architecture, tensor or quantisation.
    """
    header = read_header(path)
    _check_single_model(header)
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in NAMINGS:
        raise CheckpointMismatchError(
            f"{path}: general.architecture is {str(architecture)[:40]!r}, expected one of {', '.join(NAMINGS)}"
        )
    vocabulary = read_vocabulary(header.metadata, str(path))
    raw = config_facts(header, architecture, len(vocabulary.tokens) if vocabulary else 0)
    return Gguf(raw, _tensors(header, NAMINGS[architecture], raw), vocabulary)


def _check_single_model(header: Header) -> None:
    """Refuses one of several files of a split model, whose missing tensors might be taken for tied ones, and an adapter
    without its base."""
    if header.metadata.get("general.type") == "adapter":
        raise CheckpointMismatchError(
            f"{header.path} is an adapter, which is read in PEFT's format alone: let llama.cpp's llama-export-lora "
            "merge it into its base first"
        )
    parts, number = (header.metadata.get(f"split.{key}") for key in ("count", "no"))
    if type(parts) is int and parts > 1:
        which = f"part {number + 1}" if type(number) is int else "one part"
        raise CheckpointMismatchError(
            f"{header.path} is {which} of {parts} of a model: let llama.cpp's llama-gguf-split merge them first"
        )


def _tensors(header: Header, naming: Naming, raw: dict[str, Any]) -> dict[str, StoredTensor]:
    parameters = {name: packed for name, packed in header.tensors.items() if name not in naming.computed}
    named = {name: reference_name(naming, name) for name in parameters}
    unknown = [name for name, our_name in named.items() if our_name is None]
    if unknown:
        raise CheckpointMismatchError(f"{header.path} holds unexpected tensors: {join_names(unknown)}")
    return {
        our_name: _stored(name, parameters[name], naming, raw)
        for name, our_name in named.items()
        if our_name is not None
    }


def _stored(name: str, packed: PackedTensor, naming: Naming, raw: dict[str, Any]) -> StoredTensor:
    dtype, part, read, grids = dtype_of(packed, name), part_of(name), partial(unpack, packed), grids_of(packed)
    if part in naming.interleaved:
        heads = raw[naming.interleaved[part]]
        if packed.shape[0] % (2 * heads):
            raise CheckpointMismatchError(
                f"{packed.path}: {name} has {packed.shape[0]} rows, expected a multiple of 2 × {heads} heads"
            )
        own_grids = grids and (lambda: uninterleave(grids(), heads))
        return StoredTensor(dtype, packed.shape, lambda: uninterleave(read(), heads), grids=own_grids)
    if len(packed.shape) != 2:
        return StoredTensor(dtype, packed.shape, read, grids=grids)
    if part in naming.transposed:
        return StoredTensor(dtype, packed.shape[::-1], lambda: read().t().contiguous())
    return StoredTensor(dtype, packed.shape, read, lambda start, stop: unpack(packed.rows(start, stop)), grids)
