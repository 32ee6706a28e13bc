"""What can be read into an index, and what is refused: the same inputs by `Index.build` and on the command line."""

import csv
import json
import logging
import math
import os
import re
import resource
import sys
import unicodedata
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import numpy as np
import pytest

import pellucid
from pellucid.cli.errors import run
from pellucid.errors import InputError
from pellucid.search.corpus import Corpus, PassageSplitter
from pellucid.search.entries import Entries, write_entries
from tests.quick import few
from tests.search.child_processes import exit_code_of, start_fork

RunCommandLine = Callable[..., tuple[int, str]]


@pytest.fixture
def run_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[RunCommandLine]:
    """Runs the command line in this process; returns its exit code and stderr."""
    from pellucid.cli.app import app

    def run_command(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["pellucid", *map(str, arguments)])
        capsys.readouterr()
        code = run(app)
        return code, capsys.readouterr().err

    levels = [(logger, logger.level) for logger in (logging.getLogger(), logging.getLogger("pellucid"))]
    yield run_command
    for logger, level in levels:
        logger.setLevel(level)


def texts_by_id(index: pellucid.Index) -> dict[str, str]:
    return {entry.id: entry.text for segment in index.segments for entry in segment.live_entries()}


def build_index(minilm: pellucid.Model, source: object, **options: object) -> pellucid.Index:
    return pellucid.Index.build(minilm, source, progress=False, **options)  # type: ignore[arg-type]


_ENCODING = re.compile(r"encoding='(.*)'")
"""An encoding proposed in an error, which has another form on the command line."""

BAD_TABLES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty: expected a line of column names"),
    "a header alone": (b"id,text\n", "holds no rows"),
    "gzip": (b"\x1f\x8b\x08\x00aaaa", "looks like gzip"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "looks like a PNG picture"),
    "an Excel sheet": (b"PK\x03\x04aaaa", "looks like a zip file (or .xlsx)"),
    "binary": (b"text\na\0b\n", "holds a NUL in line 2"),
    "UTF-16": ("text\nrow\n".encode("utf-16"), "try encoding='utf-16'"),
    "latin-1": ("text\nok\ncafé\n".encode("latin-1"), "line 3, byte 0xe9): try encoding='latin-1'"),
    "no such column": (b"id,Text\n1,a\n", "no column 'text' (did you mean Text?)"),
    "a column twice": (b"text,text\na,b\n", "more than one column 'text'"),
    "a ragged row": (b"id,text\n1,a\n2\n", "line 3: 1 field, expected 2"),
    "an open quote": (b'id,text\n1,"a\n', "line 2: a quote is never closed"),
}


@pytest.mark.parametrize("name", few(BAD_TABLES, ["empty", "gzip", "UTF-16", "no such column", "a ragged row"]))
def test_unreadable_table_is_named_and_leaves_no_files(
    minilm: pellucid.Model, run_command_line: RunCommandLine, tmp_path: Path, name: str
) -> None:
    content, fragment = BAD_TABLES[name]
    table = tmp_path / "rows.csv"
    table.write_bytes(content)
    with pytest.raises(InputError) as error:
        build_index(minilm, table, column="text", out=tmp_path / "a.index")
    assert fragment in str(error.value) and "rows.csv" in str(error.value)
    code, error_output = run_command_line("index", "build", table, "--column", "text", "-o", tmp_path / "b.index")
    assert code == 3 and _ENCODING.sub(r"--encoding \1", fragment) in error_output and error_output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


GOOD_TABLES = {
    "mark and two line ends": b"\xef\xbb\xbfid,text\r\n1,one\r\n2,two\r\n",
    "old line ends": b"id,text\r1,one\r2,two\r",
    "semicolons": b"id;text\n1;one\n2;two\n",
    "tabs": b"id\ttext\n1\tone\n2\ttwo\n",
    "bars": b"id|text\n1|one\n2|two\n",
}


@pytest.mark.parametrize("name", GOOD_TABLES)
def test_every_table_format_gives_the_same_rows(minilm: pellucid.Model, tmp_path: Path, name: str) -> None:
    table = tmp_path / "rows.csv"
    table.write_bytes(GOOD_TABLES[name])
    index = build_index(minilm, table, column="text", id_column="id")
    assert texts_by_id(index) == {"1": "one", "2": "two"}
    assert list(index.manifest.corpus["sha256"]) == [str(table)]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_data_frames_of_every_library_give_the_same_rows(minilm: pellucid.Model, library: str) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed: its frames are known by their methods")
    frame = (module.table if library == "pyarrow" else module.DataFrame)({"id": [7, 8], "text": ["one", "two"]})
    index = build_index(minilm, frame, column="text", id_column="id")
    assert texts_by_id(index) == {"7": "one", "8": "two"}


