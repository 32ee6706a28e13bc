"""What a file says becomes the records of a graph, whichever of two readers reads it; and what neither believes."""

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

    operations: each with the numbers that it holds where it is a constant.  inputs: those that are tensors among them.
    Raises: CorruptFileError where there is no operation, or one makes nothing.
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
    """The numbers that a constant has in a setting itself; None for a setting that is not for them."""
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
    """Refuses a shape that would take all memory, or that is none."""
    if len(shape) > 8 or any(not 0 <= size < 2**40 for size in shape) or prod(shape) >= 2**40:
        raise CorruptFileError(f"{path}: {name[:80]!r} has shape {list(shape)[:9]}, which no model has")


def wrong_count_error(path: Path, name: str, shape: tuple[int, ...]) -> CorruptFileError:
    """The error for a tensor that is not as long as its shape says."""
    return CorruptFileError(f"{path}: {name[:80]!r} has fewer or more numbers than its shape {list(shape)} needs")


def no_model_error(path: Path, size: int) -> CorruptFileError:
    """The error for bytes that are no graph.  size: how many."""
    return CorruptFileError(f"{path} ({size:,} bytes) is not an ONNX model, or was cut short; fetch it again")


def nested_graph_error(path: Path, kind: str, name: str) -> CheckpointMismatchError:
    """The error for an operation that holds a graph of its own."""
    return CheckpointMismatchError(
        f"{path}: {kind} {name[:80]} holds a graph of its own, which no encoder needs; "
        "export the model without branches and loops"
    )
