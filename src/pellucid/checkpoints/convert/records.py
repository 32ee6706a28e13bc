"""Builds the records of a graph for both readers of ONNX files, with the checks that they share."""

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.convert.graph import Graph, Initializer, Node
from pellucid.errors import CheckpointMismatchError, CorruptFileError


def build_graph(
    path: Path,
    tensors: Iterable[tuple[str, Initializer]],
    operations: Iterable[tuple[Node, Initializer | None]],
    inputs: Iterable[str],
    outputs: Iterable[str],
    sizes: dict[str, tuple[int, ...]],
    opset: int,
) -> Graph:
    """The graph of a file.

    operations: each with its value where it is a constant.  inputs: may include stored tensors.
    Raises: CorruptFileError where there is no operation, or one without outputs.
    """
    initializers, nodes = dict(tensors), []
    for node, constant in operations:
        if not node.outputs:
            raise CorruptFileError(f"{path} is damaged: an operation in it makes nothing; fetch it again")
        if constant is None:
            nodes.append(node)
        else:
            initializers[node.outputs[0]] = constant
    if not nodes:
        raise CorruptFileError(f"{path} holds no operations: it is not an ONNX model, or was cut short; fetch it again")
    own_inputs = tuple(name for name in inputs if name not in initializers)
    return Graph(path, tuple(nodes), initializers, own_inputs, tuple(outputs), sizes, opset)


def constant_value(path: Path, name: str, value: Any) -> Initializer | None:
    """The value of a constant that is given by a scalar or list attribute; None for any other attribute."""
    if name not in ("value_int", "value_ints", "value_float", "value_floats"):
        return None
    kind, dtype = ("INT64", torch.int64) if "int" in name else ("FLOAT", torch.float32)
    try:
        numbers = torch.tensor(value, dtype=dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorruptFileError(
            f"{path} is damaged: a constant in it has a {name} that is not a number; fetch it again"
        ) from error
    return Initializer(kind, tuple(numbers.shape), lambda: numbers)


def check_shape(path: Path, name: str, shape: tuple[int, ...]) -> None:
    """Refuses an impossible or excessively large shape."""
    if len(shape) > 8 or any(not 0 <= size < 2**40 for size in shape) or prod(shape) >= 2**40:
        raise CorruptFileError(f"{path}: {name[:80]!r} has shape {list(shape)[:9]}, which no model has")


def wrong_count_error(path: Path, name: str, shape: tuple[int, ...]) -> CorruptFileError:
    """The error for a tensor whose number of values does not match its shape."""
    return CorruptFileError(f"{path}: {name[:80]!r} has fewer or more numbers than its shape {list(shape)} needs")


def no_model_error(path: Path, size: int) -> CorruptFileError:
    """The error for bytes that are not an ONNX model.  size: how many."""
    return CorruptFileError(f"{path} ({size:,} bytes) is not an ONNX model, or was cut short; fetch it again")


def nested_graph_error(path: Path, kind: str, name: str) -> CheckpointMismatchError:
    """The error for an operation with a subgraph."""
    return CheckpointMismatchError(
        f"{path}: {kind} {name[:80]} holds a graph of its own, which no encoder needs; "
        "export the model without branches and loops"
    )
