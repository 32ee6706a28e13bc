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
    TOKEN_TABLE,
    UNSAFE,
    WEIGHTS,
    Case,
    Damage,
    Header,
    assert_refused,
    edit_json,
    parametrize_cases,
    save_bin,
    split_into_shards,
    valid_checkpoint,
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


def with_raw_header(raw: bytes) -> Damage:
    return lambda folder: write_raw(folder / WEIGHTS, raw)


def with_claimed_length(length: int) -> Damage:
    return lambda folder: write_raw(folder / WEIGHTS, b"{}", length=length)


def write_zip(folder: Path) -> None:
    save_bin({"a": torch.ones(2)}, folder / WEIGHTS)


def many_names(folder: Path) -> None:
    entry = '"%s%07d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    write_raw(folder / WEIGHTS, ("{" + ",".join(entry % ("n" * 40, i) for i in range(120_000)) + "}").encode())


def shift_offsets(header: Header) -> None:
    """Every tensor but the first begins four bytes later."""
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] > 0:
            entry["data_offsets"] = [offset + 4 for offset in entry["data_offsets"]]


def overlap_previous(header: Header) -> None:
    begin, end = header[NORM]["data_offsets"]
    header[NORM]["data_offsets"] = [begin - 4, end - 4]


def duplicate_entry(header: Header) -> None:
    header["again.weight"] = dict(header[NORM])


def with_renamed(name: str) -> Damage:
    return with_header(lambda header: header.update({name: header.pop(NORM)}))


def with_norm(value: object) -> Damage:
    return with_tensors(lambda tensors: tensors.update({NORM: value}))


def with_value(value: float) -> Damage:
    return with_tensors(lambda tensors: tensors[NORM].__setitem__(3, value))


def prefix_names(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)


def write_invalid_bools(folder: Path) -> None:
    with_tensors(lambda tensors: tensors.update({NORM: torch.ones(24, dtype=torch.bool)}))(folder)
    with_bytes(lambda raw: raw.replace(b"\x01" * 24, b"\x02" * 24))(folder)


DAMAGED_FILES = [
    Case("A1 empty", with_file(WEIGHTS, b""), CORRUPT, "model.safetensors is empty (0 bytes)"),
    Case("A1 five bytes", with_file(WEIGHTS, b"12345"), CORRUPT, "model.safetensors is cut short (5 bytes)"),
    Case("A2 git-lfs pointer", with_file(WEIGHTS, LFS), CORRUPT, "git-lfs pointer of 12,345 bytes"),
    Case("A3 HTML page", with_file(WEIGHTS, "<!doctype html><h1>404"), CORRUPT, "is an HTML or XML page"),
    Case("A4 zip", write_zip, CORRUPT, "model.safetensors is a zip file"),
    Case("A5 truncated", with_bytes(lambda raw: raw[:-100]), CORRUPT, "model.safetensors is cut short"),
    Case("A6 polyglot", with_bytes(lambda raw: raw + b"#!/bin/sh\nid"), CORRUPT, "has 12 bytes too many after"),
    Case("A7 header of 2^64-1", with_claimed_length(2**64 - 1), CORRUPT, "claims 18,446,744,073,709,551,615 bytes"),
    Case("A7 header of 100 MB", with_claimed_length(100_000_001), CORRUPT, "claims 100,000,001 bytes"),
    Case("A8 huge real header", many_names, CORRUPT, "more than the 10,000,000 that are read"),
    Case("A9 not UTF-8", with_raw_header(b'{"a\xff": 1}'), CORRUPT, "model.safetensors has a damaged header"),
    Case("A9 not JSON", with_raw_header(b"{'a': 1}"), CORRUPT, "model.safetensors has a damaged header"),
    Case("A9 a list", with_raw_header(b"[]"), CORRUPT, "has a header that is a list"),
    Case("A9 deep", with_raw_header(b"[" * 100_000), CORRUPT, "model.safetensors has a damaged header"),
    Case("A10 overlap", with_header(overlap_previous), CORRUPT, f"{NORM!r} overlaps the one before it"),
    Case("A11 hole", with_header(shift_offsets), CORRUPT, f"tensor {NORM!r} leaves a gap before it"),
    Case("A12 one range twice", with_header(duplicate_entry), CORRUPT, "overlaps the one before it"),
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
    Case("A19 NaN", with_value(float("nan")), CORRUPT, f"{NORM} holds NaN or infinite numbers"),
    Case("A19 infinity", with_value(float("-inf")), CORRUPT, f"{NORM} holds NaN or infinite numbers"),
    Case("A20 BOOL of two", write_invalid_bools, MISMATCH, f"{NORM} holds bool, expected real numbers"),
    Case("A20 int64", with_norm(torch.ones(24).long()), MISMATCH, f"{NORM} holds int64"),
    Case("A21 path as a name", with_renamed("../../x"), UNSAFE, "'../../x' is not a valid tensor name"),
    Case("A21 NUL in a name", with_renamed("a\0b"), UNSAFE, r"'a\x00b' is not a valid tensor name"),
    Case("A21 megabyte name", with_renamed("n" * 1_000_000), UNSAFE, "nnn' is not a valid tensor name"),
    Case("A21 long name", with_renamed("n" * 200), MISMATCH, "unexpected tensor (nnn"),
    Case("A22 no tensors", with_raw_header(b"{}"), MISMATCH, "missing (embeddings.word_embeddings.weight"),
    Case("A39 one missing", with_tensors(lambda t: t.pop(TOKEN_TABLE)), MISMATCH, f"1 missing ({TOKEN_TABLE})"),
    Case("A39 all renamed", with_tensors(prefix_names), MISMATCH, "(did you mean", max_length=700),
    Case("A39 one more", with_tensors(lambda t: t.update(x=t[NORM] + 1)), MISMATCH, "unexpected tensor (x)"),
    Case("A40 wrong shape", with_norm(torch.ones(23)), MISMATCH, f"{NORM} has shape [23], expected [24]"),
]  # fmt: skip


