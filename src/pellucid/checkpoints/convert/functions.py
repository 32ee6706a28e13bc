"""Functions of an ONNX file, laid out where they are called: counted first, for functions that call functions grow by
doubling, and a file of a thousand bytes could ask for a billion operations."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pellucid.errors import CorruptFileError, UnsafeFileError

MAX_NODES = 100_000
"""Operations and their settings in a graph whose functions are laid out; large encoders have some thousands."""

MAX_BYTES = 2**28
"""Of these operations, beyond the file itself: numbers that a function holds lie in each copy of it."""

_MAX_DEPTH = 100
"""A function within a function within a function."""

Key = tuple[str, str, str]
Size = tuple[int, int]
"""Operations and their settings, and the bytes of a file that would say them."""


def inline_functions(onnx: ModuleType, path: Path, model: Any) -> Any:
    """The model with its functions in the places where they are called.

    Raises: UnsafeFileError where they grow beyond all measure; CorruptFileError where one calls itself.
    """
    if not model.functions:
        return model
    nodes, size = _InlinedSizes(path, model.functions).size_of(model.graph.node, 0)
    if nodes > MAX_NODES or size > MAX_BYTES + model.ByteSize():
        raise UnsafeFileError(
            f"{path} holds functions that call each other so often that it would grow to more than {MAX_NODES:,} "
            f"operations or {MAX_BYTES:,} bytes; export the model without functions"
        )
    return onnx.inliner.inline_local_functions(model)


class _InlinedSizes:
    """How large operations are when the functions that they call are laid out; each function is counted once."""

    def __init__(self, path: Path, functions: Iterable[Any]) -> None:
        self.path, self.function_sizes = path, dict[Key, Size | None]()
        self.bodies: dict[Key, Any] = {}
        for one in functions:
            if (key := _function_key(one, one.name)) in self.bodies:
                raise CorruptFileError(f"{path} is damaged: it holds two functions of the name {one.name[:80]!r}")
            self.bodies[key] = one.node

    def size_of(self, nodes: Iterable[Any], depth: int) -> Size:
        """The size of some operations, those of their branches among them."""
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
        # What is passed may be asked for in each place inside.
        argument_bytes = size + sum(attribute.ByteSize() for attribute in node.attribute)
        return own[0] + function_size[0] * (1 + count), own[1] + function_size[1] + function_size[0] * argument_bytes

    def _function_size(self, key: Key, depth: int) -> Size:
        if key not in self.function_sizes:
            self.function_sizes[key] = None  # not known yet: whoever asks now stands within it
            self.function_sizes[key] = self.size_of(self.bodies[key], depth + 1)
        found = self.function_sizes[key]
        if found is None:
            raise CorruptFileError(f"{self.path} is damaged: its function {key[1][:80]!r} calls itself")
        return found


def _function_key(one: Any, name: str) -> Key:
    """By what a function is called: older libraries do not know of overloads."""
    return "" if one.domain == "ai.onnx" else one.domain, name, getattr(one, "overload", "")


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
