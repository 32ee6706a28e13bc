"""Texts from files: exact, or refused by line."""

from pathlib import Path

import pytest

from pellucid.errors import InputError
from pellucid.text.rows import read_texts


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


GOOD = {
    "plain.csv": ("id,text\n1,hello\n2,NA\n", ["hello", "NA"]),
    "semicolon.csv": ("id;text\n1;a, b\n", ["a, b"]),
    "quoted.csv": ('id,text\n1,"two\nlines, ""quoted"""\n', ['two\nlines, "quoted"']),
    "bom.csv": ("\ufefftext,id\nä,1\n", ["ä"]),
    "windows.csv": ("text,id\r\na,1\r\n", ["a"]),
    "tab.tsv": ("id\ttext\n1\tnull\n", ["null"]),
    "rows.jsonl": ('{"text": "a"}\n\n{"text": "b", "id": 2}\n', ["a", "b"]),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_column_is_read_as_it_stands(tmp_path: Path, name: str) -> None:
    content, wanted = GOOD[name]
    assert list(read_texts(written(tmp_path, name, content), "text")) == wanted


def test_lines_of_a_text(tmp_path: Path) -> None:
    assert list(read_texts(written(tmp_path, "a.txt", "one\ntwo\r\n\nfour"))) == ["one", "two", "", "four"]


BAD = {
    "empty.csv": (b"", "text", "is empty"),
    "ragged.csv": (b"id,text\n1,a\n2\n", "text", "line 3: 1 fields, expected 2"),
    "unclosed.csv": (b'id,text\n1,"a\n', "text", "line"),
    "lacking.csv": (b"id,texts\n1,a\n", "text", "did you mean texts"),
    "latin.csv": ("id,text\n1,ä\n".encode("latin-1"), "text", "not UTF-8"),
    "wide.csv": ("id,text\n1,a\n".encode("utf-16"), "text", "not UTF-8"),
    "packed.csv": (b"\x1f\x8b\x08\x00" + b"0" * 9, "text", "looks like gzip"),
    "nul.txt": (b"a\0b\n", None, "NUL in line 1"),
    "bad.jsonl": (b'{"text": "a"}\n{"text": \n', "text", "line 2: not JSON"),
    "number.jsonl": (b'{"text": 5}\n', "text", "line 1: 'text' is int"),
    "lacks.jsonl": (b'{"txt": "a"}\n', "text", "did you mean txt"),
    "none.csv": (b"a,b\n", None, "--column"),
    "column.txt": (b"a\n", "text", "no table"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    content, column, fragment = BAD[name]
    path = written(tmp_path, name, content)
    with pytest.raises(InputError, match=fragment) as caught:
        list(read_texts(path, column))
    assert name in str(caught.value)
