"""PyTorch's `.bin` files: a zip around a pickle, either of which can be turned against its reader."""

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from tests.checkpoints.builders import (
    CORRUPT,
    MISMATCH,
    NORM,
    PICKLED,
    UNSAFE,
    Case,
    Damage,
    assert_refused,
    convert_to_bin,
    parametrize_cases,
    save_bin,
    valid_checkpoint,
    with_bytes,
)

pytestmark = pytest.mark.timeout(120)

NOT_OPENED = "would do more than load tensors when it is opened ("
OTHERS, EXPECTED = f"{PICKLED} holds ", "expected real numbers of 16, 32 or 64 bits: save it again as such"


def saved(value: object, **settings: Any) -> Damage:
    """The file holds `value` and nothing else."""
    return lambda folder: save_bin(value, folder / PICKLED, **settings)


def changed(change: Callable[[dict[str, Any]], object]) -> Damage:
    """The file holds the right tensors, changed."""

    def damage(folder: Path) -> None:
        tensors = torch.load(folder / PICKLED)
        change(tensors)
        save_bin(tensors, folder / PICKLED)

    return damage


def norm(value: object) -> Damage:
    return changed(lambda tensors: tensors.update({NORM: value}))


def rezipped(change: Callable[[zipfile.ZipInfo], object], extra: tuple[str, bytes] | None = None) -> Damage:
    """The same entries in another zip, without those whose `compress_size` the change sets to -1."""

    def damage(folder: Path) -> None:
        with zipfile.ZipFile(folder / PICKLED) as old:
            entries = [(entry, old.read(entry)) for entry in old.infolist()]
        with zipfile.ZipFile(folder / PICKLED, "w") as new:
            for entry, content in entries:
                change(entry)
                if entry.compress_size != -1:
                    new.writestr(entry, content)
            if extra:
                new.writestr(*extra)

    return damage


def deflate(entry: zipfile.ZipInfo) -> None:
    entry.compress_type = zipfile.ZIP_DEFLATED


def without(name: str) -> Callable[[zipfile.ZipInfo], None]:
    def change(entry: zipfile.ZipInfo) -> None:
        if entry.filename.endswith(name):
            entry.compress_size = -1

    return change


def deeper(entry: zipfile.ZipInfo) -> None:
    entry.filename = f"outer/{entry.filename}"


def encrypted(raw: bytes) -> bytes:
    """Sets the encryption flag of every entry in the central directory."""
    pieces = raw.split(b"PK\x01\x02")
    return b"PK\x01\x02".join([pieces[0], *(p[:4] + bytes([p[4] | 1]) + p[5:] for p in pieces[1:])])


def flip_bit(raw: bytes) -> bytes:
    """Flips one bit of a tensor; PyTorch does not verify its own checksums."""
    position = raw.index(torch.ones(24).numpy().tobytes()) + 2
    return raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]