class Dataset:
    """A stand-in for a set of `datasets`, whose iteration gives labels as numbers."""

    column_names, features = ("text", "label"), {"label": type("ClassLabel", (), {"names": ["bad", "good"]})()}

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield from ({"text": "one", "label": 1}, {"text": "two", "label": -1})


def test_labels_of_a_data_set_are_stored_as_names(minilm: pellucid.Model) -> None:
    index = build_index(minilm, Dataset(), column="text")
    assert [hit["metadata"] for hit in index.search("one", k=2)] == [{"label": "good"}, {"label": None}]
    assert [hit["text"] for hit in index.search("one", where="label = good")] == ["one"]
    with pytest.raises(InputError, match="the parts train: pass one of them"):
        build_index(minilm, {"train": Dataset()}, column="text")


def test_skip_bad_skips_and_lists_invalid_rows(
    minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("id,text\n1,one\n2\n3,three\n")
    assert texts_by_id(build_index(minilm, table, column="text", skip_bad=True)) == {"1": "one", "2": "three"}
    assert f"left out: {table}, line 3: 1 field, expected 2" in caplog.text


def test_row_without_text_is_invalid_and_gets_no_number(
    minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ['{"text": "one"}', '{"txt": "no"}', '{"text": 5}', '{"text": [null]}', "no JSON", '{"text": "two"}']
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines) + "\n")
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    for source, where in ((file, f"{file}, line 2"), (rows, "item 1")):
        caplog.clear()
        index = build_index(minilm, source, column="text", skip_bad=True)
        index.add(["three"], progress=False)
        assert texts_by_id(index) == {"1": "one", "2": "two", "3": "three"}
        assert f"left out: {where}: 'text' is missing, expected a text" in caplog.text
        assert "'text' is int" in caplog.text and "'text' is list" in caplog.text
        with pytest.raises(InputError, match=re.escape(f"{where}: 'text' is missing")):
            build_index(minilm, source, column="text")
    file.write_text("\n".join(lines[1:4]))
    with pytest.raises(InputError, match=r"holds no texts \(left out: .*line 1: 'text' is missing"):
        build_index(minilm, file, column="text", skip_bad=True)


def test_empty_text_is_skipped_and_deletes_the_old_text_of_its_id(
    minilm: pellucid.Model, caplog: pytest.LogCaptureFixture
) -> None:
    index = build_index(minilm, [("a", "apples"), ("b", " \n"), ("c", "pears")])
    assert texts_by_id(index) == {"a": "apples", "c": "pears"}
    assert "which are empty" in caplog.text and "are deleted" not in caplog.text
    index.update([("a", ""), ("d", "plums")], progress=False)
    assert texts_by_id(index) == {"c": "pears", "d": "plums"}
    assert "left out: 1 of 2 texts, which are empty; the texts that had their ids are deleted" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "pellucid"):
        index.update([("c", ""), ("d", "a plum")], progress=False)
    assert "1 row, 1 embedded, 1 row replaced, exact search" in caplog.messages  # the row of "c" was deleted
    with pytest.raises(InputError, match=r"the corpus holds no texts \(left out: 2 that are empty\)"):
        build_index(minilm, ["", "  "])


