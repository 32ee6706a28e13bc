"""Reads ONNX files without the `onnx` library: single files with whole bytes per value, as exporters write them.

The fields are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; anything else needs `onnx`.
"""

import struct
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert import records
from pellucid.checkpoints.convert.graph import TYPES, Graph, Initializer, Node
from pellucid.errors import CorruptFileError, InputError
from pellucid.text.protobuf import InvalidMessageError, fields, signed, varint

MODEL_GRAPH, MODEL_OPSETS, MODEL_FUNCTIONS = 7, 8, 25
GRAPH = {"nodes": 1, "tensors": 5, "inputs": 11, "outputs": 12, "sparse": 15}
NODE = {"inputs": 1, "outputs": 2, "name": 3, "op_type": 4, "attributes": 5}
ATTRIBUTE = {
    "name": 1,
    "real": 2,
    "whole": 3,
    "text": 4,
    "tensor": 5,
    "graph": 6,
    "reals": 7,
    "wholes": 8,
    "graphs": 11,
}
TENSOR = {"shape": 1, "kind": 2, "reals": 4, "wholes": 5, "longs": 7, "name": 8, "raw": 9, "outside": 13}
VALUE = (2, 1, 2)
"""Protobuf field numbers by our names, and the path of fields from an input to its shape."""

Message = dict[int, list[int | bytes]]


def open_plain(path: Path, data: bytes) -> Graph:
    """The graph in the bytes of a file; its tensors are decoded only when needed.

    Raises: CorruptFileError for a damaged file; InputError for what only the library reads; CheckpointMismatchError for
    branches and loops.
    """
    try:
        model = _parsed_message(data)
        parts = _parsed_message(_last_field(model, MODEL_GRAPH))
        if model.get(MODEL_FUNCTIONS) or parts.get(GRAPH["sparse"]):
            raise _needs_onnx_error(path, "functions or sparse tables")
        tensors = (_initializer(path, raw) for raw in _bytes_fields(parts, GRAPH["tensors"]))
        operations = (_operation(path, raw) for raw in _bytes_fields(parts, GRAPH["nodes"]))
        inputs, outputs = ((_name(raw) for raw in _bytes_fields(parts, GRAPH[side])) for side in ("inputs", "outputs"))
        opset = max((found for raw in _bytes_fields(model, MODEL_OPSETS) if (found := _opset(raw))), default=13)
        sizes = {_name(raw): found for raw in _bytes_fields(parts, GRAPH["inputs"]) if (found := _axis_sizes(raw))}
        return records.build_graph(path, tensors, operations, inputs, outputs, sizes, opset)
    except (InvalidMessageError, UnicodeDecodeError, struct.error) as error:
        raise records.no_model_error(path, len(data)) from error


def _operation(path: Path, raw: bytes) -> tuple[Node, Initializer | None]:
    """An operation, and its value where it is a constant."""
    node = _parsed_message(raw)
    names = [tuple(_text(one) for one in _bytes_fields(node, NODE[side])) for side in ("inputs", "outputs")]
    op_type, name = _text(_last_field(node, NODE["op_type"])), _text(_last_field(node, NODE["name"]))
    attributes: dict[str, Any] = {}
    for one in _bytes_fields(node, NODE["attributes"]):
        attribute = _parsed_message(one)
        if attribute.get(ATTRIBUTE["graph"]) or attribute.get(ATTRIBUTE["graphs"]):
            raise records.nested_graph_error(path, op_type, name)
        attributes[_text(_last_field(attribute, ATTRIBUTE["name"]))] = _attribute_value(path, attribute)
    constant = _constant(path, attributes) if op_type == "Constant" else None
    for key, value in attributes.items():
        if op_type == "ConstantOfShape" and isinstance(value, Initializer) and prod(value.shape) == 1:
            attributes[key] = value.read().item()
    plain = {key: value for key, value in attributes.items() if not isinstance(value, Initializer)}
    return Node(op_type, name, names[0], names[1], plain), constant


def _attribute_value(path: Path, attribute: Message) -> Any:
    """The value of an attribute of any type; an integer 0 where no value is stored, as protobuf omits zeros."""
    for name, read in (("wholes", _integers), ("reals", _floats)):
        if ATTRIBUTE[name] in attribute:
            return list(read(attribute[ATTRIBUTE[name]]))
    if ATTRIBUTE["tensor"] in attribute:
        return _initializer(path, _last_field(attribute, ATTRIBUTE["tensor"]))[1]
    if ATTRIBUTE["text"] in attribute:
        return _last_field(attribute, ATTRIBUTE["text"]).decode("utf-8", "replace")
    if ATTRIBUTE["real"] in attribute:
        return next(_floats(attribute[ATTRIBUTE["real"]]))
    return next(_integers(attribute.get(ATTRIBUTE["whole"], [0])))


