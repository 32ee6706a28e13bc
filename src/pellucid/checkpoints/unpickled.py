"""Reads a pickle of tensors as a list of opcodes: nothing is imported, called or allocated.

Each opcode must be one that PyTorch writes for tensors, and each global name one that tensors need. The result holds
the pickled dicts, lists and numbers, and for each tensor the location of its values.
"""

import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from pellucid.checkpoints.tensors import MAX_DIMENSIONS
from pellucid.errors import CheckpointMismatchError, CorruptFileError, UnsafeFileError, shorten

_MAX_OPCODES = 2_000_000
_MAX_NAME_BYTES = 1_000
_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
_STORAGES = {f"torch {kind}Storage": dtype for kind, dtype in _DTYPES.items()}
_UNSUPPORTED = {
    "torch._utils _rebuild_tensor_v3": "numbers of a newer kind, such as floats of 8 bits",
    "torch._utils _rebuild_sparse_tensor": "sparse tensors",
    "torch._utils _rebuild_qtensor": "quantized tensors",
    "torch._utils _rebuild_meta_tensor_no_storage": "tensors without their numbers",
    "torch ComplexFloatStorage": "complex numbers",
    "torch ComplexDoubleStorage": "complex numbers",
}
"""Global names that tensors of unsupported kinds need."""
_ORDERED = "collections OrderedDict"
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage: dtype, number of values and its key in the file."""

    dtype: torch.dtype
    key: str
    count: int

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """A strided tensor in a storage, starting at value `offset`."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Global:
    """A global name that unpickling would look up."""

    text: str


class _BoundedFile:
    """A file that is never asked for more bytes than it has, since a read allocates as much memory as requested."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, position = file, file.tell()
        self.size = file.seek(0, 2)
        file.seek(position)

    def read(self, size: int) -> bytes:
        return self.file.read(min(size, self.size - self.file.tell()))

    def readline(self) -> bytes:
        line = self.file.readline(_MAX_NAME_BYTES)
        if b"\\" in line:
            raise ValueError("a name with a backslash")
        return line


def read_pickle(path: Path, file: BinaryIO) -> Any:
    """Reads one pickle from a file of tensors, and leaves the file positioned after it.

    Raises UnsafeFileError for anything but tensors, CheckpointMismatchError for tensors of unsupported kinds.
    """
    stack: list[Any] = []
    outer_stacks: list[list[Any]] = []  # the stack below each mark
    bounded_file: Any = _BoundedFile(file)
    memo: dict[Any, Any] = {}  # the pickle's memo, for repeated values
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(bounded_file)):
            if count > _MAX_OPCODES:
                raise _unsafe_error(path, "too many opcodes")
            match code.name:
                case "MARK":
                    outer_stacks.append(stack)
                    stack = []
                case "TUPLE" | "APPENDS" | "SETITEMS":
                    items, stack = stack, outer_stacks.pop()
                    _collect_items(path, code.name, items, stack)
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case _:
                    _execute_opcode(path, code.name, argument, stack)
        return stack[-1]
    except (ValueError, EOFError, OverflowError, LookupError, AttributeError, TypeError) as error:
        raise CorruptFileError(f"{path} is a damaged PyTorch file: {shorten(str(error), 120)}") from error


def _unsafe_error(path: Path, what: str) -> UnsafeFileError:
    """The error for a file that is refused."""
    return UnsafeFileError(
        f"{path} would do more than load tensors when it is opened ({what}), so it was not opened; ask "
        "its author for "
        "safetensors"
    )


def _execute_opcode(path: Path, opcode: str, argument: Any, stack: list[Any]) -> None:
    """Executes one opcode on the stack of values."""
    match opcode:
        case "PROTO" if argument != 2:
            raise CheckpointMismatchError(
                f"{path} is written in pickle protocol {argument}, expected 2: save it again by torch.save's default"
            )
        case "PROTO" | "STOP":
            pass
        case "NONE" | "NEWTRUE" | "NEWFALSE":
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
        case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
            stack.append(argument)
        case "GLOBAL" if argument in _STORAGES or argument in (_ORDERED, _TENSOR, _PARAMETER):
            stack.append(_Global(argument))
        case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[opcode]())
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            size = int(opcode[-1])
            stack[-size:] = [tuple(stack[-size:])]
        case "APPEND":
            _collect_items(path, opcode, [stack.pop()], stack)
        case "SETITEM":
            _collect_items(path, opcode, [stack.pop(-2), stack.pop()], stack)
        case "BUILD":  # the attributes of an OrderedDict
            stack.pop()
        case "BINPERSID":
            stack[-1] = _storage(path, stack[-1])
        case "REDUCE":
            arguments = stack.pop()
            stack[-1] = _reduce(path, stack[-1], arguments)
        case "GLOBAL" if argument in _UNSUPPORTED:
            raise CheckpointMismatchError(
                f"{path} holds {_UNSUPPORTED[argument]}, expected real numbers of 16, 32 or 64 bits: save it again "
                "as such"
            )
        case _:
            raise _unsafe_error(path, shorten(ascii(argument)) if opcode == "GLOBAL" else f"the opcode {opcode}")


def _collect_items(path: Path, opcode: str, items: list[Any], stack: list[Any]) -> None:
    """Collects items into a tuple, or adds them to the list or dict below them."""
    if opcode == "TUPLE":
        stack.append(tuple(items))
    elif opcode.startswith("APPEND"):
        stack[-1].extend(items)
    else:
        names = items[::2]
        if not all(_is_safe_key(name) for name in names):
            raise _unsafe_error(path, "items whose names are no texts")
        stack[-1].update(zip(names, items[1::2]))


def _is_safe_key(name: Any) -> bool:
    """Whether a key is hashed safely: nested tuples may take for ever to hash, and large integers can be chosen to
    collide."""
    return isinstance(name, str) or (isinstance(name, int) and abs(name) < 2**31)


def _storage(path: Path, persistent_id: Any) -> Storage:
    """Both formats name a storage by kind, key, device and count; in the older one it may be a view of another."""
    match persistent_id:
        case ("storage", _Global(kind), str(key), str(), int(count), *rest) if rest in ([], [None]):
            if kind in _STORAGES and count >= 0:
                return Storage(_STORAGES[kind], key, count)
    raise _unsafe_error(path, "a storage in an unknown form")


def _reduce(path: Path, function: Any, arguments: Any) -> Any:
    """The result of calling a global."""
    match function, arguments:
        case _Global(text), () if text == _ORDERED:
            return {}
        case _Global(text), (Storage() as storage, int(offset), tuple(shape), tuple(strides), *more) if text == _TENSOR:
            if more[2:] not in ([], [None], [{}]):  # flags such as "values are to be negated"
                raise _unsafe_error(path, "numbers that are computed from those that are stored")
            if len(shape) > MAX_DIMENSIONS:  # checked here: a memoised shape costs the file only five bytes per use
                raise CorruptFileError(
                    f"{path}: a tensor has {len(shape):,} dimensions, expected at most {MAX_DIMENSIONS}"
                )
            if len(shape) == len(strides) and all(type(n) is int and n >= 0 for n in (offset, *shape, *strides)):
                return StridedTensor(storage, offset, shape, strides)
        case _Global(text), (StridedTensor() as tensor, *_) if text == _PARAMETER:
            return tensor
    raise _unsafe_error(path, "a call in an unknown form")