def test_missing_text_counts_as_empty(minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, numbered = tmp_path / "rows.jsonl", {"1": "one", "3": "three"}
    file.write_text('{"text": "one"}\n{"text": null}\n{"text": "three"}\n')
    assert texts_by_id(build_index(minilm, file, column="text")) == numbered
    for missing in (None, math.nan, NAType()):
        caplog.clear()
        rows = [{"text": text} for text in ("one", missing, "three")]
        index = build_index(minilm, rows, column="text")
        assert texts_by_id(index) == numbered and "left out: 1 of 3 texts, which are empty" in caplog.text
        index.add([{"text": missing}, {"text": "five"}], progress=False)
        assert texts_by_id(index) == {**numbered, "5": "five"}
    named = build_index(minilm, [("a", "apples"), ("b", "pears")], column="text")
    named.update([{"id": "a", "text": math.nan}, {"id": "c", "text": "plums"}], id_column="id", progress=False)
    assert texts_by_id(named) == {"b": "pears", "c": "plums"}


def test_numeric_column_names_become_digits(minilm: pellucid.Model) -> None:
    index = build_index(minilm, [{0: "one", ("a", 1): 7}], column="0")
    assert index.search("one")[0]["metadata"] == {"('a', 1)": 7}
    with pytest.raises(InputError, match=r"'00' is missing, expected a text .did you mean 0"):
        build_index(minilm, [{0: "one"}], column="00")


def test_null_like_words_are_texts(minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = tmp_path / "rows.csv"
    rows = ["NA", "null", "nan", "", "=cmd|' /C calc'!A0"]
    table.write_text("text,n\n" + "".join(f"{row},1\n" for row in rows))
    index = build_index(minilm, table, column="text")
    assert texts_by_id(index) == {str(i): row for i, row in enumerate(rows, 1) if row}
    assert "left out: 1 of 5 texts, which are empty" in caplog.text
    assert all(math.isfinite(hit["score"]) for hit in index.search("NA", k=5))


def test_equal_texts_are_embedded_once_and_duplicate_ids_follow_on_duplicate(
    minilm: pellucid.Model, run_command_line: RunCommandLine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pellucid")
    index = build_index(minilm, ["same", "same", "other"])
    assert "3 rows, 2 embedded" in caplog.text
    assert {hit["id"] for hit in index.search("same", k=2)} == {"1", "2"}
    table = tmp_path / "rows.csv"
    table.write_text("id,text\n7,first\n7,last\n")
    with pytest.raises(InputError, match="the id '7' appears twice, again as item 1"):
        build_index(minilm, table, column="text", id_column="id")
    command = ("index", "build", table, "--column", "text", "--id-column", "id", "-o", tmp_path / "a.index")
    assert run_command_line(*command)[0] == 3
    assert run_command_line(*command, "--on-duplicate", "keep-last")[0] == 0
    index = pellucid.Index.open(tmp_path / "a.index", model=minilm)
    assert texts_by_id(index) == {"7": "last"} and "1 row, 2 embedded" in caplog.text
    caplog.clear()
    with pytest.raises(InputError, match="the id 7 is in the index already: pass update=True to replace what is there"):
        index.add([{"id": "7", "text": "later"}], progress=False)
    with pytest.raises(InputError, match=r"twice, again as item 1: give each its own$"):
        index.add([{"id": "8", "text": "one"}, {"id": "8", "text": "two"}], progress=False)
    assert "rows" not in caplog.text


def test_ids_are_texts(minilm: pellucid.Model) -> None:
    ids = ["with space", "ünïcode ‮abc", str(2**64), "007", "7", 2**64 + 1, 1.5, "a\0b", "'; DROP TABLE rows;--"]
    index = build_index(minilm, [(one, f"text number {i}") for i, one in enumerate(ids)])
    assert list(texts_by_id(index)) == [str(one) for one in ids]
    for one in ids:
        assert index.delete([one]) == 1  # type: ignore[list-item]
    assert len(index) == 0
    for invalid in (None, "", float("nan"), np.float32("nan"), ["a"], b"a", 10**5_000):
        with pytest.raises(InputError, match="item 0: the id is"):
            build_index(minilm, [(invalid, "a text")])


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_columns_of_a_corpus_match_across_unicode_forms(minilm: pellucid.Model, tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(unicodedata.normalize(form, "numéro,prénom,ville\n7,Zoë,Köln\n"))
    for source in (path, list(csv.DictReader(path.read_text().splitlines()))):
        index = build_index(minilm, source, column="prénom", id_column=unicodedata.normalize("NFD", "numéro"))
        assert list(texts_by_id(index)) == ["7"] and len(index.search("Zoë")[0]["metadata"]) == 2


STRANGE = {
    "NUL": "before\0after",
    "half a pair": "half \ud83d of a smile",
    "joined emoji": "family 👨‍👩‍👧‍👦 here",
    "right-to-left override": "‮evil.exe",
    "marks": "e" + "\u0301" * 5_000,
    "private": "\ue000\uf8ff",
    "a special token": "[SEP] <s> <|im_end|>",
}


def test_unusual_texts_are_stored_and_found(minilm: pellucid.Model) -> None:
    index = build_index(minilm, [(name, text + f" word{i}") for i, (name, text) in enumerate(STRANGE.items())])
    stored = texts_by_id(index)
    for i, (name, text) in enumerate(STRANGE.items()):
        assert "".join(sorted(stored[name])) != "" and stored[name].startswith(text.replace("\ud83d", "�")[:20])
        assert index.search(f"word{i}", mode="words")[0]["id"] == name, name
        assert index.search(text + f" word{i}", k=1)[0]["id"] == name, name
    assert index.delete(["half a pair"], where=None) == 1


def test_metadata_is_stored_as_json_or_refused_by_name(minilm: pellucid.Model, tmp_path: Path) -> None:
    metadata = {
        "a": np.float32(1.5),
        "b": float("nan"),
        "c": date(2026, 1, 2),
        "d": tmp_path,
        "e": "\ud800",
        5: np.int64(3),
    }
    index = build_index(minilm, [{"text": "one", **metadata}, {"text": "two"}], column="text")  # type: ignore[dict-item]
    hit = index.search("one", k=1)[0]
    assert hit["metadata"] == {"a": 1.5, "b": None, "c": "2026-01-02", "d": str(tmp_path), "e": "�", "5": 3}
    assert json.loads(json.dumps(hit, allow_nan=False)) == hit
    for where in ({"a": 1.5}, "c = 2026-01-02", {"5": 3}):
        assert [one["text"] for one in index.search("one", where=where)] == ["one"]
    with pytest.raises(
        InputError, match="'x' of 'one' cannot be written as JSON: object is neither text nor number: leave"
    ):
        build_index(minilm, [{"text": "one", "y": 1.5, "x": object()}], column="text")
    for infinite in (math.inf, np.float32("-inf"), Decimal("Infinity"), [1.0, math.inf]):
        with pytest.raises(InputError, match=r"'x' of 'one' cannot be written as JSON: -?inf is not a JSON number"):
            build_index(minilm, [{"text": "one", "x": infinite}], column="text")
    deep: list[object] = []
    for _ in range(2_000):
        deep = [deep]
    rows = [{"text": "one", "x": object()}, {"text": "two"}, {"text": "x", "x": deep}]
    valid_rows = build_index(minilm, rows, column="text", skip_bad=True)
    assert [entry.text for one in valid_rows.segments for entry in one.entries.all()] == ["two"]


class NaTType:
    """Like pandas' `NaT`, which has an `isoformat`."""

    def isoformat(self) -> str:
        return "NaT"


class NAType:
    """Like pandas' `NA`."""


def test_missing_pandas_values_become_null_and_decimals_numbers(minilm: pellucid.Model) -> None:
    one = {"text": "one", "day": datetime(2026, 1, 2), "n": 7, "price": Decimal("1.50"), "who": UUID(int=5)}
    two = {"text": "two", "day": NaTType(), "n": NAType(), "price": Decimal("12345678901234567890.5"), "who": math.nan}
    index = build_index(minilm, [one, two], column="text")
    metadata = {hit["text"]: hit["metadata"] for hit in index.search("one")}
    assert metadata["one"] == {"day": "2026-01-02T00:00:00", "n": 7, "price": 1.5, "who": str(UUID(int=5))}
    assert metadata["two"] == {"day": None, "n": None, "price": "12345678901234567890.5", "who": None}
    assert [hit["text"] for hit in index.search("one", where={"day": {">": "2024-01-01"}})] == ["one"]
    for column in ("day", "n", "who"):
        with pytest.raises(InputError, match=f"item 1: its id, in the column '{column}', is empty"):
            build_index(minilm, [one, two], column="text", id_column=column)


class Frame:
    """Like pandas' data frame, with its index."""

    columns, index = ("text",), SimpleNamespace(names=["id", None])

    def to_dict(self, kind: str) -> list[dict[str, str]]:
        return [{"text": "one"}]

    def itertuples(self) -> None:
        raise AssertionError


def test_index_of_a_data_frame_is_not_read_and_a_frame_is_no_list(minilm: pellucid.Model) -> None:
    for column, id_column in (("id", None), ("text", "id")):
        with pytest.raises(InputError, match=r"'id' is the index of the data frame.*: give data.reset_index\(\)"):
            build_index(minilm, Frame(), column=column, id_column=id_column)
    index = build_index(minilm, Frame(), column="text")
    for queries, answers in ((Frame(), Frame()), (["one"], Frame())):
        with pytest.raises(InputError, match=r"(queries|answers) is Frame, expected a list: give one of its columns$"):
            index.evaluate(queries, answers)  # type: ignore[arg-type]


def test_whole_float_is_the_id_of_its_integer(minilm: pellucid.Model) -> None:
    rows = [{"id": id_, "text": f"text {id_}"} for id_ in (1.0, np.float32(2), 3.5, "4.0")]
    index = build_index(minilm, rows, column="text", id_column="id")
    assert set(texts_by_id(index)) == {"1", "2", "3.5", "4.0"}
    assert index.update([(1, "one"), (2.0, "two"), (4.0, "four")], progress=False) == 0
    assert texts_by_id(index) == {"1": "one", "2": "two", "3.5": "text 3.5", "4.0": "four"}
    assert index.update([(Decimal("2.0"), "again"), (Decimal("4.0"), "four")], progress=False) == 0
    assert texts_by_id(index) == {"1": "one", "2": "again", "3.5": "text 3.5", "4.0": "four"}
    assert index.delete([Decimal("1.0")]) == 1
    index.add([(Decimal("1E+0"), "one"), (Decimal("1E+999999999"), "far"), (Decimal("-Infinity"), "none")])
    assert {"1", "1E+999999999", "-Infinity"} <= set(texts_by_id(index))
    index.delete(["1E+999999999", Decimal("-Infinity")])
    for ids in ([1.0, np.float64(3.5)], [2], [4.0]):  # the last is the id as its file wrote it
        assert index.delete(ids) == len(ids)
    index.add([(4.0, "anew")], progress=False)
    assert texts_by_id(index) == {"4": "anew"}


def test_numpy_dates_are_stored_as_those_of_a_data_frame(minilm: pellucid.Model) -> None:
    days = np.array(["2026-01-02", "2026-01-02T03:04:05.000000006", "NaT"], "datetime64[ns]")
    rows = [{"text": "one", "day": days[0], "fine": days[1], "none": days[2], "all": days}]
    rows[0]["date"] = days[0].astype("datetime64[D]")
    index = build_index(minilm, rows, column="text")
    first, fine = "2026-01-02T00:00:00", "2026-01-02T03:04:05.000000006"
    metadata = {"day": first, "fine": fine, "none": None, "all": [first, fine, None], "date": "2026-01-02"}
    assert index.search("one", where={"day": days[0]})[0]["metadata"] == metadata
    assert index.search("one", where="day > 2026-01-01") and not index.search("one", where="day > 2026-01-03")
    for duration in (np.timedelta64(3, "ns"), np.array([3], "timedelta64[ns]")):
        with pytest.raises(InputError, match="is neither text nor number"):
            build_index(minilm, [{"text": "one", "how long": duration}], column="text")


def test_text_counts_as_a_number_only_if_all_of_it_is_one(minilm: pellucid.Model) -> None:
    codes = ("3M", "A1", "2026-01-02", "3", " 3.0 ", "1_000", "inf", "", 3, True, None)
    index = build_index(minilm, [{"text": f"row {i}", "code": code} for i, code in enumerate(codes)], column="text")
    for where, expected in {
        "code = 3": ["3", " 3.0 ", 3],
        "code = 0": [],
        "code = 2026": [],
        "code >= 3": ["3", " 3.0 ", 3],
        "code < 4": ["3", " 3.0 ", 3, True],
        "code = 3M": ["3M"],
        "code = 1000": [],
        "code = true": [True],
        "code = 2026-01-02": ["2026-01-02"],
    }.items():
        found = sorted((hit["metadata"]["code"] for hit in index.search("row", where=where, k=20)), key=str)
        assert found == sorted(expected, key=str), where
    assert len(index.search("row", where="code != 3", k=20)) == len(codes) - 4  # a missing value is unknown
    assert index.delete(where="code = 3") == 3 and len(index) == len(codes) - 3


def test_columns_of_any_name_can_be_searched_and_invalid_values_are_refused(minilm: pellucid.Model) -> None:
    names = ['a"b', "a.b", "$", "it's", "a\\b", "ü", "[0]", 'a\\"b']
    index = build_index(
        minilm, [{"text": f"row {i}", name: "v", "n": 10**30} for i, name in enumerate(names)], column="text"
    )
    for i, name in enumerate(names):
        assert [hit["text"] for hit in index.search("row", where={name: "v"})] == [f"row {i}"], name
    assert len(index.search("row", where={"n": 10**30}, k=20)) == len(names)
    assert index.search("row", where={"n": 10**400}) == []
    for value in (None, b"v", float("nan"), ["v", None], {"<": None}):
        with pytest.raises(InputError, match="where: n is compared with"):
            index.search("row", where={"n": value})
    with pytest.raises(InputError, match="where is int"):
        index.search("row", where=5)  # type: ignore[arg-type]


def test_invalid_text_is_reported_with_its_position(minilm: pellucid.Model) -> None:
    for source, fragment in [
        (["a", None], "item 1 is NoneType"),
        (["a", {"b": "c"}], "item 1 is a mapping: name the field"),
        ([5], "item 0 is int"),
        (b"bytes", "bytes was given"),
        (5, "int was given"),
        ([], "the corpus holds no texts"),
        (["x" * 10_000_001], "text 0 has 10,000,001 characters"),
    ]:
        with pytest.raises(InputError, match=fragment):
            build_index(minilm, source)

    for name in ("", "x" * 5_000, "a\0b", "~nobody-here/a.csv", "**a"):
        with pytest.raises(
            InputError, match=r"is neither a path nor a pattern|holds no files|there is no file|cannot read"
        ):
            build_index(minilm, name)

    def failing_rows() -> Iterator[str]:
        yield "a"
        raise ConnectionError("the line is cut")

    with pytest.raises(InputError, match="item 1 could not be read: the line is cut"):
        build_index(minilm, failing_rows())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Contents of real folders: empty, binary, huge and broken files, a pipe, and links."""
    root = tmp_path / "notes"
    (root / "deep").mkdir(parents=True)
    (root / "a.md").write_text("Tea needs hot water.")
    (root / "deep" / "b.md").write_text("Coffee needs beans.")
    (root / "empty.md").write_text("")
    (root / "picture.md").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (root / "huge.md").touch()
    os.truncate(root / "huge.md", 2 * 2**30)
    os.mkfifo(root / "pipe.md")
    (root / "deep" / "circle").symlink_to(root, target_is_directory=True)
    (root / "self.md").symlink_to(root / "self.md")
    (root / os.fsdecode(b"broken\xff.md")).write_text("A name that is no text.")
    return root


def test_folder_gives_its_texts_and_logs_skipped_files(
    minilm: pellucid.Model, run_command_line: RunCommandLine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for source in (folder, str(folder / "**" / "*.md")):
        caplog.clear()
        found = texts_by_id(build_index(minilm, source))
        assert sorted(found.values()) == ["A name that is no text.", "Coffee needs beans.", "Tea needs hot water."]
        for fragment in (
            "empty.md is empty",
            "picture.md looks like a PNG",
            "huge.md has 2,147,483,648",
            "pipe.md is no file",
        ):
            assert fragment in caplog.text
        assert "self.md: Too many levels" in caplog.text
    code, _ = run_command_line("index", "build", folder, "-o", folder.parent / "notes.index")
    assert code == 0
    with pytest.raises(InputError, match="holds no files"):
        build_index(minilm, str(folder / "*.txt"))
    with pytest.raises(InputError, match=r"there is no file .*pictur.md' \(did you mean picture.md\?\)"):
        build_index(minilm, folder / "pictur.md")
    with pytest.raises(InputError, match="is not a table, so it has no column"):
        build_index(minilm, folder / "a.md", column="text")


def test_hidden_files_are_read_only_if_named(minilm: pellucid.Model, tmp_path: Path) -> None:
    folder = tmp_path / ".notes"
    for name in ("a.md", ".a.md", ".git/HEAD"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"This is {name}.")
    for source in (folder, str(folder / "*"), str(folder / "**" / "*")):
        assert list(texts_by_id(build_index(minilm, source)).values()) == ["This is a.md."]
    for source, name in ((folder / ".a.md", ".a.md"), (str(folder / ".*" / "*"), ".git/HEAD")):
        assert list(texts_by_id(build_index(minilm, source)).values()) == [f"This is {name}."]


def test_index_among_the_files_is_skipped(
    minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("Tea needs hot water.")
    build_index(minilm, ["another"]).save(tmp_path / "deep" / "other.index")
    for source in (tmp_path, str(tmp_path / "**" / "*")):
        caplog.clear()
        output = tmp_path / f"{type(source).__name__}.index"
        assert list(texts_by_id(build_index(minilm, source, out=output)).values()) == ["Tea needs hot water."]
        for index in (output, tmp_path / "deep" / "other.index"):
            assert caplog.text.count(f"left out: {index} is an index") == 1
    with pytest.raises(InputError, match=r"holds no files \(left out: .*other.index is an index\)"):
        build_index(minilm, tmp_path / "deep" / "other.index")


def test_several_tables_are_numbered_consecutively(minilm: pellucid.Model, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(f"text\n{name} one\n{name} two\n")
    assert texts_by_id(build_index(minilm, [tmp_path / "a.csv", tmp_path / "b.csv"], column="text")) == {
        "1": "a one", "2": "a two", "3": "b one", "4": "b two",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"a.csv is a table: name the column with the texts \(column=NAME\)"):
        build_index(minilm, tmp_path)
    (tmp_path / "c.md").write_text("no table")
    for source in (tmp_path, tmp_path / "c.md"):
        with pytest.raises(InputError, match=r"c.md is not a table, so it has no column 'text'"):
            build_index(minilm, source, id_column="text")
    with pytest.raises(InputError, match=r"c.md is not a table"):
        build_index(minilm, [tmp_path / "a.csv", tmp_path / "c.md"], column="text")


@pytest.mark.parametrize("event", ["grows", "goes"])
def test_file_changed_while_read_is_refused(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("text\none\ntwo\n")
    prepare_vectors = pellucid.search.building.prepare_vectors

    def change_file(*arguments: object) -> object:
        if event == "goes":
            table.unlink(missing_ok=True)
        else:
            with table.open("a") as file:
                file.write("three\n")
        return prepare_vectors(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("pellucid.search.building.CHUNK_SIZE", 1)
    monkeypatch.setattr("pellucid.search.building.prepare_vectors", change_file)
    with pytest.raises(InputError, match="was changed while it was read"):
        build_index(minilm, table, column="text", out=tmp_path / "a.index")
    monkeypatch.undo()
    table.write_text("text\none\ntwo\nthree\n")
    assert len(build_index(minilm, table, column="text", out=tmp_path / "a.index")) > 2


def test_log_of_invalid_rows_is_limited(
    minilm: pellucid.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("id,text\n1,one\n" + "2\n" * 70)
    assert len(build_index(minilm, table, column="text", skip_bad=True)) == 1
    assert caplog.text.count("1 field, expected 2") == 50 and "left out: 20 more" in caplog.text


def test_deletion_without_ids_and_condition_is_refused(minilm: pellucid.Model) -> None:
    index = build_index(minilm, ["one", "two", "three", "four", "five", "six"])
    index.delete("1")
    for where in ({}, []):
        with pytest.raises(InputError, match="where holds no condition"):
            index.delete(where=where)
    for ids, fragment in ((5, "ids is 5"), (b"2", "ids is b.2."), (None, "say what to delete")):
        with pytest.raises(InputError, match=fragment):
            index.delete(ids)  # type: ignore[arg-type]
    assert index.delete([]) == 0 and len(index) == 5
    index.add([("half \ud800", "of a character")])
    assert index.delete("half \ud800") == 1


def test_unknown_reading_option_is_refused(minilm: pellucid.Model) -> None:
    index = build_index(minilm, ["one"])
    with pytest.raises(InputError, match=r"there is no option 'colum' of reading texts .did you mean column"):
        index.add(["two"], colum="x")
    with pytest.raises(InputError, match="passage_tokens is 0"):
        build_index(minilm, ["one"], passage_tokens=0)
    with pytest.raises(
        InputError, match=r"on_duplicate is 'keep_last' .*keep-last.*, expected one of error, keep-last"
    ):
        build_index(minilm, ["one"], on_duplicate="keep_last")


def test_automatic_ids_are_never_reused(minilm: pellucid.Model) -> None:
    index = build_index(minilm, [f"text {i}" for i in range(5)])
    index.delete(["2", "5"])
    index.compact()
    assert index.add(["another", "one more"]) == 2
    assert texts_by_id(index) == {"1": "text 0", "3": "text 2", "4": "text 3", "6": "another", "7": "one more"}


def test_text_without_id_gets_a_free_one(minilm: pellucid.Model) -> None:
    index = build_index(minilm, [("4", "a pear"), ("2", "an apple"), "a plum"])
    assert texts_by_id(index) == {"4": "a pear", "2": "an apple", "1": "a plum"}
    index.update(["a fig", "a quince"])
    assert texts_by_id(index) == {"4": "a pear", "2": "an apple", "1": "a plum", "5": "a fig", "6": "a quince"}
    index.delete(["5", "6"])
    assert index.add([("7", "a peach"), "a grape"]) == 2 and "8" in texts_by_id(index)
    index.delete("8")
    index.compact()
    assert index.add(["a lime"]) == 1 and texts_by_id(index)["9"] == "a lime"
    mixed = build_index(minilm, ["one", ("2", "two"), "three"], on_duplicate="keep-last")
    assert texts_by_id(mixed) == {"1": "one", "2": "two", "3": "three"}


def test_invalid_queries_are_refused_and_an_empty_index_finds_nothing(
    index: pellucid.Index, minilm: pellucid.Model
) -> None:
    assert index.search([]) == []
    for query, fragment in [
        (5, "neither: int"), (None, "neither"), (b"abc", "neither"), ("x" * 10_000_001, "10,000,001 characters"),
        (np.full(384, np.inf), "not finite"), (np.zeros((2, 2, 2)), "shape"), (["a", np.ones(9)], "query 1 is ndarray"),
    ]:  # fmt: skip
        with pytest.raises(InputError, match=fragment):
            index.search(query)  # type: ignore[arg-type]
    empty = build_index(minilm, ["one", "two"])
    empty.delete(["1", "2"])
    for mode in ("hybrid", "dense", "words"):
        assert empty.search("one", mode=mode) == []
        assert empty.search(["one", "two"], mode=mode, where={"a": "b"} if mode == "dense" else None) == [[], []]
    assert empty.info()["rows"] == 0
    assert empty.add(["three"]) == 1
    assert [hit["id"] for hit in empty.search("three")] == ["3"]


def test_exit_code_depends_on_the_kind_of_error(
    index: pellucid.Index, run_command_line: RunCommandLine, tmp_path: Path
) -> None:
    folder = index.save(tmp_path / "a.index")
    file = folder / "segments" / "000001" / "entries.sqlite"

    def add_without_disk_space() -> None:
        more = tmp_path / "more.csv"
        more.write_text("symbol,name\nA1,one more\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, resource.RLIM_INFINITY))
        code, error_output = run_command_line("index", "add", folder, more)
        assert code == 6 and error_output.count("\n") == 1, error_output

    assert exit_code_of(start_fork(add_without_disk_space)) == 0
    for arguments in (("search", folder, "Apple"), ("index", "info", folder), ("index", "delete", folder, "AAPL")):
        contents = file.read_bytes()
        file.write_bytes(contents[:-1])
        code, error_output = run_command_line(*arguments)
        assert (
            code == 5
            and "entries.sqlite was changed since it was written" in error_output
            and error_output.count("\n") == 1
        )
        file.write_bytes(contents)
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        assert run_command_line(*arguments)[0] == 4
        file.unlink()
        (tmp_path / "elsewhere").rename(file)
        assert (
            run_command_line(
                arguments[0], *(tmp_path / "none" if argument == folder else argument for argument in arguments[1:])
            )[0]
            == 3
        )
    assert run_command_line("search", folder, "Apple", "--model", tmp_path / "none")[0] == 3
    assert run_command_line("index", "delete", folder, "NOPE")[0] == 3
    assert run_command_line("index", "delete", folder, "AAPL")[0] == 0


@pytest.mark.slow
def test_text_of_ten_million_characters_is_split(tmp_path: Path) -> None:
    text = "word " * 1_999_998 + "needle"
    rows = PassageSplitter(lambda text, number: [(i, i + 1_000) for i in range(0, len(text), 1_000)])
    write_entries(rows.split(Corpus([text])), tmp_path / "entries.sqlite")
    entries = Entries(tmp_path / "entries.sqlite", 10_000)
    assert entries.rows_with_word("needle").tolist() == [9_999]
    assert "".join(entry.text for entry in entries.all()) == text


@pytest.mark.parametrize("encoding", [None, 3, "no-such", Path("utf-8")])
def test_invalid_encoding_is_refused_for_lists_of_texts_too(tiny: pellucid.Model, encoding: object) -> None:
    """It is stored with the index, and applies to files that are read later."""
    with pytest.raises(InputError, match=r"encoding is .*, expected utf-8"):
        pellucid.Index.build(tiny, ["a text"], encoding=encoding)
