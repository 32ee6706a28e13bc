"""PyTorch's `.bin` format, as zips and as they were before: read where it holds tensors, refused where it asks for
anything else."""

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.checkpoints.pickled import OLDEST, read_pickled
from pellucid.errors import CorruptFileError, PellucidError, UnsafeFileError


def oldest(path: Path, content: Any) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=False)
    return path


def zipped(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


class Calling:
    """What is pickled as a call."""

    def __init__(self, what: Any, *given: Any) -> None:
        self.what, self.given = what, given

    def __reduce__(self) -> Any:
        return self.what, self.given


@pytest.fixture(params=[oldest, zipped])
def write(request: pytest.FixtureRequest) -> Any:
    """Either layout."""
    return request.param


def test_tensors_come_back(write: Any, tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    wanted = {"a": whole, "b.c": whole[2:4], "d": torch.ones(3, dtype=torch.float16), "e": torch.arange(3.0).double()}
    wanted |= {
        "turned": whole.T,
        "none": torch.ones(0, 4),
        "one": torch.tensor(7),
        "flags": torch.tensor([True, False]),
    }
    wanted |= {"learned": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))}
    path = write(tmp_path / "a.bin", wanted)
    assert path.read_bytes().startswith(OLDEST) is (write is oldest)
    found = read_pickled(path)
    assert all(torch.equal(found[name], wanted[name]) and found[name].dtype == wanted[name].dtype for name in wanted)


def test_a_module_s_own_list_comes_back(write: Any, tmp_path: Path) -> None:
    """An ordered dict that knows the versions of its parts; the list may stand under a name."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    wanted = module.state_dict()
    for content in (wanted, {"state_dict": wanted}, module.state_dict(keep_vars=True)):
        found = read_pickled(write(tmp_path / "a.bin", content))
        assert list(found) == list(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_numbers_of_another_machine_are_turned_round(tmp_path: Path) -> None:
    wanted = torch.randn(5)
    with zipfile.ZipFile(zipped(tmp_path / "a.bin", {"a": wanted})) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(tmp_path / "b.bin", "w") as new:
        for name, content in entries.items():
            turned = {"byteorder": b"big", "0": wanted.numpy().byteswap().tobytes()}
            new.writestr(name, turned.get(name.rpartition("/")[2], content))
    assert torch.equal(read_pickled(tmp_path / "b.bin")["a"], wanted)


CALLS = {
    "code": (os.mkdir, "was-run"),
    "bytes": (bytearray, 10**13),
    "tensor": (torch.Tensor, 10**9),
    "storage": (torch.FloatStorage, 10**9),
    "untyped storage": (torch.UntypedStorage, 10**9),
    "numbers without a storage": (torch._utils._rebuild_tensor_v2, 10**9, 0, (10**9,), (1,), False, {}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_nothing_is_called(write: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither code, nor what would set memory aside that the file does not hold."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeFileError, match="asks for more than tensors"):
        read_pickled(write(tmp_path / "a.bin", {"a": Calling(*call)}))
    assert not (tmp_path / "was-run").exists()


def test_a_pickle_behind_the_right_beginning_is_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    call = Calling(os.mkdir, "was-run")
    path.write_bytes(OLDEST + pickle.dumps(1001, 2) + pickle.dumps(call, 2) + pickle.dumps({}, 2))
    with pytest.raises(UnsafeFileError):
        read_pickled(path)


def test_a_claim_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    path = oldest(tmp_path / "a.bin", {"a": torch.ones(70_000)})
    data = path.read_bytes()
    size = (70_000).to_bytes(4, "little")
    path.write_bytes(data.replace(b"J" + size, b"J" + (2**31 - 1).to_bytes(4, "little")))
    with pytest.raises(CorruptFileError, match="claims"):
        read_pickled(path)


def test_every_cut_and_every_turned_bit_is_an_error_of_ours_or_harmless(write: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", {"a": torch.ones(5, 3), "b": torch.zeros(2)})
    data = path.read_bytes()
    for place in range(len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            path.write_bytes(damaged)
            try:
                read_pickled(path)
            except PellucidError:
                continue
