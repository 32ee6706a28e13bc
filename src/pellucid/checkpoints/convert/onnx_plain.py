"""An ONNX file without its library: what exporters write into one file, with whole bytes per number.

The fields are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto; `onnx` is there for all else.
"""

import struct
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.graph import Graph, Held, Node
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError
from pellucid.text.wire import BrokenMessage, fields, signed, varint

MODEL_GRAPH, MODEL_OPSETS, MODEL_FUNCTIONS = 7, 8, 25
GRAPH = {"nodes": 1, "tensors": 5, "inputs": 11, "outputs": 12, "sparse": 15}
NODE = {"inputs": 1, "outputs": 2, "name": 3, "kind": 4, "settings": 5}
SETTING = {"name": 1, "real": 2, "whole": 3, "text": 4, "tensor": 5, "graph": 6, "reals": 7, "wholes": 8, "graphs": 11}
TENSOR = {"shape": 1, "kind": 2, "reals": 4, "wholes": 5, "longs": 7, "name": 8, "raw": 9, "outside": 13}
VALUE = (2, 1, 2)
"""The numbers of the fields that are read, by our names; and those that lead from an input to its shape."""

KINDS = {
    1: ("FLOAT", torch.float32), 2: ("UINT8", torch.uint8), 3: ("INT8", torch.int8), 5: ("INT16", torch.int16),
    6: ("INT32", torch.int32), 7: ("INT64", torch.int64), 9: ("BOOL", torch.bool), 10: ("FLOAT16", torch.float16),
    11: ("DOUBLE", torch.float64), 16: ("BFLOAT16", torch.bfloat16),
}  # fmt: skip
"""ONNX's numbers for types, its words for them, and ours."""

Message = dict[int, list[int | bytes]]


def open_plain(path: Path, data: bytes) -> Graph:
    """The graph of a file whose bytes these are; the numbers are read when they are asked for.

    Raises: CorruptFileError for a damaged file; InputError for what only the library reads; CheckpointMismatchError
    for branches and loops.
    """
    try:
        model = _message(data)
        parts = _message(_last(model, MODEL_GRAPH))
        if model.get(MODEL_FUNCTIONS) or parts.get(GRAPH["sparse"]):
            raise _for_the_library(path, "functions or sparse tables")
        held = dict(_held(path, raw) for raw in _every(parts, GRAPH["tensors"]))
        nodes = []
        for raw in _every(parts, GRAPH["nodes"]):
            node, constant = _node(path, raw)
            if constant is None:
                nodes.append(node)
            else:
                held[node.outputs[0]] = constant
        inputs, outputs = ([_name(raw) for raw in _every(parts, GRAPH[way])] for way in ("inputs", "outputs"))
        opset = max((found for raw in _every(model, MODEL_OPSETS) if (found := _opset(raw))), default=13)
        sizes = {_name(raw): found for raw in _every(parts, GRAPH["inputs"]) if (found := _sizes(raw))}
    except (BrokenMessage, UnicodeDecodeError, struct.error) as error:
        raise CorruptFileError(
            f"{path} ({len(data):,} bytes) is no ONNX model, or was cut short; fetch it again"
        ) from error
    if not nodes:
        raise CorruptFileError(f"{path} holds no operations: it is no ONNX model, or was cut short; fetch it again")
    given = tuple(name for name in inputs if name not in held)
    return Graph(path, tuple(nodes), held, given, tuple(outputs), sizes, opset)


def _node(path: Path, raw: bytes) -> tuple[Node, Held | None]:
    """An operation, and the numbers that it holds where it is a constant."""
    node = _message(raw)
    ways = [tuple(_text(one) for one in _every(node, NODE[way])) for way in ("inputs", "outputs")]
    kind, name = _text(_last(node, NODE["kind"])), _text(_last(node, NODE["name"]))
    if not ways[1]:
        raise CorruptFileError(f"{path} is damaged: an operation in it makes nothing; fetch it again")
    settings: dict[str, Any] = {}
    for one in _every(node, NODE["settings"]):
        setting = _message(one)
        if setting.get(SETTING["graph"]) or setting.get(SETTING["graphs"]):
            raise CheckpointMismatchError(
                f"{path}: {kind} {name[:80]} holds a graph of its own, which no encoder needs; "
                "export the model without branches and loops"
            )
        settings[_text(_last(setting, SETTING["name"]))] = _setting(path, setting)
    constant = _constant(settings) if kind == "Constant" else None
    for key, value in settings.items():
        if kind == "ConstantOfShape" and isinstance(value, Held) and prod(value.shape) == 1:
            settings[key] = value.read().item()
    plain = {key: value for key, value in settings.items() if not isinstance(value, Held)}
    return Node(kind, name, ways[0], ways[1], plain), constant


