"""Damaged or hostile weights are refused before anything is allocated, with a sentence that says what to do."""

import os
from pathlib import Path

import pytest
import torch

import pellucid
from tests.checkpoints.builders import (
    ABSENT,
    CORRUPT,
    MISMATCH,
    NORM,
    UNSAFE,
    WEIGHTS,
    WORDS,
    Case,
    Damage,
    Header,
    each,
    edit_json,
    good,
    refused,
    save_bin,
    shards,
    with_bytes,
    with_entry,
    with_file,
    with_header,
    with_tensors,
    with_text,
    write_raw,
)

pytestmark = pytest.mark.timeout(30)

INDEX = "model.safetensors.index.json"
BIAS = "embeddings.LayerNorm.bias"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 12345\n"


def header_of(raw: bytes) -> Damage:
    return lambda folder: write_raw(folder / WEIGHTS, raw)


def claimed(length: int) -> Damage:
    return lambda folder: write_raw(folder / WEIGHTS, b"{}", length=length)


def as_zip(folder: Path) -> None:
    save_bin({"a": torch.ones(2)}, folder / WEIGHTS)


def many_names(folder: Path) -> None:
    entry = '"%s%07d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    write_raw(folder / WEIGHTS, ("{" + ",".join(entry % ("n" * 40, i) for i in range(120_000)) + "}").encode())


def shift(header: Header) -> None:
    """Every tensor but the first begins four bytes later."""
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] > 0:
            entry["data_offsets"] = [place + 4 for place in entry["data_offsets"]]


def over_the_one_before(header: Header) -> None:
    begin, end = header[NORM]["data_offsets"]
    header[NORM]["data_offsets"] = [begin - 4, end - 4]


def twice_the_same(header: Header) -> None:
    header["again.weight"] = dict(header[NORM])


def renamed(name: str) -> Damage:
    return with_header(lambda header: header.update({name: header.pop(NORM)}))


def norm(value: object) -> Damage:
    return with_tensors(lambda tensors: tensors.update({NORM: value}))


def number(value: float) -> Damage:
    return with_tensors(lambda tensors: tensors[NORM].__setitem__(3, value))


def half_a_name(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)


def bool_of_two(folder: Path) -> None:
    with_tensors(lambda tensors: tensors.update({NORM: torch.ones(24, dtype=torch.bool)}))(folder)
    with_bytes(lambda raw: raw.replace(b"\x01" * 24, b"\x02" * 24))(folder)


