"""PyTorch's oldest `.bin` format: read where it holds tensors, refused where it asks for anything else."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.checkpoints.oldest import MAGIC
from pellucid.checkpoints.pickled import read_pickled
from pellucid.errors import CorruptFileError, PellucidError, UnsafeFileError


def oldest(path: Path, content: Any) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=False)
    return path


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_tensors_come_back(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    wanted = {"a": whole, "b.c": whole[2:4], "d": torch.ones(3, dtype=torch.float16), "e": torch.arange(3.0).double()}
    path = oldest(tmp_path / "a.bin", wanted)
    assert path.read_bytes().startswith(MAGIC)
    found = read_pickled(path)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsafeFileError, match="asks for more than tensors"):
        read_pickled(oldest(tmp_path / "a.bin", {"a": Hostile()}))
    assert not (tmp_path / "was-run").exists()


def test_a_pickle_behind_the_right_beginning_is_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(MAGIC + pickle.dumps(1001, 2) + pickle.dumps(Hostile(), 2) + pickle.dumps({}, 2))
    with pytest.raises(UnsafeFileError):
        read_pickled(path)


def test_a_claim_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    path = oldest(tmp_path / "a.bin", {"a": torch.ones(70_000)})
    data = path.read_bytes()
    size = (70_000).to_bytes(4, "little")
    path.write_bytes(data.replace(b"J" + size, b"J" + (2**31 - 1).to_bytes(4, "little")))
    with pytest.raises(CorruptFileError, match="claims"):
        read_pickled(path)


def test_every_cut_and_every_turned_bit_is_an_error_of_ours_or_harmless(tmp_path: Path) -> None:
    path = oldest(tmp_path / "a.bin", {"a": torch.ones(5, 3), "b": torch.zeros(2)})
    data = path.read_bytes()
    for place in range(len(MAGIC), len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            path.write_bytes(damaged)
            try:
                read_pickled(path)
            except PellucidError:
                continue
