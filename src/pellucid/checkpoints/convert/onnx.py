"""Reads an ONNX file into plain records, with everything checked before it is used. Only functions need `onnx`."""

from math import prod
from pathlib import Path
from typing import Any

from pellucid.checkpoints.convert.functions import inline_functions
from pellucid.checkpoints.convert.graph import Graph, Initializer, Node
from pellucid.checkpoints.convert.onnx_message import (
    Message,
    bytes_fields,
    integer,
    integers,
    last_field,
    parsed_message,
    real,
    reals,
    text_field,
)
from pellucid.checkpoints.convert.onnx_tensors import TENSOR, constant_value, initializer
from pellucid.errors import CheckpointMismatchError, CorruptFileError, NotFoundError, ResourceError
from pellucid.text.protobuf import InvalidMessageError

MAX_BYTES = 2**31
"""The size limit of protocol buffers; larger models keep their weights in separate files."""

MODEL = {"graph": 7, "opsets": 8, "functions": 25}
GRAPH = {"nodes": 1, "tensors": 5, "inputs": 11, "outputs": 12, "sparse": 15}
NODE = {"inputs": 1, "outputs": 2, "name": 3, "op_type": 4, "attributes": 5}
ATTRIBUTE = {
    "name": 1, "real": 2, "whole": 3, "text": 4, "tensor": 5, "graph": 6, "reals": 7, "wholes": 8, "texts": 9,
    "graphs": 11, "type": 20,
}  # fmt: skip
VALUE = (2, 1, 2)
"""Protobuf field numbers by our names, and the path of fields from an input to its shape."""

ATTRIBUTE_TYPES = {
    1: "real", 2: "whole", 3: "text", 4: "tensor", 5: "graph", 6: "reals", 7: "wholes", 8: "texts", 10: "graphs",
}  # fmt: skip
"""The field that holds the value of an attribute, by its type."""


