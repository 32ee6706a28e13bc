"""Texts from files: read exactly, or refused with the number of the line."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pellucid.errors import InputError, NotFoundError
from pellucid.text.character_encodings import encodings_of
from pellucid.text.lines import MAGIC, lines
from pellucid.text.rows import MAX_FIELD_CHARACTERS, PLAIN_COLUMN, Row, check_column, read_rows


def write_file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read_texts(path: Path, column: str | None = None, *, encoding: str = "utf-8") -> Iterator[str]:
    """A column of a table, or the lines of any other file, as the command line reads them."""
    check_column(path, column)
    return read_rows(path, encoding=encoding).column(column or PLAIN_COLUMN)


VALID_FILES = {
    "plain.csv": ("id,text\n1,hello\n2,NA\n", ["hello", "NA"]),
    "semicolon.csv": ("id;text\n1;a, b\n", ["a, b"]),
    "quoted.csv": ('id,text\n1,"two\nlines, ""quoted"""\n', ['two\nlines, "quoted"']),
    "bom.csv": ("\ufefftext,id\nä,1\n", ["ä"]),
    "windows.csv": ("text,id\r\na,1\r\n", ["a"]),
    "tab.tsv": ("id\ttext\n1\tnull\n", ["null"]),
    "old-mac.csv": ("id,text\r1,a\r2,b\r", ["a", "b"]),
    "bars.csv": ("id|text\n1|a,b;c\n", ["a,b;c"]),
    "tabs.csv": ("id\ttext\n1\ta\n", ["a"]),
    "names.csv": ('"a, b and c";text\n1;x\n', ["x"]),
    "late.csv": ("\n\nid;text\n1;a\n", ["a"]),
    "one.csv": ("text\nhello\n\n\nthere\n", ["hello", "there"]),
    "words.csv": ('id,text\n1,NA\n2,null\n3,nan\n4,""\n5,=cmd|x\n', ["NA", "null", "nan", "", "=cmd|x"]),
    "twice.csv": ("id,text\n1,a\n1,a\n", ["a", "a"]),
    "strange.csv": (
        "id,text\n1,\u202eא\U0001f469\u200d\U0001f680\ue000\n",
        ["\u202eא\U0001f469\u200d\U0001f680\ue000"],
    ),
    "bom.jsonl": ('\ufeff{"text": "a"}\r\n', ["a"]),
    "half.jsonl": ('{"text": "\\ud800"}\n', ["\ud800"]),
    "rows.jsonl": ('{"text": "a"}\n\n{"text": "b", "id": 2}\n', ["a", "b"]),
}


@pytest.mark.parametrize("name", VALID_FILES)
def test_column_is_read_exactly(tmp_path: Path, name: str) -> None:
    content, expected = VALID_FILES[name]
    assert list(read_texts(write_file(tmp_path, name, content), "text")) == expected


def test_lines_of_a_text_file(tmp_path: Path) -> None:
    assert list(read_texts(write_file(tmp_path, "a.txt", "one\ntwo\r\n\nfour"))) == ["one", "two", "", "four"]