FILE = [
    Case("A1 empty", with_file(WEIGHTS, b""), CORRUPT, "model.safetensors is empty (0 bytes)"),
    Case("A1 five bytes", with_file(WEIGHTS, b"12345"), CORRUPT, "model.safetensors is cut short (5 bytes)"),
    Case("A2 git-lfs pointer", with_file(WEIGHTS, LFS), CORRUPT, "git-lfs pointer of 12,345 bytes"),
    Case("A3 HTML page", with_file(WEIGHTS, "<!doctype html><h1>404"), CORRUPT, "is an HTML or XML page"),
    Case("A4 zip", as_zip, CORRUPT, "model.safetensors is a zip file"),
    Case("A5 truncated", with_bytes(lambda raw: raw[:-100]), CORRUPT, "model.safetensors is cut short"),
    Case("A6 polyglot", with_bytes(lambda raw: raw + b"#!/bin/sh\nid"), CORRUPT, "has 12 bytes after its last"),
    Case("A7 header of 2^64-1", claimed(2**64 - 1), CORRUPT, "claims 18,446,744,073,709,551,615 bytes"),
    Case("A7 header of 100 MB", claimed(100_000_001), CORRUPT, "claims 100,000,001 bytes"),
    Case("A8 huge real header", many_names, CORRUPT, "more than the 10,000,000 that are read"),
    Case("A9 not UTF-8", header_of(b'{"a\xff": 1}'), CORRUPT, "model.safetensors has a damaged header"),
    Case("A9 not JSON", header_of(b"{'a': 1}"), CORRUPT, "model.safetensors has a damaged header"),
    Case("A9 a list", header_of(b"[]"), CORRUPT, "has a header that is a list"),
    Case("A9 deep", header_of(b"[" * 100_000), CORRUPT, "model.safetensors has a damaged header"),
    Case("A10 overlap", with_header(over_the_one_before), CORRUPT, f"{NORM!r} overlaps the one before it"),
    Case("A11 hole", with_header(shift), CORRUPT, f"tensor {NORM!r} leaves a gap before it"),
    Case("A12 one range twice", with_header(twice_the_same), CORRUPT, "overlaps the one before it"),
    Case("A13 end before begin", with_entry(data_offsets=[96, 0]), CORRUPT, f"{NORM!r} has data_offsets"),
    Case("A13 negative offset", with_entry(data_offsets=[-96, 0]), CORRUPT, f"{NORM!r} has data_offsets"),
    Case("A13 one offset", with_entry(data_offsets=[96]), CORRUPT, f"{NORM!r} has data_offsets"),
    Case("A13 negative shape", with_entry(shape=[-24]), CORRUPT, f"{NORM!r} has shape [-24]"),
    Case("A13 broken shape", with_entry(shape=[24.0]), CORRUPT, f"{NORM!r} has shape [24.0]"),
    Case("A13 yes as a shape", with_entry(shape=[True] * 3), CORRUPT, f"{NORM!r} has shape [True"),
    Case("A13 NaN as a shape", with_entry(shape=[float("nan")]), CORRUPT, f"{NORM!r} has shape [nan]"),
    Case("A14 product overflows", with_entry(shape=[2**33, 2**33]), CORRUPT, f"{NORM!r} of shape"),
    Case("A14 4,000 digits", with_entry(shape=[10**4000] * 8), CORRUPT, f"{NORM!r} has shape"),
    Case("A14 far away", with_entry(data_offsets=[10**4000, 10**4000 + 96]), CORRUPT, f"{NORM!r} has data"),
    Case("A15 shape and bytes", with_entry(shape=[23]), CORRUPT, f"{NORM!r} of shape [23] takes 92 bytes"),
    Case("A16 unknown dtype", with_entry(dtype="F33"), CORRUPT, f"{NORM!r} has dtype 'F33', expected one of"),
    Case("A16 a list as dtype", with_entry(dtype=["F32"]), CORRUPT, f"{NORM!r} has dtype"),
    Case("A17 one key twice", with_text(lambda text: text[:-1] + ", " + text[1:]), CORRUPT, "appears twice"),
    Case("A18 many dimensions", with_entry(shape=[1] * 100_000), CORRUPT, "expected at most 8 whole numbers"),
    Case("A18 unknown field", with_entry(code="import os"), CORRUPT, f"{NORM!r} has a damaged entry"),
    Case("A19 NaN", number(float("nan")), CORRUPT, f"{NORM} holds NaN or infinite numbers"),
    Case("A19 infinity", number(float("-inf")), CORRUPT, f"{NORM} holds NaN or infinite numbers"),
    Case("A20 BOOL of two", bool_of_two, MISMATCH, f"{NORM} holds bool, expected real numbers"),
    Case("A20 int64", norm(torch.ones(24).long()), MISMATCH, f"{NORM} holds int64"),
    Case("A21 path as a name", renamed("../../x"), UNSAFE, "'../../x' is not a valid tensor name"),
    Case("A21 NUL in a name", renamed("a\0b"), UNSAFE, r"'a\x00b' is not a valid tensor name"),
    Case("A21 megabyte name", renamed("n" * 1_000_000), UNSAFE, "nnn' is not a valid tensor name"),
    Case("A21 long name", renamed("n" * 200), MISMATCH, "unexpected tensor (nnn"),
    Case("A22 no tensors", header_of(b"{}"), MISMATCH, "missing (embeddings.word_embeddings.weight"),
    Case("A39 one missing", with_tensors(lambda t: t.pop(WORDS)), MISMATCH, f"1 missing ({WORDS})"),
    Case("A39 all renamed", with_tensors(half_a_name), MISMATCH, "(did you mean", most=700),
    Case("A39 one more", with_tensors(lambda t: t.update(x=t[NORM] + 1)), MISMATCH, "unexpected tensor (x)"),
    Case("A40 wrong shape", norm(torch.ones(23)), MISMATCH, f"{NORM} has shape [23], expected [24]"),
]  # fmt: skip


@each(FILE)
def test_a_damaged_file_is_refused(case: Case, tmp_path: Path) -> None:
    folder = good(tmp_path / "model")
    case.damage(folder)
    refused(folder, case)


# -- what is not a file ------------------------------------------------------------------------------------------------


def instead(make: Damage) -> Damage:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        make(folder / WEIGHTS)

    return damage


def outside(path: Path) -> None:
    real = path.parent.parent / "outside.safetensors"
    write_raw(real, b"{}")
    path.symlink_to(real)


PLACES = [
    Case("A23 pipe", instead(os.mkfifo), CORRUPT, "model.safetensors is not a regular file"),
    Case("A23 folder", instead(Path.mkdir), CORRUPT, "model.safetensors is not a regular file"),
    Case("A23 device", instead(lambda p: p.symlink_to("/dev/zero")), UNSAFE, "link to /dev/zero, outside"),
    Case("A35 link outside", instead(outside), UNSAFE, "outside the checkpoint"),
    Case("dangling link", instead(lambda p: p.symlink_to("nothing")), ABSENT, "is a link to a file that is gone"),
    Case("no weights", instead(lambda path: None), ABSENT, "holds no weights: expected model.safetensors"),
]


@each(PLACES)
def test_what_is_no_file_of_the_folder_is_refused(case: Case, tmp_path: Path) -> None:
    folder = good(tmp_path / "model")
    case.damage(folder)
    refused(folder, case)


def test_the_same_tricks_without_their_damage_load(tmp_path: Path) -> None:
    """The cases above fail because of their damage and for no other reason."""
    folder = good(tmp_path / "model")
    wanted = pellucid.load(folder).module.state_dict()
    for trick in (with_tensors(len), with_header(len), with_text(str), with_bytes(bytes), shards):
        trick(folder)
    edit_json(folder / INDEX, len)
    found = pellucid.load(folder).module.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