@parametrize_cases(DAMAGED_FILES)
def test_a_damaged_file_is_refused(case: Case, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    case.damage(folder)
    assert_refused(folder, case)


# -- what is not a file ------------------------------------------------------------------------------------------------


def replaced_by(make: Damage, name: str = WEIGHTS) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


SIDE_FILES = (
    "generation_config.json",
    "modules.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tools.jinja",
    "tokenizer.json",
    "vocab.txt",
    "spiece.model",
)
"""Files that a checkpoint may have: without them, other settings would hold in silence."""


def link_outside(path: Path) -> None:
    real = path.parent.parent / "outside.safetensors"
    write_raw(real, b"{}")
    path.symlink_to(real)


IRREGULAR_FILES = [
    Case("A23 pipe", replaced_by(os.mkfifo), CORRUPT, "model.safetensors is not a regular file"),
    Case("A23 folder", replaced_by(Path.mkdir), CORRUPT, "model.safetensors is not a regular file"),
    Case("A23 pipe of facts", replaced_by(os.mkfifo, "config.json"), CORRUPT, "config.json is not a regular file"),
    Case("A23 folder of facts", replaced_by(Path.mkdir, "config.json"), CORRUPT, "config.json is not a regular file"),
    *[
        Case(f"{kind} of {name}", replaced_by(make, name), CORRUPT, f"{name} is not a regular file")
        for kind, make in (("pipe", os.mkfifo), ("folder", Path.mkdir))
        for name in SIDE_FILES
    ],
    Case("A23 device", replaced_by(lambda p: p.symlink_to("/dev/zero")), UNSAFE, "link to /dev/zero, outside"),
    Case("A35 link outside", replaced_by(link_outside), UNSAFE, "outside the checkpoint"),
    Case("dangling link", replaced_by(lambda p: p.symlink_to("nothing")), ABSENT, "is a link to a file that is gone"),
    Case("no weights", replaced_by(lambda path: None), ABSENT, "holds no weights: expected model.safetensors"),
]


@parametrize_cases(IRREGULAR_FILES)
def test_irregular_files_are_refused(case: Case, tmp_path: Path) -> None:
    folder = valid_checkpoint(tmp_path / "model")
    case.damage(folder)
    assert_refused(folder, case)


def test_undamaged_rewrites_load(tmp_path: Path) -> None:
    """The cases above fail because of their damage and for no other reason."""
    folder = valid_checkpoint(tmp_path / "model")
    expected = pellucid.load(folder).module.state_dict()
    for rewrite in (with_tensors(len), with_header(len), with_text(str), with_bytes(bytes), split_into_shards):
        rewrite(folder)
    edit_json(folder / INDEX, len)
    found = pellucid.load(folder).module.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