ERRORS = {
    "empty.csv": (b"", "text", "is empty"),
    "blank.csv": (b"\n\r\n\n", "text", "is empty"),
    "header.csv": (b"id,text\n", "text", "holds no rows"),
    "nothing.jsonl": (b"\n\n", "text", "holds no rows"),
    "nothing.txt": (b"", None, "holds no rows"),
    "case.csv": (b"id,TEXT\n1,a\n", "text", "did you mean TEXT"),
    "double.csv": (b"text,text\n1,a\n", "text", "more than one column 'text'"),
    "quote.csv": (b'id,text\n1,a\n2,"a\n3,b\n4,c\n', "text", "line 3: a quote is never closed"),
    "letters.tsv": (
        b'text\tlabel\n"a\tx\nb\ty\nc"\tx\nd\ty\n',
        "text",
        "lines 2 to 4 are one row, for a quote opens in",
    ),
    "after.csv": (b'id,text\n1,"a"b\n', "text", "line 2:"),
    "late.csv": (
        b"id,text\n" + b"1,a\n" * 5000 + b"2,\xe4\n",
        "text",
        r"line 5002, byte 0xe4\): try encoding='latin-1'",
    ),
    "windows.txt": (b"a\r\nb \x93c\x94\r\n", None, r"line 2, byte 0x93\): try encoding='cp1252'"),
    "mac.txt": (b"a\rb\r\xe4\r", None, r"line 3, byte 0xe4\)"),
    "twice.jsonl": (b'{"text": "a", "text": "b"}\n', "text", "line 1: not JSON: 'text' appears twice"),
    "list.jsonl": (b"[1]\n", "text", "line 1: list, expected an object"),
    "null.jsonl": (b'{"text": null}\n', "text", "line 1: 'text' is NoneType"),
    "deep.jsonl": (
        b"[" * 100_000 + b"\n",
        "text",
        "line 1: lists or objects nested too deeply: write them as a string",
    ),
    "digits.jsonl": (
        b'{"text": ' + b"9" * 6_000 + b"}\n",
        "text",
        "line 1: a number of more than 4,300 digits: write it",
    ),
    "joined.csv": (b"id,text\n1,a\nid,text\n2,b\n", "text", "line 3: the names of the columns are repeated here"),
    "ragged.csv": (b"id,text\n1,a\n2\n", "text", "line 3: 1 field, expected 2"),
    "unclosed.csv": (b'id,text\n1,"a\n', "text", "line"),
    "lacking.csv": (b"id,texts\n1,a\n", "text", "did you mean texts"),
    "latin.csv": ("id,text\n1,ä\n".encode("latin-1"), "text", "not UTF-8"),
    "wide.csv": ("id,text\n1,a\n".encode("utf-16"), "text", "not UTF-8"),
    "packed.csv": (b"\x1f\x8b\x08\x00" + b"0" * 9, "text", "looks like gzip"),
    "nul.txt": (b"a\0b\n", None, "NUL in line 1"),
    "bad.jsonl": (b'{"text": "a"}\n{"text": \n', "text", r"line 2: not JSON: Expecting value \(character 10\)"),
    "number.jsonl": (b'{"text": 5}\n', "text", "line 1: 'text' is int"),
    "lacks.jsonl": (b'{"txt": "a"}\n', "text", "did you mean txt"),
    "none.csv": (b"a,b\n", None, "column=NAME"),
    "column.txt": (b"a\n", "text", "not a table"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_file_and_line(tmp_path: Path, name: str) -> None:
    content, column, fragment = ERRORS[name]
    path = write_file(tmp_path, name, content)
    with pytest.raises(InputError, match=fragment) as caught:
        list(read_texts(path, column))
    assert name in str(caught.value)


SENTENCES_BY_ENCODING = {
    "shift_jis": "東京タワー,カフェ・ド・パリ",
    "euc_jp": "東京タワー,カフェ・ド・パリ",
    "gb18030": "我们在北京生产汽车和手机",
    "big5": "我們在臺北生產汽車和手機",
    "euc_kr": "서울은 대한민국의 수도이다",
    "cp1251": "Москва столица России",
    "koi8_r": "Москва столица России",
    "cp1253": "Καλημέρα κόσμε, η Αθήνα είναι η πρωτεύουσα",
    "cp866": "Москва столица России",
    "cp1255": "ירושלים היא בירת ישראל",
    "cp1256": "القاهرة هي عاصمة مصر",
    "cp874": "กรุงเทพมหานครเป็นเมืองหลวง",
    "utf-16-le": "東京は、世界一",
    "utf-16-be": "東京は、世界一",
    "cp1252": "Müller fährt nach „Köln“",
    "latin-1": "Müller fährt nach Köln",
}


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_column_names_match_in_any_unicode_form(tmp_path: Path, name: str) -> None:
    decomposed = "pre\u0301nom"
    path = write_file(
        tmp_path, name, f"id,{decomposed}\n1,Zoë\n" if name == "a.csv" else f'{{"{decomposed}": "Zoë"}}\n'
    )
    assert list(read_texts(path, "prénom")) == list(read_texts(path, decomposed)) == ["Zoë"]


@pytest.mark.parametrize(("name", "text"), [*SENTENCES_BY_ENCODING.items(), ("shift_jis", "ｺﾝﾆﾁﾊ ｾｶｲ")])
def test_encoding_is_guessed_from_plausible_text(tmp_path: Path, name: str, text: str) -> None:
    path = write_file(tmp_path, "a.txt", f"ok\n{text}\n".encode(name))
    with pytest.raises(InputError, match="not UTF-8 text") as caught:
        list(read_texts(path, None))
    guesses = re.findall("encoding='(.*?)'", str(caught.value))
    assert name == guesses[0] and (name in ("cp1252", "latin-1") or not {"cp1252", "latin-1"} & set(guesses))
    assert list(read_texts(path, None, encoding=name)) == ["ok", text]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("latin-1", text) for text in ("Tänään on sää", "créée agréée", "Grüße aus Köln, ÄÖÜ", "più è già", "það")),
        *(("cp1250", text) for text in ("Zażółć gęślą jaźń", "Všichni lidé rodí se", "születik és egyenlő")),
        *(("cp1254", "haklar bakımından eşit doğarlar"), ("gb18030", "iPhone手机套 16GB"), ("cp1253", "ΕΛΛΑΔΑ")),
        *(("cp1257", text) for text in ("Šiandien žmonės ėjo į mišką", "Rīgā šodien laikapstākļi")),
        *((name, "ВСЕОБЩАЯ ДЕКЛАРАЦИЯ ПРАВ") for name in ("cp1251", "koi8_r")),
    ],
)
def test_plausible_encodings_are_all_suggested(name: str, text: str) -> None:
    assert name in encodings_of(f"id,text\n1,{text}\n".encode(name))