def _constant(path: Path, attributes: dict[str, Any]) -> Initializer | None:
    for name, value in attributes.items():
        found = value if isinstance(value, Initializer) else records.constant_value(path, name, value)
        if found is not None:
            return found
    return None


def _initializer(path: Path, raw: bytes) -> tuple[str, Initializer]:
    """A tensor by its name: type and shape now, values on demand."""
    tensor = _parsed_message(raw)
    name, shape = _text(_last_field(tensor, TENSOR["name"])), tuple(_integers(tensor.get(TENSOR["shape"], [])))
    type_number = next(_integers(tensor.get(TENSOR["kind"], [0])))
    if type_number not in TYPES or tensor.get(TENSOR["outside"]):
        raise _needs_onnx_error(path, f"numbers in other files, or of type {type_number},")
    records.check_shape(path, name, shape)
    kind, dtype = TYPES[type_number]
    return name, Initializer(kind, shape, partial(_read, path, tensor, name, shape, dtype))


def _read(path: Path, tensor: Message, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        numbers = _numbers(tensor, dtype)
    except (struct.error, RuntimeError, OverflowError, ValueError) as error:
        raise CorruptFileError(f"{path}: {name[:80]!r} holds no readable numbers; fetch it again") from error
    if numbers.numel() != prod(shape):
        raise records.wrong_count_error(path, name, shape)
    return numbers.to(dtype).reshape(shape)


def _numbers(tensor: Message, dtype: torch.dtype) -> Tensor:
    """The flat values: from raw bytes, 32-bit floats, or integers."""
    raw = _last_field(tensor, TENSOR["raw"])
    if raw:
        return torch.frombuffer(bytearray(raw), dtype=dtype)
    if TENSOR["reals"] in tensor:
        return torch.tensor(list(_floats(tensor[TENSOR["reals"]])), device="cpu")
    integers = torch.tensor(
        list(_integers(tensor.get(TENSOR["wholes"], []) + tensor.get(TENSOR["longs"], []))), device="cpu"
    )
    is_half = dtype in (torch.float16, torch.bfloat16)  # these are stored as their bit patterns
    return integers.to(torch.int16).view(dtype) if is_half else integers


def _parsed_message(data: bytes) -> Message:
    found: Message = {}
    for number, _, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _bytes_fields(message: Message, number: int) -> Iterator[bytes]:
    for value in message.get(number, []):
        if not isinstance(value, bytes):
            raise InvalidMessageError(f"field {number} is a number, expected bytes")
        yield value


def _last_field(message: Message, number: int) -> bytes:
    """The value of a non-repeated field, of which the last occurrence counts; empty where it is absent."""
    return next(iter(list(_bytes_fields(message, number))[-1:]), b"")


def _name(raw: bytes) -> str:
    return _text(_last_field(_parsed_message(raw), 1))


def _opset(raw: bytes) -> int:
    """The version of ONNX's own operations; 0 for another domain's."""
    found = _parsed_message(raw)
    return 0 if _text(_last_field(found, 1)) not in ("", "ai.onnx") else next(_integers(found.get(2, [0])))


def _axis_sizes(raw: bytes) -> tuple[int, ...]:
    """The sizes of an input's axes; 0 for a dynamic one."""
    found = _parsed_message(raw)
    for number in VALUE:
        found = _parsed_message(_last_field(found, number))
    return tuple(max(next(_integers(_parsed_message(axis).get(1, [0]))), 0) for axis in _bytes_fields(found, 1))


def _text(raw: bytes) -> str:
    return raw.decode()


def _integers(values: list[int | bytes]) -> Iterator[int]:
    """Integers, single or packed."""
    for value in values:
        if isinstance(value, int):
            yield signed(value)
            continue
        start = 0
        while start < len(value):
            one, start = varint(value, start, len(value))
            yield signed(one)


def _floats(values: list[int | bytes]) -> Iterator[float]:
    """32-bit floats, single or packed."""
    for value in values:
        if not isinstance(value, bytes):
            raise InvalidMessageError("a real number is written as a whole one")
        yield from struct.unpack(f"<{len(value) // 4}f", value)


def _needs_onnx_error(path: Path, what: str) -> InputError:
    return InputError(f'{path} has {what} which the package onnx reads; run: pip install "pellucid[onnx]"')
