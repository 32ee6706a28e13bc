"""Inlines the functions of an ONNX file; the one door to `onnx`. The result is sized first, since functions that call
functions can grow exponentially, and a file of a thousand bytes could expand to a billion operations."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pellucid.errors import CorruptFileError, InputError, UnsafeFileError
from pellucid.text.protobuf import InvalidMessageError

MAX_NODES = 100_000
"""Maximum number of operations and their attributes after inlining; large encoders have some thousands."""

MAX_BYTES = 2**28
"""Maximum bytes of these operations beyond the file itself: constants in a function are copied with each call."""

_MAX_DEPTH = 100
"""Maximum depth of nested calls."""

Key = tuple[str, str, str]
Size = tuple[int, int]
"""Number of operations and attributes, and their serialised size in bytes."""


def inline_functions(path: Path) -> bytes:
    """The bytes of a file after its functions have been inlined.

    Raises: UnsafeFileError where they would grow beyond the limits; CorruptFileError for a recursive function;
    InputError where the package `onnx` is missing; InvalidMessageError for bytes that are not a model.
    """
    try:
        import onnx
        import onnx.inliner
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise InputError(
            f'{path} has functions, which the package onnx reads; run: pip install "pellucid[onnx]"'
        ) from error
    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
        nodes, size = _InlinedSizes(path, model.functions).size_of(model.graph.node, 0)
        if nodes > MAX_NODES or size > MAX_BYTES + model.ByteSize():
            raise UnsafeFileError(
                f"{path} holds functions that call each other so often that it would grow to more than {MAX_NODES:,} "
                f"operations or {MAX_BYTES:,} bytes; export the model without functions"
            )
        return onnx.inliner.inline_local_functions(model).SerializeToString()
    except UnicodeDecodeError:
        raise
    except (DecodeError, RuntimeError, ValueError) as error:
        raise InvalidMessageError(str(error)) from error


class _InlinedSizes:
    """Computes the size of operations after inlining; each function is counted once."""

    def __init__(self, path: Path, functions: Iterable[Any]) -> None:
        self.path, self.function_sizes = path, dict[Key, Size | None]()
        self.bodies: dict[Key, Any] = {}
        for one in functions:
            if (key := _function_key(one, one.name)) in self.bodies:
                raise CorruptFileError(f"{path} is damaged: it holds two functions of the name {one.name[:80]!r}")
            self.bodies[key] = one.node

    def size_of(self, nodes: Iterable[Any], depth: int) -> Size:
        """The size of some operations, including their branches."""
        if depth > _MAX_DEPTH:
            raise UnsafeFileError(f"{self.path} holds functions or branches more than {_MAX_DEPTH} deep; not read")
        sizes = [self._node_size(node, depth) for node in nodes]
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes)

    def _node_size(self, node: Any, depth: int) -> Size:
        branches = [self.size_of(graph.node, depth + 1) for graph in _subgraphs(node)]
        count, size = (sum(branch[i] for branch in branches) for i in (0, 1))
        own = 1 + len(node.attribute) + count, node.ByteSize() + size
        if (key := _function_key(node, node.op_type)) not in self.bodies:
            return own
        function_size = self._function_size(key, depth)
        # Arguments may be used at every operation inside.
        argument_bytes = size + sum(attribute.ByteSize() for attribute in node.attribute)
        return own[0] + function_size[0] * (1 + count), own[1] + function_size[1] + function_size[0] * argument_bytes

    def _function_size(self, key: Key, depth: int) -> Size:
        if key not in self.function_sizes:
            self.function_sizes[key] = None  # marks a function in progress: finding it again means recursion
            self.function_sizes[key] = self.size_of(self.bodies[key], depth + 1)
        found = self.function_sizes[key]
        if found is None:
            raise CorruptFileError(f"{self.path} is damaged: its function {key[1][:80]!r} calls itself")
        return found


def _function_key(one: Any, name: str) -> Key:
    """The identity of a function; older versions of onnx have no overloads."""
    return "" if one.domain == "ai.onnx" else one.domain, name, getattr(one, "overload", "")


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