def open_graph(path: Path) -> Graph:
    """The graph of an `.onnx` file; its tensors are read only when needed.

    Raises: InputError for functions, where the package `onnx`, which inlines them, is missing; CorruptFileError for a
    damaged file; CheckpointMismatchError for branches and loops.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is missing, expected an ONNX model")
    size = path.stat().st_size
    if size >= MAX_BYTES:
        raise CorruptFileError(f"{path} has {size:,} bytes, an ONNX file has at most {MAX_BYTES:,}")
    try:
        model = parsed_message(path.read_bytes())
        if MODEL["functions"] in model:
            model.clear()  # frees a copy of all tensors
            model = parsed_message(inline_functions(path))
        return _read_graph(path, model)
    except MemoryError as error:
        raise ResourceError(f"not enough memory to read {path}") from error
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is damaged: a name in it is not UTF-8 text; fetch it again") from error
    except InvalidMessageError as error:
        raise CorruptFileError(
            f"{path} ({size:,} bytes) is not an ONNX model, or was cut short; fetch it again"
        ) from error


def _read_graph(path: Path, model: Message) -> Graph:
    opset = max((found for raw in bytes_fields(model, MODEL["opsets"]) if (found := _opset(raw))), default=13)
    graph = parsed_message(b"".join(bytes_fields(model, MODEL["graph"])))  # of several, protobuf joins the fields
    model.clear()  # frees a copy of all tensors
    if GRAPH["sparse"] in graph:
        raise CorruptFileError(f"{path} keeps sparse tables, which are not understood; export it without them")
    initializers: dict[str, Initializer] = {}
    for tensor in map(parsed_message, bytes_fields(graph, GRAPH["tensors"])):
        name = text_field(tensor, TENSOR["name"])
        initializers[name] = initializer(path, tensor, name)
    nodes = []
    for raw in bytes_fields(graph, GRAPH["nodes"]):
        node, constant = _operation(path, raw)
        if not node.outputs:
            raise CorruptFileError(f"{path} is damaged: an operation in it makes nothing; fetch it again")
        if constant is None:
            nodes.append(node)
        else:
            initializers[node.outputs[0]] = constant
    if not nodes:
        raise CorruptFileError(f"{path} holds no operations: it is not an ONNX model, or was cut short; fetch it again")
    inputs, outputs = (
        [parsed_message(raw) for raw in bytes_fields(graph, GRAPH[side])] for side in ("inputs", "outputs")
    )
    sizes = {text_field(one, 1): found for one in inputs if (found := _axis_sizes(one))}
    own_inputs = [name for one in inputs if (name := text_field(one, 1)) not in initializers]
    output_names = tuple(text_field(one, 1) for one in outputs)
    return Graph(path, tuple(nodes), initializers, tuple(own_inputs), output_names, sizes, opset)


def _operation(path: Path, raw: bytes) -> tuple[Node, Initializer | None]:
    """An operation, and its value where it is a constant."""
    node = parsed_message(raw)
    inputs, outputs = (tuple(one.decode() for one in bytes_fields(node, NODE[side])) for side in ("inputs", "outputs"))
    op_type, name = text_field(node, NODE["op_type"]), text_field(node, NODE["name"])
    attributes: dict[str, Any] = {}
    for attribute in map(parsed_message, bytes_fields(node, NODE["attributes"])):
        field = _value_field(attribute)
        if field in ("graph", "graphs"):
            raise CheckpointMismatchError(
                f"{path}: {op_type} {name[:80]} holds a graph of its own, which no encoder needs; "
                "export the model without branches and loops"
            )
        attributes[text_field(attribute, ATTRIBUTE["name"])] = _attribute_value(
            path, attribute, field, " ".join(outputs)
        )
    constant = _constant(path, attributes) if op_type == "Constant" else None
    for key, value in attributes.items():
        if op_type == "ConstantOfShape" and isinstance(value, Initializer) and prod(value.shape) == 1:
            attributes[key] = value.read().item()
    plain = {key: value for key, value in attributes.items() if not isinstance(value, Initializer)}
    return Node(op_type, name, inputs, outputs, plain), constant


def _value_field(attribute: Message) -> str:
    """Which field holds the value of an attribute: by its type, which the oldest files leave out; "" for another."""
    if number := integer(attribute, ATTRIBUTE["type"]):
        return ATTRIBUTE_TYPES.get(number, "")
    return next((field for field in ATTRIBUTE_TYPES.values() if ATTRIBUTE[field] in attribute), "whole")


def _attribute_value(path: Path, attribute: Message, field: str, name: str) -> Any:
    """The value in this field of an attribute; None for a type that is not read.  name: of a tensor, for errors."""
    number = ATTRIBUTE.get(field, 0)
    match field:
        case "real":
            return real(attribute, number)
        case "whole":
            return integer(attribute, number)
        case "reals":
            return reals(attribute, number).tolist()
        case "wholes":
            return integers(attribute, number).tolist()
        case "text" | "texts":
            texts = [one.decode("utf-8", "replace") for one in bytes_fields(attribute, number)]
            return texts if field == "texts" else "".join(texts[-1:])
        case "tensor":
            return initializer(path, parsed_message(last_field(attribute, number)), name)
    return None


def _constant(path: Path, attributes: dict[str, Any]) -> Initializer | None:
    for name, value in attributes.items():
        found = value if isinstance(value, Initializer) else constant_value(path, name, value)
        if found is not None:
            return found
    return None


def _opset(raw: bytes) -> int:
    """The version of ONNX's own operations; 0 for another domain's."""
    found = parsed_message(raw)
    return integer(found, 2) if text_field(found, 1) in ("", "ai.onnx") else 0


def _axis_sizes(value: Message) -> tuple[int, ...]:
    """The sizes of an input's axes; 0 for a dynamic one."""
    for number in VALUE:
        value = parsed_message(last_field(value, number))
    return tuple(max(integer(parsed_message(axis), 1), 0) for axis in bytes_fields(value, 1))