@pytest.mark.parametrize("before", ["Zürich, größer\n".encode(), b"a\0bc\n"])
def test_no_encoding_is_guessed_for_damaged_utf8_and_binary_data(tmp_path: Path, before: bytes) -> None:
    path = write_file(tmp_path, "a.csv", before + b"caf\xe9\n")
    with pytest.raises(InputError, match=r"line 2, byte 0xe9\): correct it there, or try another encoding$"):
        list(lines(path))


@pytest.mark.parametrize("magic", MAGIC)
def test_other_file_formats_are_recognized_by_magic_bytes(tmp_path: Path, magic: bytes) -> None:
    for name, column in (("a.csv", "text"), ("a.txt", None)):
        with pytest.raises(InputError, match="looks like"):
            list(read_texts(write_file(tmp_path, name, magic + b"\0" * 20), column))


@pytest.mark.parametrize("text", ["SQLite is small", "SQLite format 3 is a file", "GGUF holds tables", "GGUF"])
def test_text_may_begin_with_the_name_of_a_format(tmp_path: Path, text: str) -> None:
    assert list(lines(write_file(tmp_path, "a.md", text.encode()))) == [text]


def test_encoding_argument_is_used(tmp_path: Path) -> None:
    text = "id,text\n1,naïve “ä”\n"
    for name in ("cp1252", "utf-16", "utf-16-le", "utf-8", "utf-8-sig"):
        path = write_file(tmp_path, "a.csv", text.encode(name))
        assert list(read_texts(path, "text", encoding=name)) == ["naïve “ä”"]
    with pytest.raises(InputError, match=r"'latin-x' \(did you mean latin-1.*expected utf-8"):
        list(read_texts(path, "text", encoding="latin-x"))
    for name in ("base64", "idna"):  # no encodings of files
        with pytest.raises(InputError, match=f"encoding is '{name}'"):
            list(read_texts(path, "text", encoding=name))
    with pytest.raises(InputError, match=r"is not shift_jis text \(byte 0xef\): try another encoding$"):
        list(read_texts(write_file(tmp_path, "b.txt", b"\xef\xff"), encoding="shift_jis"))


def test_missing_byte_order_mark_is_reported_with_advice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is not utf-16 text(: .*;| \(byte 0x61\):) try another encoding$"):
        list(read_texts(write_file(tmp_path, "a.txt", "abcd\n"), encoding="utf-16"))


@pytest.mark.parametrize("name", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "gb18030"])
def test_byte_order_mark_is_removed_in_any_encoding(tmp_path: Path, name: str) -> None:
    """Python's codecs keep it where their name states the byte order."""
    for file, text in (("a.csv", "text\nä\n"), ("a.jsonl", '{"text": "ä"}'), ("a.txt", "ä")):
        path = write_file(tmp_path, file, f"\ufeff{text}".encode(name))
        assert list(read_texts(path, None if file == "a.txt" else "text", encoding=name)) == ["ä"]
    with pytest.raises(InputError, match="holds no rows"):
        list(read_texts(write_file(tmp_path, "a.txt", "\ufeff".encode(name)), None, encoding=name))


