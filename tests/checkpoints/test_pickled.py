"""PyTorch's `.bin` format, zipped and legacy: read where it holds tensors, refused where it asks for anything else."""

import os
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.checkpoints.pickled import LEGACY_MAGIC, read_pickled
from pellucid.errors import CorruptFileError, PellucidError, UnsafeFileError


def save_legacy(path: Path, content: Any) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=False)
    return path


def save_zipped(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


@pytest.fixture(params=[save_legacy, save_zipped])
def write(request: pytest.FixtureRequest) -> Any:
    """Writes one of the two layouts."""
    return request.param


def test_tensors_round_trip(write: Any, tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    expected = {"a": whole, "b.c": whole[2:4], "d": torch.ones(3, dtype=torch.float16), "e": torch.arange(3.0).double()}
    expected |= {
        "turned": whole.T,
        "none": torch.ones(0, 4),
        "one": torch.tensor(7),
        "flags": torch.tensor([True, False]),
    }
    expected |= {"learned": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}
    path = write(tmp_path / "a.bin", expected)
    assert path.read_bytes().startswith(LEGACY_MAGIC) is (write is save_legacy)
    found = read_pickled(path)
    assert all(
        torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected
    )


def test_state_dict_round_trip(write: Any, tmp_path: Path) -> None:
    """A state dict is an ordered dict with the versions of its modules; it may be under a key of the file."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    expected = module.state_dict()
    for content in (expected, {"state_dict": expected}, module.state_dict(keep_vars=True)):
        found = read_pickled(write(tmp_path / "a.bin", content))
        assert list(found) == list(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


def rewrite_entries(path: Path, content: Any, **entries: bytes) -> Path:
    """A zip in which some entries have other contents."""
    with zipfile.ZipFile(save_zipped(path.with_suffix(".old"), content)) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in contents.items():
            new.writestr(name, entries.get(name.rpartition("/")[2], content))
    return path


def test_big_endian_values_are_swapped(tmp_path: Path) -> None:
    expected = torch.randn(5)
    swapped = expected.numpy().byteswap().tobytes()
    path = rewrite_entries(tmp_path / "a.bin", {"a": expected}, **{"byteorder": b"big", "0": swapped})
    assert torch.equal(read_pickled(path)["a"], expected)


def test_lazily_negated_tensor_is_refused(write: Any, tmp_path: Path) -> None:
    """PyTorch stores the imaginary part of a conjugate unchanged, with a flag that its sign is to be inverted."""
    path = write(tmp_path / "a.bin", {"a": torch.randn(3, dtype=torch.complex64).conj().imag})
    with pytest.raises(UnsafeFileError, match="numbers that are computed from those that are stored"):
        read_pickled(path)


def test_unknown_byte_order_is_refused(tmp_path: Path) -> None:
    """The tensors would be read with other values."""
    path = rewrite_entries(tmp_path / "a.bin", {"a": torch.ones(2)}, byteorder=b"littel")
    with pytest.raises(CorruptFileError, match="its byteorder is 'littel', expected 'little' or 'big'"):
        read_pickled(path)


BEGIN, FLOATS = b"\x80\x02", b"ctorch\nFloatStorage\n"
ORDERED = b"ccollections\nOrderedDict\n"
STORAGE = b"X\x07\x00\x00\x00storage" + FLOATS + b"X\x01\x00\x00\x000" + b"X\x03\x00\x00\x00cpu"
LONG = b"(" + b"K\x01" * 20_000 + b"tq\x01"
MARKS = b"(" * 75_000 + b"t" * 75_000
COUNTED = b"".join(b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(1, 30_000))
SLOW = {
    "memoised pairs": ORDERED + b"q\x00](" + b"K\x01K\x02\x86" * 10_000 + b"eq\x01" + b"h\x00h\x01\x85R" * 8_000,
    "a memoised shape": LONG + b"ctorch._utils\n_rebuild_tensor_v2\nq\x02(" + STORAGE + b"K\x01tQq\x03"
    + b"h\x02(h\x03K\x00h\x01h\x01tR" * 5_000,
    "marks in marks": MARKS + MARKS,
    "a heap below marks": b"K\x01" * 60_000 + b"(t" * 60_000,
    "numbers of one hash": b"}(" + COUNTED + b"u",
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_small_files_take_little_time(name: str, tmp_path: Path) -> None:
    """What a pickle stores and refers to again costs a few bytes, however long it is."""
    path = rewrite_entries(tmp_path / "a.bin", {}, **{"data.pkl": BEGIN + SLOW[name] + b"."})
    assert path.stat().st_size < 500_000
    start = time.process_time()
    with pytest.raises(PellucidError):
        read_pickled(path)
    assert time.process_time() - start < 2


def test_more_dimensions_than_a_tensor_has_are_refused(write: Any, tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="a tensor has 9 dimensions, expected at most 8"):
        read_pickled(write(tmp_path / "a.bin", {"a": torch.ones([1] * 9)}))


CALLS = {
    "code": (os.mkdir, "was-run"),
    "bytes": (bytearray, 10**13),
    "tensor": (torch.Tensor, 10**9),
    "storage": (torch.FloatStorage, 10**9),
    "untyped storage": (torch.UntypedStorage, 10**9),
    "numbers without a storage": (torch._utils._rebuild_tensor_v2, 10**9, 0, (10**9,), (1,), False, {}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_function_is_called(write: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither code, nor what would allocate memory that the file does not fill."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeFileError, match="would do more than load tensors"):
        read_pickled(write(tmp_path / "a.bin", {"a": Call(*call)}))
    assert not (tmp_path / "was-run").exists()


def test_pickle_after_a_valid_magic_number_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    call = Call(os.mkdir, "was-run")
    path.write_bytes(LEGACY_MAGIC + pickle.dumps(1001, 2) + pickle.dumps(call, 2) + pickle.dumps({}, 2))
    with pytest.raises(UnsafeFileError):
        read_pickled(path)


def test_name_with_a_backslash_is_refused(tmp_path: Path) -> None:
    """Python's own unpickler would warn of it, and a warning is no error of ours."""
    path = save_legacy(tmp_path / "a.bin", {"a": torch.ones(5, 3)})
    path.write_bytes(path.read_bytes().replace(b"torch\nFloatStorage\n", b"torch\nFloat\\torage\n"))
    with pytest.raises(CorruptFileError, match="a name with a backslash"):
        read_pickled(path)


def test_a_claim_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    path = save_legacy(tmp_path / "a.bin", {"a": torch.ones(70_000)})
    data = path.read_bytes()
    size = (70_000).to_bytes(4, "little")
    path.write_bytes(data.replace(b"J" + size, b"J" + (2**31 - 1).to_bytes(4, "little")))
    with pytest.raises(CorruptFileError, match="claims"):
        read_pickled(path)


def test_truncation_and_flipped_bits_raise_only_our_errors(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", {"a": torch.ones(5, 3), "b": torch.zeros(2)})
    data = path.read_bytes()
    for position in range(len(data)):
        for damaged in (data[:position], data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :]):
            path.write_bytes(damaged)
            try:
                read_pickled(path)
            except PellucidError:
                continue
