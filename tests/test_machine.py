"""The machine underneath: what may still be taken of its memory, and which kinds of number there are."""

from pathlib import Path

import pytest
import torch

import pellucid
from pellucid import machine
from pellucid.checkpoints import fill
from pellucid.errors import InputError, ResourceError


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of its own."""
    monkeypatch.setattr(machine, "GROUP", tmp_path)
    monkeypatch.setattr(machine, "_available", lambda: 5000)
    return tmp_path


def test_files_that_were_read_take_no_room(group: Path) -> None:
    """Pages of files count as used in a control group, and the system gives them back when it is asked for memory."""
    (group / "memory.max").write_text("1000\n")
    (group / "memory.current").write_text("900\n")
    assert machine.free_memory() == 100
    (group / "memory.stat").write_text("anon 100\nactive_file 50\ninactive_file 700\n")
    assert machine.free_memory() == 800


@pytest.mark.parametrize("most", [None, "max", "9000"])
def test_a_group_without_a_limit_below_the_machine(most: str | None, group: Path) -> None:
    if most is not None:
        (group / "memory.max").write_text(most)
        (group / "memory.current").write_text("10")
    assert machine.free_memory() == 5000


def test_memory_that_is_refused_after_all_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: pellucid.Model
) -> None:
    with pytest.raises(ResourceError, match=f"this model needs {2**50} bytes more of memory"), machine.within_memory():
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(ResourceError, match="needs more of memory"), machine.within_memory():
        bytearray(2**50)
    with pytest.raises(RuntimeError, match="must match"), machine.within_memory():
        torch.ones(2) + torch.ones(3)
    folder = tiny.save(tmp_path / "model")
    monkeypatch.setattr(fill, "allocate", lambda *_: torch.empty(2**50))
    for dtype in ("float32", "int8"):
        with pytest.raises(ResourceError, match=f"needs {2**52} bytes more"):
            pellucid.load(folder, dtype=dtype)


def test_only_what_loads_speaks_of_bits(tiny: pellucid.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        tiny.to(dtype="int8")
    assert str(caught.value) == (
        "dtype is 'int8', expected one of float32, float64, float16, bfloat16, auto, checkpoint"
    )
    tiny.save(tmp_path / "a")
    with pytest.raises(InputError, match=r"dtype is 'int9' \(did you mean int8, int4\?\), .* checkpoint, int8, int4"):
        pellucid.load(tmp_path / "a", dtype="int9")
    assert machine.choose_dtype("float64", torch.float32) == torch.float64
