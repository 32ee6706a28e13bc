"""The one door to `onnx`: turns a file into plain records, with everything checked before it is used."""

import os
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert import records
from pellucid.checkpoints.convert.functions import inline_functions
from pellucid.checkpoints.convert.graph import Graph, Initializer, Node
from pellucid.checkpoints.convert.onnx_plain import open_plain
from pellucid.checkpoints.links import check_link
from pellucid.errors import CorruptFileError, NotFoundError, ResourceError, UnsafeFileError

MAX_BYTES = 2**31
"""The size limit of protocol buffers; larger models keep their weights in separate files."""

_BITS = {
    "FLOAT": 32, "FLOAT16": 16, "BFLOAT16": 16, "DOUBLE": 64, "INT8": 8, "UINT8": 8, "INT4": 4, "UINT4": 4,
    "INT16": 16, "UINT16": 16, "INT32": 32, "UINT32": 32, "INT64": 64, "UINT64": 64, "BOOL": 8,
}  # fmt: skip
"""The supported types, and the bits of one value in the file."""


def open_graph(path: Path) -> Graph:
    """The graph of an `.onnx` file; its tensors are read only when needed.

    Without the package `onnx` it is read by `onnx_plain`.
    Raises: InputError for what only the package reads, where it is missing; CorruptFileError for a damaged file;
    UnsafeFileError where it refers to data outside its folder.
    """
    _check_size(path)
    onnx = _import_onnx()
    if onnx is None:
        return open_plain(path, path.read_bytes())
    model = _load_model(onnx, path)
    try:
        return _to_graph(onnx, path, model)
    except UnicodeDecodeError as error:  # names are decoded on access
        raise CorruptFileError(f"{path} is damaged: a name in it is not UTF-8 text; fetch it again") from error


def _to_graph(onnx: ModuleType, path: Path, model: Any) -> Graph:
    graph = model.graph
    if graph.sparse_initializer:
        raise CorruptFileError(f"{path} keeps sparse tables, which are not understood; export it without them")
    tensors = ((tensor.name, _initializer(onnx, path, tensor)) for tensor in graph.initializer)
    operations = (_operation(onnx, path, node) for node in graph.node)
    inputs, outputs = ((value.name for value in values) for values in (graph.input, graph.output))
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    sizes = {name: tuple(max(axis.dim_value, 0) for axis in axes) for name, axes in shapes.items() if axes}
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=13)
    return records.build_graph(path, tensors, operations, inputs, outputs, sizes, opset)


def _operation(onnx: ModuleType, path: Path, node: Any) -> tuple[Node, Initializer | None]:
    """An operation, and its value where it is a constant."""
    attributes = dict(_attributes(onnx, path, node))
    constant = _constant(onnx, path, node) if node.op_type == "Constant" else None
    return Node(node.op_type, node.name, tuple(node.input), tuple(node.output), attributes), constant


def _import_onnx() -> ModuleType | None:
    try:
        import onnx
        import onnx.inliner
        import onnx.numpy_helper
    except ImportError:
        return None
    return onnx


def _check_size(path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(f"{path} is missing, expected an ONNX model")
    if path.stat().st_size >= MAX_BYTES:
        raise CorruptFileError(f"{path} has {path.stat().st_size:,} bytes, an ONNX file has at most {MAX_BYTES:,}")


def _load_model(onnx: ModuleType, path: Path) -> Any:
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
        return inline_functions(onnx, path, model)
    except MemoryError as error:
        raise ResourceError(f"not enough memory to read {path}") from error
    except (DecodeError, RuntimeError, ValueError) as error:
        raise records.no_model_error(path, path.stat().st_size) from error


def _attributes(onnx: ModuleType, path: Path, node: Any) -> Iterator[tuple[str, Any]]:
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            raise records.nested_graph_error(path, node.op_type, node.name)
        tensor = attribute.type == onnx.AttributeProto.TENSOR
        if tensor and node.op_type == "ConstantOfShape" and prod(attribute.t.dims) == 1:
            yield attribute.name, _initializer(onnx, path, attribute.t).read().item()
        elif not tensor:
            value = onnx.helper.get_attribute_value(attribute)
            yield attribute.name, value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _constant(onnx: ModuleType, path: Path, node: Any) -> Initializer | None:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            attribute.t.name = " ".join(node.output)
            return _initializer(onnx, path, attribute.t)
        value = onnx.helper.get_attribute_value(attribute)
        if (found := records.constant_value(path, attribute.name, value)) is not None:
            return found
    return None


def _initializer(onnx: ModuleType, path: Path, tensor: Any) -> Initializer:
    """A tensor of the file: type and shape now, values on demand."""
    type_number = tensor.data_type
    kind = (
        onnx.TensorProto.DataType.Name(type_number)
        if type_number in onnx.TensorProto.DataType.values()
        else str(type_number)
    )
    shape = tuple(tensor.dims)
    records.check_shape(path, tensor.name, shape)
    file = _external_data(tensor).get("location", "") if tensor.data_location == onnx.TensorProto.EXTERNAL else ""
    return Initializer(kind, shape, partial(_read, onnx, path, tensor, kind, shape), file)


def _read(onnx: ModuleType, path: Path, tensor: Any, kind: str, shape: tuple[int, ...]) -> Tensor:
    if kind not in _BITS:
        raise CorruptFileError(f"{path}: {tensor.name[:80]!r} is of type {kind}, which is not understood")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        tensor = _with_external_data(onnx, path, tensor, -(-prod(shape) * _BITS[kind] // 8))
    try:
        array = onnx.numpy_helper.to_array(tensor)
        if array.shape != shape:
            raise ValueError(f"{array.shape} numbers")
    except (ValueError, TypeError) as error:
        raise records.wrong_count_error(path, tensor.name, shape) from error
    if kind == "BFLOAT16":
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    if kind in ("INT4", "UINT4"):
        array = array.astype("int8")
    return torch.from_numpy(array.copy())


def _with_external_data(onnx: ModuleType, path: Path, tensor: Any, size: int) -> Any:
    """The tensor with its data from another file of the same folder."""
    external_data = _external_data(tensor)
    file = external_file(path, external_data.get("location", ""))
    start, length = _parsed_size(external_data.get("offset", "0")), _parsed_size(external_data.get("length", str(size)))
    if length != size:
        raise CorruptFileError(f"{path}: {tensor.name[:80]!r} takes {size:,} bytes, {file.name} gives it {length:,}")
    end, file_size = start + length, file.stat().st_size
    if end > file_size:
        raise CorruptFileError(f"{file} is cut short: {tensor.name[:80]!r} ends at {end:,} of {file_size:,} bytes")
    complete = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    with file.open("rb") as stream:
        stream.seek(start)
        complete.raw_data = stream.read(length)
    return complete


def _external_data(tensor: Any) -> dict[str, str]:
    """The location of a tensor's external data, as ONNX's key-value pairs."""
    return {entry.key: entry.value for entry in tensor.external_data}


def external_file(path: Path, name: str) -> Path:
    """A file that `path` refers to, in the same folder or below; raises UnsafeFileError for any other."""
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name.replace("\\", "/")).parts:
        raise UnsafeFileError(f"{path} keeps numbers in {name[:80]!r}, expected a file in its own folder")
    found = check_link(path.parent, path.parent / name)
    if not found.is_file():
        raise NotFoundError(f"{found} is missing: {path.name} keeps its numbers there")
    return found


def _parsed_size(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 16 else 2**60
