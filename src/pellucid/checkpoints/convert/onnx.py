"""An ONNX file as plain records, and nothing of it is believed before it has been checked.

The fields are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import struct
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.convert.few_bits import unpacked
from pellucid.checkpoints.convert.functions import laid_out
from pellucid.checkpoints.convert.graph import TYPES, Graph, Held, Node
from pellucid.checkpoints.links import link_inside
from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError, ResourceError, UnsafeFileError
from pellucid.text.wire import BrokenMessage, fields, signed, varint

MOST_BYTES = 2**31
"""No protocol buffer is longer; larger models keep their numbers in files beside it."""

MODEL = {"graph": 7, "opsets": 8, "functions": 25}
GRAPH = {"nodes": 1, "tensors": 5, "inputs": 11, "outputs": 12, "sparse": 15}
NODE = {"inputs": 1, "outputs": 2, "name": 3, "kind": 4, "settings": 5}
SETTING = {"name": 1, "real": 2, "whole": 3, "text": 4, "tensor": 5, "graph": 6, "reals": 7, "wholes": 8, "graphs": 11}
TENSOR = {
    "shape": 1, "kind": 2, "reals": 4, "wholes": 5, "longs": 7, "name": 8, "raw": 9, "doubles": 10, "unsigned": 11,
    "outside": 13, "place": 14,
}  # fmt: skip
VALUE = (2, 1, 2)
"""The numbers of the fields that are read, by our names; and those that lead from an input to its shape."""

KINDS: dict[int, tuple[str, torch.dtype | None]] = {
    **TYPES, 4: ("UINT16", torch.uint16), 8: ("STRING", None), 12: ("UINT32", torch.uint32),
    13: ("UINT64", torch.uint64), 21: ("UINT4", torch.int8), 22: ("INT4", torch.int8),
}  # fmt: skip
"""The types that a tensor may be of: ONNX's number, its word, and ours; the last two lie two in a byte."""

Message = dict[int, list[Any]]