def _setting(path: Path, setting: Message) -> Any:
    """The value of a setting, of whatever type is there; a whole number where it is 0 and not written at all."""
    for name, read in (("wholes", _wholes), ("reals", _reals)):
        if SETTING[name] in setting:
            return list(read(setting[SETTING[name]]))
    if SETTING["tensor"] in setting:
        return _held(path, _last(setting, SETTING["tensor"]))[1]
    if SETTING["text"] in setting:
        return _last(setting, SETTING["text"]).decode("utf-8", "replace")
    if SETTING["real"] in setting:
        return next(_reals(setting[SETTING["real"]]))
    return next(_wholes(setting.get(SETTING["whole"], [0])))


def _constant(settings: dict[str, Any]) -> Held | None:
    for name, value in settings.items():
        if isinstance(value, Held):
            return value
        if name in ("value_int", "value_ints", "value_float", "value_floats"):
            kind, dtype = ("INT64", torch.int64) if "int" in name else ("FLOAT", torch.float32)
            numbers = torch.tensor(value, dtype=dtype, device="cpu")
            return Held(kind, tuple(numbers.shape), lambda numbers=numbers: numbers)
    return None


def _held(path: Path, raw: bytes) -> tuple[str, Held]:
    """A tensor by its name: type and shape now, numbers later."""
    tensor = _message(raw)
    name, shape = _text(_last(tensor, TENSOR["name"])), tuple(_wholes(tensor.get(TENSOR["shape"], [])))
    number = next(_wholes(tensor.get(TENSOR["kind"], [0])))
    if number not in KINDS or tensor.get(TENSOR["outside"]):
        raise _for_the_library(path, f"numbers in other files, or of type {number},")
    if len(shape) > 8 or any(not 0 <= size < 2**40 for size in shape) or prod(shape) >= 2**40:
        raise CorruptFileError(f"{path}: {name[:80]!r} has shape {list(shape)[:9]}, which no model has")
    return name, Held(KINDS[number][0], shape, partial(_read, path, tensor, name, shape, KINDS[number][1]))


def _read(path: Path, tensor: Message, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        numbers = _numbers(tensor, dtype)
    except (BrokenMessage, struct.error, RuntimeError, OverflowError, ValueError) as error:
        raise CorruptFileError(f"{path}: {name[:80]!r} holds no readable numbers; fetch it again") from error
    if numbers.numel() != prod(shape):
        raise CorruptFileError(f"{path}: {name[:80]!r} has fewer or more numbers than its shape {list(shape)} asks for")
    return numbers.to(dtype).reshape(shape)


def _numbers(tensor: Message, dtype: torch.dtype) -> Tensor:
    """The numbers in a row: as raw bytes, as reals of 32 bits, or as whole numbers."""
    raw = _last(tensor, TENSOR["raw"])
    if raw:
        return torch.frombuffer(bytearray(raw), dtype=dtype)
    if TENSOR["reals"] in tensor:
        return torch.tensor(list(_reals(tensor[TENSOR["reals"]])), device="cpu")
    whole = torch.tensor(
        list(_wholes(tensor.get(TENSOR["wholes"], []) + tensor.get(TENSOR["longs"], []))), device="cpu"
    )
    half = dtype in (torch.float16, torch.bfloat16)  # these are written as the bits that they are
    return whole.to(torch.int16).view(dtype) if half else whole


def _message(data: bytes) -> Message:
    found: Message = {}
    for number, _, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _every(message: Message, number: int) -> Iterator[bytes]:
    for value in message.get(number, []):
        if not isinstance(value, bytes):
            raise BrokenMessage(f"field {number} is a number, expected bytes")
        yield value


def _last(message: Message, number: int) -> bytes:
    """The value of a field that is there once; nothing where it is not there."""
    return next(iter(list(_every(message, number))[-1:]), b"")


def _name(raw: bytes) -> str:
    return _text(_last(_message(raw), 1))


def _opset(raw: bytes) -> int:
    """The version of ONNX's own operations; 0 for one of other makers' operations."""
    found = _message(raw)
    return 0 if _text(_last(found, 1)) not in ("", "ai.onnx") else next(_wholes(found.get(2, [0])))


def _sizes(raw: bytes) -> tuple[int, ...]:
    """The sizes of an input's axes; 0 where one is free."""
    found = _message(raw)
    for number in VALUE:
        found = _message(_last(found, number))
    return tuple(max(next(_wholes(_message(axis).get(1, [0]))), 0) for axis in _every(found, 1))


def _text(raw: bytes) -> str:
    return raw.decode()


def _wholes(values: list[int | bytes]) -> Iterator[int]:
    """Whole numbers, one by one or packed."""
    for value in values:
        if isinstance(value, int):
            yield signed(value)
            continue
        start = 0
        while start < len(value):
            one, start = varint(value, start, len(value))
            yield signed(one)


def _reals(values: list[int | bytes]) -> Iterator[float]:
    """Numbers of 32 bits, one by one or packed."""
    for value in values:
        if not isinstance(value, bytes):
            raise BrokenMessage("a real number is written as a whole one")
        yield from struct.unpack(f"<{len(value) // 4}f", value)


def _for_the_library(path: Path, what: str) -> InputError:
    return InputError(f'{path} has {what} which the package onnx reads; run: pip install "pellucid[onnx]"')
