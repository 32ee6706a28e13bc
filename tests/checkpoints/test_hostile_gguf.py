"""Damaged or hostile GGUF files are refused within two seconds, with a sentence that names file and field."""

import struct
import time
import tracemalloc
from pathlib import Path

import pytest
import torch

from pellucid.checkpoints.gguf import open_gguf
from pellucid.checkpoints.gguf.header import MAX_STRINGS, read_header
from pellucid.errors import CorruptFileError, PellucidError, UnsafeFileError
from tests.checkpoints.gguf_files import array, entry, fact, integer, raw_file, string, text, write_gguf

pytestmark = pytest.mark.timeout(30)

ARCHITECTURE = text("general.architecture", "llama")
NUMBERS = struct.pack("<32f", *range(32))
ONE = [entry("a.weight", [32])]
HUGE = 2**63

HOSTILE = {
    "empty": (b"", "begins with b''"),
    "three bytes": (b"GGU", "begins with"),
    "magic": (raw_file([], [], magic=b"GGML"), "expected b'GGUF'"),
    "html": (b"<!DOCTYPE html><html></html>", "begins with"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "version 0": (raw_file([], [], version=0), "version is 0"),
    "version 1": (raw_file([], [], version=1), "version is 1, expected 2 or 3"),
    "version 4": (raw_file([], [], version=4), "version is 4"),
    "version huge": (raw_file([], [], version=0xFFFFFFFF), "version is"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "keys": (raw_file([ARCHITECTURE], [], keys=HUGE), "number of keys is 9,223,372,036,854,775,808"),
    "a few keys too many": (raw_file([ARCHITECTURE], [], keys=4), "number of keys is 4"),
    "tensors": (raw_file([ARCHITECTURE], [], tensors=HUGE), "number of tensors is 9,223,372,036,854,775,808"),
    "length of a key": (raw_file([struct.pack("<Q", HUGE) + bytes(30)], []), "key 0 takes"),
    "length of a string": (raw_file([fact("a", 8, struct.pack("<Q", HUGE))], []), "a takes 9,223,372,036,854,775,808"),
    "length just too long": (raw_file([fact("a", 8, struct.pack("<Q", 9) + bytes(8))], []), "a takes 9 bytes and 8"),
    "length of an array": (raw_file([array("a", 4, 2**61)], []), "a takes 9,223,372,036,854,775,808 bytes"),
    "length of an array of bytes": (raw_file([array("a", 0, 2**64 - 1)], []), "a takes 18,446"),
    "length of an array of strings": (
        raw_file([array("a", 8, 2**61)], []),
        "a claims 2,305,843,009,213,693,952 strings",
    ),
    "array of arrays": (raw_file([array("a", 9, 2**61, struct.pack("<IQ", 9, 2**61))], []), "list of lists"),
    "array of arrays of arrays": (raw_file([array("a", 9, 1, struct.pack("<IQ", 9, 1) * 500)], []), "list of lists"),
    "type of a value": (raw_file([fact("a", 13, bytes(8))], []), "a has type 13"),
    "type of an array": (raw_file([array("a", 99, 1, bytes(8))], []), "a has type 99"),
    "truth": (raw_file([fact("a", 7, b"\x02")], []), r"a is 2, expected true \(1\)"),
    "truths": (raw_file([array("a", 7, 2, b"\x01\xff")], []), "a is 255"),
    "key twice": (raw_file([ARCHITECTURE, ARCHITECTURE], []), "'general.architecture' appears twice"),
    "key empty": (raw_file([text("", "a")], []), "key 0 is ''"),
    "key long": (raw_file([text("a" * 201, "a")], []), "at most 200"),
    "key with a line end": (raw_file([text("a\nb", "a")], []), r"key 0 is 'a\\nb'"),
    "key not UTF-8": (raw_file([text(b"\xff\xfe", "a")], []), "key 0 is not UTF-8"),
    "value not UTF-8": (raw_file([text("a", b"\xc3\x28")], []), "a is not UTF-8"),
    "surrogate": (raw_file([text("a", b"\xed\xa0\x80")], []), "a is not UTF-8"),
    "strings not UTF-8": (raw_file([array("a", 8, 2, string("x") + string(b"\x80"))], []), "a is not UTF-8"),
    "name not UTF-8": (raw_file([], [entry(b"\xff", [32])], NUMBERS), "name of tensor 0 is not UTF-8"),
    "name leads out": (raw_file([], [entry("../a", [32])], NUMBERS), "not a valid tensor name"),
    "no dimensions": (raw_file([], [entry("a", [])], NUMBERS), "a has 0 dimensions"),
    "five dimensions": (raw_file([], [entry("a", [2] * 5)], NUMBERS), "a has 5 dimensions"),
    "dimensions huge": (raw_file([], [entry("a", [2], dimensions=2**32 - 1)], NUMBERS), "a has 4,294,967,295"),
    "no numbers": (raw_file([], [entry("a", [0])]), r"a has shape \[0\]"),
    "dimension huge": (raw_file([], [entry("a", [HUGE])], NUMBERS), "a has shape"),
    "product wraps to zero": (raw_file([], [entry("a", [2**32, 2**32])], NUMBERS), "a has shape"),
    "product wraps to 32": (raw_file([], [entry("a", [2**62 + 8, 4])], NUMBERS), "a has shape"),
    "more than the file": (raw_file([], [entry("a", [2**40])], NUMBERS), "a ends at byte"),
    "type 999": (raw_file([], [entry("a", [32], kind=999)], NUMBERS), "a has type 999"),
    "type withdrawn": (raw_file([], [entry("a", [32], kind=4)], NUMBERS), "a has type 4"),
    "rows no multiple": (
        raw_file([], [entry("a", [31], kind=8)], bytes(34)),
        "rows of 31 numbers, expected a multiple of 32",
    ),
    "offset past the end": (raw_file([], [entry("a", [32], offset=2**20)], NUMBERS), "a ends at byte"),
    "offset huge": (raw_file([], [entry("a", [32], offset=2**64 - 32)], NUMBERS), "a ends at byte"),
    "offset misaligned": (raw_file([], [entry("a", [32], offset=4)], NUMBERS + bytes(32)), "expected a multiple of 32"),
    "gap": (raw_file([], [entry("a", [32], offset=32)], bytes(32) + NUMBERS), "leaves a gap"),
    "overlap": (
        raw_file([], [entry("a", [32]), entry("b", [32], offset=64)], NUMBERS + bytes(128)),
        "b overlaps the one before",
    ),
    "same place": (raw_file([], [entry("a", [32]), entry("b", [32])], NUMBERS), "b overlaps"),
    "tensor twice": (
        raw_file([], [*ONE, entry("a.weight", [32], offset=128)], NUMBERS * 2),
        "a.weight appears twice",
    ),
    "bytes at the end": (raw_file([], ONE, NUMBERS + bytes(33)), "33 bytes at its end"),
    "bytes at the end of a vocabulary": (raw_file([ARCHITECTURE], [], bytes(1000)), "bytes at its end"),
    "alignment 0": (raw_file([integer("general.alignment", 0)], ONE, NUMBERS), "general.alignment is 0"),
    "alignment 24": (raw_file([integer("general.alignment", 24)], ONE, NUMBERS), "general.alignment is 24"),
    "alignment 2^31": (raw_file([integer("general.alignment", 2**31)], ONE, NUMBERS), "a power of two up to"),
    "alignment text": (raw_file([text("general.alignment", "32")], ONE, NUMBERS), "general.alignment is 32"),
    "alignment list": (
        raw_file([array("general.alignment", 4, 1, struct.pack("<I", 32))], ONE, NUMBERS),
        "alignment is",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    raw, message = HOSTILE[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    begin = time.process_time()
    with pytest.raises((CorruptFileError, UnsafeFileError), match=message) as caught:
        read_header(path)
    assert time.process_time() - begin < 1
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and len(sentence) < 300 + len(str(path))


def test_valid_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([ARCHITECTURE, integer("general.alignment", 64)], ONE, NUMBERS, alignment=64))
    header = read_header(path)
    assert header.metadata == {"general.architecture": "llama", "general.alignment": 64}
    assert header.tensors["a.weight"].shape == (32,)
    path.write_bytes(raw_file([ARCHITECTURE], ONE, NUMBERS, version=2))
    assert list(read_header(path).tensors) == ["a.weight"]


@pytest.mark.parametrize("tensors", [0, 2])
def test_file_truncated_at_any_byte_is_refused(tensors: int, tmp_path: Path) -> None:
    facts = {"llama.block_count": 1, "a.words": ["x", "yz"], "a.numbers": [1, 2, 3], "a.real": 0.5, "a.true": True}
    parts = {f"blk.{i}.attn_q.weight": torch.randn(4, 32) for i in range(tensors)}
    whole_file = (
        write_gguf(tmp_path / "a.gguf", "llama", facts, parts).read_bytes().rstrip(b"\0")
    )  # padding may be missing
    path = tmp_path / "cut.gguf"
    for length in range(len(whole_file)):
        path.write_bytes(whole_file[:length])
        with pytest.raises(CorruptFileError):
            read_header(path)


def test_changed_bytes_raise_only_our_errors(tmp_path: Path) -> None:
    facts = {"llama.block_count": 1, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["x", "yz"]}
    parts = {"blk.0.attn_q.weight": torch.randn(4, 32), "output_norm.weight": torch.randn(32)}
    good = write_gguf(tmp_path / "a.gguf", "llama", facts, parts).read_bytes()
    path = tmp_path / "flipped.gguf"
    refused = 0
    for position in range(len(good) - 640):  # tensor data may be any bytes
        for value in (0, 0x7F, 0xFF, good[position] ^ 1):
            path.write_bytes(good[:position] + bytes([value]) + good[position + 1 :])
            try:
                open_gguf(path)
            except PellucidError:
                refused += 1
    assert refused > 500


@pytest.mark.parametrize("name", HOSTILE)
def test_claimed_sizes_allocate_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(HOSTILE[name][0])
    tracemalloc.start()
    with pytest.raises(PellucidError):
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**18 + 2 * path.stat().st_size


def test_more_than_a_million_strings_are_refused(tmp_path: Path) -> None:
    """A little more than the largest in use: each string takes time, and six times its bytes once it is read."""
    path = tmp_path / "model.gguf"
    count = MAX_STRINGS // 2 + 1
    body = array("a", 8, count, string("ab") * count)
    path.write_bytes(raw_file([body, body.replace(string("a"), string("b"), 1)], []))
    begin = time.process_time()
    with pytest.raises(CorruptFileError, match="b claims 524,289 strings"):
        read_header(path)
    assert time.process_time() - begin < 2


def test_string_list_behaves_as_a_list(tmp_path: Path) -> None:
    strings = ["", "x", "Ġthe", "a\r\nb", "\n", "🙂", "", "日本"]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([array("a", 8, len(strings), b"".join(map(string, strings)))], []))
    found = read_header(path).metadata["a"]
    assert list(found) == strings and len(found) == len(strings)
    assert [found[i] for i in range(-len(strings), len(strings))] == strings * 2
    assert found[2:7:2] == strings[2:7:2] and found[::-1] == strings[::-1] and found[8:] == []
    assert found == strings and found != strings[:-1] and found != "x"
    assert repr(found) == "['', 'x', 'Ġthe', ... 8 strings]" and repr(found[:2]) == "['', 'x']"
    assert "日本" in found and "b" not in found and found.index("🙂") == 5
    for index in (len(strings), -len(strings) - 1):
        with pytest.raises(IndexError):
            found[index]


def test_overlong_header_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.checkpoints.gguf.header.MAX_HEADER_BYTES", 1000)
    path = tmp_path / "model.gguf"
    path.write_bytes(raw_file([array("a", 0, 2000, bytes(2000))], []))
    with pytest.raises(UnsafeFileError, match="the header goes past 1,000 bytes at a"):
        read_header(path)


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="not a regular file"):
        read_header(tmp_path)