def open_graph(path: Path) -> Graph:
    """The graph of an `.onnx` file; its numbers are read when they are asked for.

    Raises: InputError for functions, where the package `onnx` is missing; CorruptFileError for a damaged file;
    CheckpointMismatchError for branches and loops; UnsafeFileError where it names numbers outside its folder.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is missing, expected an ONNX model")
    if (size := path.stat().st_size) >= MOST_BYTES:
        raise CorruptFileError(f"{path} has {size:,} bytes, an ONNX file has at most {MOST_BYTES:,}")
    try:
        data = path.read_bytes()
        model = _message(memoryview(data))
        if MODEL["functions"] in model:
            model = _message(memoryview(laid_out(path, data)))
        return _graph(path, model)
    except MemoryError as error:
        raise ResourceError(f"not enough memory to read {path}") from error
    except (BrokenMessage, UnicodeDecodeError, struct.error) as error:
        raise CorruptFileError(f"{path} ({size:,} bytes) is no ONNX model, or was cut short; fetch it again") from error


def _graph(path: Path, model: Message) -> Graph:
    parts = _message(_last(model, MODEL["graph"]))
    if GRAPH["sparse"] in parts:
        raise CorruptFileError(f"{path} keeps sparse tables, which are not understood; export it without them")
    held, nodes = dict(_held(path, raw) for raw in _every(parts, GRAPH["tensors"])), []
    for raw in _every(parts, GRAPH["nodes"]):
        node, constant = _operation(path, raw)
        if not node.outputs:
            raise CorruptFileError(f"{path} is damaged: an operation in it makes nothing; fetch it again")
        if constant is None:
            nodes.append(node)
        else:
            held[node.outputs[0]] = constant
    if not nodes:
        raise CorruptFileError(f"{path} holds no operations: it is no ONNX model, or was cut short; fetch it again")
    inputs, outputs = ([_name(raw) for raw in _every(parts, GRAPH[way])] for way in ("inputs", "outputs"))
    given = tuple(name for name in inputs if name not in held)
    sizes = {_name(raw): found for raw in _every(parts, GRAPH["inputs"]) if (found := _sizes(raw))}
    opset = max((found for raw in _every(model, MODEL["opsets"]) if (found := _opset(raw))), default=13)
    return Graph(path, tuple(nodes), held, given, tuple(outputs), sizes, opset)


def _operation(path: Path, raw: memoryview) -> tuple[Node, Held | None]:
    """An operation, and the numbers that it holds where it is a constant."""
    node = _message(raw)
    inputs, outputs = (tuple(map(_text, _every(node, NODE[way]))) for way in ("inputs", "outputs"))
    kind, name = _text(_last(node, NODE["kind"])), _text(_last(node, NODE["name"]))
    settings: dict[str, Any] = {}
    for one in _every(node, NODE["settings"]):
        setting = _message(one)
        if SETTING["graph"] in setting or SETTING["graphs"] in setting:
            raise CheckpointMismatchError(
                f"{path}: {kind} {name[:80]} holds a graph of its own, which no encoder needs; "
                "export the model without branches and loops"
            )
        settings[_text(_last(setting, SETTING["name"]))] = _setting(path, setting)
    constant = _constant(path, settings) if kind == "Constant" else None
    for key, value in settings.items():
        if kind == "ConstantOfShape" and isinstance(value, Held) and prod(value.shape) == 1:
            settings[key] = value.read().item()
    plain = {key: value for key, value in settings.items() if not isinstance(value, Held)}
    return Node(kind, name, inputs, outputs, plain), constant


def _setting(path: Path, setting: Message) -> Any:
    """The value of a setting, of whatever type is there; a whole number where it is 0 and not written at all."""
    for name, read in (("wholes", _wholes), ("reals", _reals)):
        if SETTING[name] in setting:
            return list(read(setting[SETTING[name]]))
    if SETTING["tensor"] in setting:
        return _held(path, _last(setting, SETTING["tensor"]))[1]
    if SETTING["text"] in setting:
        return bytes(_last(setting, SETTING["text"])).decode("utf-8", "replace")
    if SETTING["real"] in setting:
        return next(_reals(setting[SETTING["real"]]), 0.0)
    return _whole(setting, SETTING["whole"])


def _constant(path: Path, settings: dict[str, Any]) -> Held | None:
    """The numbers of a constant, which are a tensor or stand in a setting themselves."""
    for name, value in settings.items():
        if isinstance(value, Held):
            return value
        if name in ("value_int", "value_ints", "value_float", "value_floats"):
            kind, dtype = ("INT64", torch.int64) if "int" in name else ("FLOAT", torch.float32)
            try:
                numbers = torch.tensor(value, dtype=dtype, device="cpu")
            except (TypeError, ValueError, RuntimeError) as error:
                raise CorruptFileError(
                    f"{path} is damaged: a constant in it has a {name} that is no number; fetch it again"
                ) from error
            return Held(kind, tuple(numbers.shape), partial(torch.clone, numbers))
    return None


# -- numbers -----------------------------------------------------------------------------------------------------------


def _held(path: Path, raw: memoryview) -> tuple[str, Held]:
    """A tensor by its name: type and shape now, numbers later."""
    tensor = _message(raw)
    name, shape = _text(_last(tensor, TENSOR["name"])), tuple(_wholes(tensor.get(TENSOR["shape"], [])))
    if len(shape) > 8 or any(not 0 <= size < 2**40 for size in shape) or prod(shape) >= 2**40:
        raise CorruptFileError(f"{path}: {name[:80]!r} has shape {list(shape)[:9]}, which no model has")
    read = partial(_read, path, tensor, name, shape)
    return name, Held(_kind(tensor)[0], shape, read, (_outside(tensor) or {}).get("location", ""))


def _kind(tensor: Message) -> tuple[str, torch.dtype | None]:
    number = _whole(tensor, TENSOR["kind"])
    return KINDS.get(number, (str(number), None))


def _outside(tensor: Message) -> dict[str, str] | None:
    """Where the numbers of a tensor lie in another file, in the words of that format."""
    if _whole(tensor, TENSOR["place"]) != 1:
        return None
    entries = map(_message, _every(tensor, TENSOR["outside"]))
    return {_text(_last(entry, 1)): _text(_last(entry, 2)) for entry in entries}


def _read(path: Path, tensor: Message, name: str, shape: tuple[int, ...]) -> Tensor:
    kind, dtype = _kind(tensor)
    if dtype is None:
        raise CorruptFileError(f"{path}: {name[:80]!r} is of type {kind}, which is not understood")
    count, small = prod(shape), kind.endswith("INT4")
    if (outside := _outside(tensor)) is not None:
        size = -(-count // 2) if small else count * dtype.itemsize
        tensor = {TENSOR["raw"]: [_elsewhere(path, outside, name, size)]}
    try:
        numbers = _numbers(tensor, torch.uint8 if small else dtype)
    except (struct.error, RuntimeError, OverflowError, ValueError) as error:
        raise CorruptFileError(f"{path}: {name[:80]!r} holds no readable numbers; fetch it again") from error
    if small:
        halves = unpacked(numbers, 4)
        numbers = halves[: len(halves) - count % 2].to(dtype)
        numbers = torch.where(numbers > 7, numbers - 16, numbers) if kind == "INT4" else numbers
    if numbers.numel() != count:
        raise CorruptFileError(f"{path}: {name[:80]!r} has fewer or more numbers than its shape {list(shape)} asks for")
    return numbers.to(dtype).reshape(shape)


def _numbers(tensor: Message, dtype: torch.dtype) -> Tensor:
    """The numbers in a row: as raw bytes, as reals of 32 or 64 bits, or as whole numbers."""
    if raw := _last(tensor, TENSOR["raw"]):
        return torch.frombuffer(bytearray(raw), dtype=dtype)
    for name, written in (("reals", "<f4"), ("doubles", "<f8")):
        if TENSOR[name] in tensor:
            return torch.from_numpy(np.frombuffer(b"".join(_every(tensor, TENSOR[name])), written).copy())
    values = [one for name in ("wholes", "longs", "unsigned") for one in _wholes(tensor.get(TENSOR[name], []))]
    whole = torch.tensor(values, dtype=torch.int64, device="cpu")
    half = dtype in (torch.float16, torch.bfloat16)  # these are written as the bits that they are
    return whole.to(torch.int16).view(dtype) if half else whole.to(dtype)


def _elsewhere(path: Path, outside: dict[str, str], name: str, size: int) -> bytes:
    """The bytes of a tensor that lie in another file of the same folder."""
    place = beside(path, outside.get("location", ""))
    start, length = _counted(outside.get("offset", "0")), _counted(outside.get("length", str(size)))
    if length != size:
        raise CorruptFileError(f"{path}: {name[:80]!r} takes {size:,} bytes, {place.name} gives it {length:,}")
    if start + length > place.stat().st_size:
        raise CorruptFileError(
            f"{place} is cut short: {name[:80]!r} ends at {start + length:,} of {place.stat().st_size:,} bytes"
        )
    with place.open("rb") as file:
        file.seek(start)
        return file.read(length)


def beside(path: Path, name: str) -> Path:
    """A file that `path` names, in its own folder or below; one that leads outside is refused."""
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name.replace("\\", "/")).parts:
        raise UnsafeFileError(f"{path} keeps numbers in {name[:80]!r}, expected a file in its own folder")
    found = link_inside(path.parent, path.parent / name)
    if not found.is_file():
        raise NotFoundError(f"{found} is missing: {path.name} keeps its numbers there")
    return found


def _counted(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 2**60


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(data: memoryview) -> Message:
    found: Message = {}
    for number, _, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def _every(message: Message, number: int) -> Iterator[memoryview]:
    for value in message.get(number, []):
        if isinstance(value, int):
            raise BrokenMessage(f"field {number} is a number, expected bytes")
        yield value


def _last(message: Message, number: int) -> memoryview:
    """The value of a field that is there once; nothing where it is not there."""
    return next(iter(list(_every(message, number))[-1:]), memoryview(b""))


def _name(raw: memoryview) -> str:
    return _text(_last(_message(raw), 1))


def _opset(raw: memoryview) -> int:
    """The version of ONNX's own operations; 0 for one of other makers' operations."""
    found = _message(raw)
    return 0 if _text(_last(found, 1)) not in ("", "ai.onnx") else _whole(found, 2)


def _sizes(raw: memoryview) -> tuple[int, ...]:
    """The sizes of an input's axes; 0 where one is free."""
    found = _message(raw)
    for number in VALUE:
        found = _message(_last(found, number))
    return tuple(max(_whole(_message(axis), 1), 0) for axis in _every(found, 1))


def _text(raw: memoryview) -> str:
    return bytes(raw).decode()


def _whole(message: Message, number: int) -> int:
    """The whole number of a field; 0 where it is not there."""
    return next(_wholes(message.get(number, [])), 0)


def _wholes(values: list[Any]) -> Iterator[int]:
    """Whole numbers, one by one or packed."""
    for value in values:
        if isinstance(value, int):
            yield signed(value)
            continue
        start = 0
        while start < len(value):
            one, start = varint(value, start, len(value))
            yield signed(one)


def _reals(values: list[Any]) -> Iterator[float]:
    """Numbers of 32 bits, one by one or packed."""
    for value in values:
        if isinstance(value, int):
            raise BrokenMessage("a real number is written as a whole one")
        yield from struct.unpack(f"<{len(value) // 4}f", value)