def test_rows_have_their_line_numbers(tmp_path: Path) -> None:
    table = read_rows(write_file(tmp_path, "a.csv", 'id;text\n1;"two\nlines"\n\n2;b\n'))
    assert (table.columns, table.delimiter) == (("id", "text"), ";")
    expected = [Row(2, {"id": "1", "text": "two\nlines"}), Row(5, {"id": "2", "text": "b"})]
    assert list(table) == expected and list(table) == expected, "it may be read again"
    for _ in range(2):
        assert list(table.texts("text", "id")) == [("two\nlines", "1"), ("b", "2")]
        assert list(table.text_lines) == [2, 5]
    tabs = read_rows(write_file(tmp_path, "a.tsv", "a,b,c\ttext\n1,2\tb\n"))
    assert tabs.columns == ("a,b,c", "text")
    objects = read_rows(write_file(tmp_path, "a.jsonl", '{"id": 1, "text": "a"}\n\n{"text": "b", "tags": ["x"]}\n'))
    assert list(objects) == [Row(1, {"id": 1, "text": "a"}), Row(3, {"text": "b", "tags": ["x"]})]
    plain = read_rows(write_file(tmp_path, "a.log", "a\n\nb"))
    assert list(plain) == [Row(1, {"text": "a"}), Row(2, {"text": ""}), Row(3, {"text": "b"})]


def test_invalid_rows_are_skipped_on_request(tmp_path: Path) -> None:
    table = read_rows(write_file(tmp_path, "a.csv", "id,text\n1,a\n2\n3,c\n4,d,e\n"), skip_bad=True)
    assert list(table.column("text")) == ["a", "c"]
    assert table.skipped == ["line 3: 1 field, expected 2", "line 5: 3 fields, expected 2"]
    objects = read_rows(write_file(tmp_path, "a.jsonl", '{"text": "a"}\n{\n5\n'), skip_bad=True)
    assert list(objects.column("text")) == ["a"]
    assert [fault.partition(":")[0] for fault in objects.skipped] == ["line 2", "line 3"]
    content = '{"text": "a"}\n{"txt": "b"}\n{"text": 5, "more": "c"}\n{"text": "d", "more": null}\n'
    objects = read_rows(write_file(tmp_path, "a.jsonl", content), skip_bad=True)
    assert list(objects.column("text")) == ["a", "d"]
    assert objects.skipped == ["line 2: no 'text' (did you mean txt?)", "line 3: 'text' is int, expected a string"]
    with pytest.raises(InputError, match=r"no rows that fit \(line 1: no 'more', line 2: no 'more' and 2 more\)"):
        objects.texts("more", "text")


def test_length_of_fields_is_limited(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a.csv", b"id,text\n1," + b"a" * MAX_FIELD_CHARACTERS + b"\n2,b\n")
    assert [len(text) for text in read_texts(path, "text")] == [MAX_FIELD_CHARACTERS, 1]
    path = write_file(tmp_path, "a.csv", b"id,text\n0,a\n1," + b"a" * (MAX_FIELD_CHARACTERS + 1) + b"\n")
    with pytest.raises(InputError, match="line 3: a field of more than 16 MiB"):
        list(read_texts(path, "text"))


def test_larger_field_limit_of_the_process_is_preserved(tmp_path: Path) -> None:
    before = csv.field_size_limit(2 * MAX_FIELD_CHARACTERS)
    try:
        assert list(read_texts(write_file(tmp_path, "a.csv", "text\nhello\n"), "text")) == ["hello"]
        assert csv.field_size_limit() == 2 * MAX_FIELD_CHARACTERS
    finally:
        csv.field_size_limit(before)


def test_length_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.text.lines.MAX_LINE_CHARACTERS", 1000)
    with pytest.raises(InputError, match="line 2: longer than 1,000 characters"):
        list(read_texts(write_file(tmp_path, "a.txt", "a\n" + "b" * 1001 + "\n")))
    assert list(read_texts(write_file(tmp_path, "a.txt", "b" * 999 + "\n"))) == ["b" * 999]


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        list(read_texts(tmp_path / "a.txt"))
    with pytest.raises(InputError, match="cannot read"):
        list(read_texts(tmp_path))


def test_long_file_is_read_lazily(tmp_path: Path) -> None:
    """Later lines are not examined before they are requested."""
    path = write_file(tmp_path, "a.csv", "id,text\n" + "1,a\n" * 200_000 + "2\n")
    texts = read_texts(path, "text")
    assert [next(texts) for _ in range(1000)] == ["a"] * 1000
    with pytest.raises(InputError, match="line 200002"):
        list(texts)