def overlapping(folder: Path) -> None:
    """A thousand entries over the same 20 MB: 20 GB for a reader that extracts each."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(20_000_000))
        for _ in range(1000):
            archive.filelist.append(archive.filelist[0])
    (folder / PICKLED).write_bytes(buffer.getvalue())


def tar(folder: Path) -> None:
    with tarfile.open(folder / PICKLED, "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))


SPARSE = torch.eye(24)[0].to_sparse()
CASES = [
    Case("A30 empty", with_bytes(lambda raw: b"", PICKLED), UNSAFE, "pytorch_model.bin is not a zip file"),
    Case("A30 cut", with_bytes(lambda raw: raw[:-200], PICKLED), CORRUPT, "pytorch_model.bin is a damaged zip"),
    Case("A30 no data.pkl", rezipped(without("data.pkl")), CORRUPT, "bin is a damaged PyTorch file"),
    Case("A30 deeper data.pkl", rezipped(deeper), CORRUPT, "bin is a damaged PyTorch file: one data.pkl is expected"),
    Case("A30 no storage", rezipped(without("data/0")), CORRUPT, "bin is a damaged PyTorch file"),
    Case("A27 deflated", rezipped(deflate), UNSAFE, "holds compressed or overlapping entries"),
    Case("A28 a thousand times the same", overlapping, UNSAFE, "holds compressed or overlapping entries"),
    Case("A29 flipped bit", with_bytes(flip_bit, PICKLED), CORRUPT, "is a damaged zip file (Bad CRC-32"),
    Case("entry outside", rezipped(lambda e: e, ("../x", b"")), UNSAFE, "a path outside of it"),
    Case("encrypted", with_bytes(encrypted, PICKLED), CORRUPT, "pytorch_model.bin is a damaged zip file"),
    Case("A25 tar", tar, UNSAFE, "pytorch_model.bin is not a zip file"),
    Case("A25 bare pickle", with_bytes(lambda _: pickle.dumps({}, 2), PICKLED), UNSAFE, "a bare pickle"),
    Case("a newer pickle", saved({}, pickle_protocol=4), MISMATCH, "is written in pickle protocol 4, expected 2: save"),
    Case("A31 list", saved([torch.ones(2)]), CORRUPT, "bin holds a list, expected names and tensors"),
    Case("A31 tensor", saved(torch.ones(2)), CORRUPT, "bin holds a Tensor, expected names and tensors"),
    Case("A31 module", saved(torch.nn.Linear(2, 2)), UNSAFE, NOT_OPENED),
    Case("A31 nested", saved({"model": {"a": torch.ones(2)}}), CORRUPT, "'model' is a dict, expected a tensor"),
    Case("A31 numbers", saved({1: torch.ones(2)}), CORRUPT, "expected names and tensors"),
    Case("A31 number", norm(3), CORRUPT, f"{NORM!r} is a int, expected a tensor"),
    Case("A31 numbers below state_dict", saved({"state_dict": {1: 1}}), CORRUPT, "expected names and tensors"),
    Case(
        "A32 stride 0",
        norm(torch.ones(1).expand(10**9)),
        UNSAFE,
        f"{NORM!r} has 1,000,000,000 numbers by its shape, and stores fewer: make it contiguous() and save it again",
    ),
    Case("sparse", norm(SPARSE), MISMATCH, f"{OTHERS}sparse tensors, {EXPECTED}"),
    Case("meta", norm(torch.ones(24, device="meta")), MISMATCH, f"{OTHERS}tensors without their numbers, {EXPECTED}"),
    Case("float8", norm(torch.ones(24).to(torch.float8_e4m3fn)), MISMATCH, f"{OTHERS}numbers of a newer kind, such"),
    Case("complex", norm(torch.ones(24).cfloat()), MISMATCH, f"{OTHERS}complex numbers, {EXPECTED}"),
    Case("int64", norm(torch.ones(24).long()), MISMATCH, f"{NORM} holds int64, expected real numbers"),
    Case("NaN", norm(torch.full((24,), torch.nan)), CORRUPT, f"{NORM} holds NaN"),
    Case("strange name", changed(lambda t: t.update({"\x1b[2J\n": t[NORM]})), UNSAFE, "is not a valid tensor name"),
    Case("missing", changed(lambda t: t.pop(NORM)), MISMATCH, f"1 missing ({NORM})"),
]  # fmt: skip


@parametrize_cases(CASES)
def test_a_damaged_bin_is_refused(case: Case, tmp_path: Path) -> None:
    folder = convert_to_bin(valid_checkpoint(tmp_path / "model"))
    case.damage(folder)
    assert_refused(folder, case)


def share_tensor(count: int) -> Damage:
    """The query weights of the first `count` layers are one tensor."""

    def share(tensors: dict[str, Any]) -> None:
        names = [name for name in tensors if name.endswith("query.weight")][:count]
        tensors |= dict.fromkeys(names, tensors[names[0]])

    return changed(share)


def test_shared_storage_is_limited(tmp_path: Path) -> None:
    """As tied weights do; but one tensor as the weight of every layer would turn a megabyte into gigabytes."""
    folder = convert_to_bin(valid_checkpoint(tmp_path / "model", num_hidden_layers=9))
    share_tensor(8)(folder)
    assert pellucid.load(folder).config.num_hidden_layers == 9
    share_tensor(9)(folder)
    assert_refused(
        folder, Case("shared", len, UNSAFE, "others are the same stored numbers, more than 8 times what the")
    )


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    folder = convert_to_bin(valid_checkpoint(tmp_path / "model"))
    rezipped(lambda entry: entry, ("archive/constants.pkl", b"\x80\x02)."))(folder)
    assert_refused(folder, Case("torchscript", len, UNSAFE, "holds a program (TorchScript)"))


def test_valid_bin_loads(tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    expected = pellucid.load(folder).module.state_dict()
    found = pellucid.load(convert_to_bin(folder)).module.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
