"""Readers of task-specific formats: CoNLL's, with a word and its tag on each line, and SQuAD's."""

import json
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pellucid.errors import InputError, format_count
from pellucid.files import unique_keys
from pellucid.text.lines import lines
from pellucid.text.rows import COLUMN_SUFFIXES

log = logging.getLogger("pellucid")

TAGGED = (".conll", ".conll2002", ".conll2003", ".iob", ".iob2", ".bio")
"""Suffixes of files of words and tags."""

DOCUMENT_START = "-DOCSTART-"
"""A document starts at a line with this in place of a word."""

COMMENT = "#"
"""In place of a sentence's first word it may start a comment line, as in MultiCoNER and Universal Dependencies."""


class Line(NamedTuple):
    """A line of a file.  number: counted from 1.  fields: its columns."""

    number: int
    fields: list[str]


def read_known_format(
    path: Path, columns: Collection[str] = (), encoding: str = "utf-8"
) -> list[dict[str, Any]] | None:
    """The rows of a file in one of these formats; None for all others, which are tables or lines.

    columns: the columns that are needed. With "tags" among them, a file of unknown suffix is read as CoNLL's, such as
        `esp.train`; with "context", JSON that is not a list is read as SQuAD's.
    """
    suffix = path.suffix.lower()
    if suffix in TAGGED or ("tags" in columns and suffix not in (*COLUMN_SUFFIXES, ".json")):
        return read_conll(path, encoding)
    if suffix == ".json" and "context" in columns and not _is_list(path, encoding):
        return read_squad(path, encoding)
    return None


def read_conll(path: Path, encoding: str = "utf-8") -> list[dict[str, Any]]:
    """The sentences of a file of words, as rows of "tokens" and "tags" (Tjong Kim Sang, 2002, CoNLL's shared task).

    # id 7              a comment before a sentence, skipped; a word where its last column is a tag of other words
    Sao NC B-LOC        a word, other columns, its tag; separated by spaces or tabs
    Paulo VMI I-LOC
                        an empty line ends a sentence
    """
    read = list(_sentences(path, encoding))
    left_out = _comments(read)
    if left_out:
        many, number = format_count(len(left_out), "line"), min(left_out)
        log.warning("%s: %s left out as comments, # in place of a word (the first: line %d)", path, many, number)
    sentences = [[one for one in sentence if one.number not in left_out] for sentence in read]
    words = [sentence for sentence in sentences if sentence]
    if not words:
        raise InputError(f"{path} holds no sentences: expected lines of a word and its tag")
    _check_lines(path, words)
    return [
        {"tokens": [one.fields[0] for one in sentence], "tags": [one.fields[-1] for one in sentence]}
        for sentence in words
    ]


def _sentences(path: Path, encoding: str) -> Iterator[list[Line]]:
    sentence = list[Line]()
    for number, line in enumerate(lines(path, encoding), 1):
        fields = [field for field in re.split(r"[ \t]+", line.strip(" \t\r\n")) if field]
        if fields and fields[0] != DOCUMENT_START:
            sentence.append(Line(number, fields))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _comments(sentences: Sequence[Sequence[Line]]) -> set[int]:
    """The numbers of comment lines: before a sentence's first word, with another number of columns or no word's tag."""
    candidates, words = list[Line](), list[Line]()
    for sentence in sentences:
        first = next((i for i, one in enumerate(sentence) if one.fields[0] != COMMENT), len(sentence))
        candidates += sentence[:first]
        words += sentence[first:]
    tags, width = {one.fields[-1] for one in words}, len(words[0].fields) if words else 0
    return {one.number for one in candidates if len(one.fields) != width or one.fields[-1] not in tags}


def _check_lines(path: Path, sentences: Sequence[Sequence[Line]]) -> None:
    """Raises InputError for lines with another number of columns than the first, and for a first column of counts."""
    width = len(sentences[0][0].fields)
    for one in (one for sentence in sentences for one in sentence):
        if len(one.fields) < 2 or len(one.fields) != width:
            expected = f"{width}, as in the lines before" if width > 1 else "a word and its tag"
            raise InputError(
                f"{path}, line {one.number}: {format_count(len(one.fields), 'column')}, expected {expected}"
            )
    begin = {sentence[0].fields[0] for sentence in sentences}
    second = {sentence[1].fields[0] for sentence in sentences if len(sentence) > 1}
    if width > 2 and (begin, second) in (({"0"}, {"1"}), ({"1"}, {"2"})):
        location = f"{path}, line {sentences[0][0].number}"
        raise InputError(f"{location}: the first column counts the words, and the words are expected there: remove it")


def read_squad(path: Path, encoding: str = "utf-8") -> list[dict[str, Any]]:
    """The questions of a file in SQuAD's format, as rows of "question", "context", "answers" and "id".

    (Rajpurkar et al., 2016, arXiv:1606.05250; 2018, arXiv:1806.03822, for questions without an answer.)
    answers: `{"text": [...], "answer_start": [...]}`, characters of the context; both empty where there is none.
    """
    rows = []
    for a, article in enumerate(_list(path, _json(path, encoding), "data", "")):
        for p, paragraph in enumerate(_list(path, article, "paragraphs", f"data[{a}].")):
            location = f"data[{a}].paragraphs[{p}]."
            context = _member(path, paragraph, "context", str, location)
            for q, entry in enumerate(_list(path, paragraph, "qas", location)):
                rows.append(_question(path, entry, context, f"{location}qas[{q}]."))
    if not rows:
        raise InputError(f"{path} holds no questions")
    return rows


def _question(path: Path, entry: Any, context: str, location: str) -> dict[str, Any]:
    is_impossible = entry.get("is_impossible") is not None and _member(path, entry, "is_impossible", bool, location)
    answers = [] if is_impossible else _list(path, entry, "answers", location)
    texts = [_member(path, one, "text", str, f"{location}answers[{i}].") for i, one in enumerate(answers)]
    starts = [_member(path, one, "answer_start", int, f"{location}answers[{i}].") for i, one in enumerate(answers)]
    row = {"question": _member(path, entry, "question", str, location), "context": context}
    return row | {"answers": {"text": texts, "answer_start": starts}, "id": str(entry.get("id", location[:-1]))}


def _json(path: Path, encoding: str) -> Any:
    content = "".join(lines(path, encoding))
    try:
        return json.loads(content, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error


def _is_list(path: Path, encoding: str) -> bool:
    first = next((line.strip() for line in lines(path, encoding) if line.strip()), "")
    return first.startswith("[")


def _list(path: Path, holder: Any, name: str, location: str) -> list[Any]:
    found = _member(path, holder, name, list, location)
    for i, one in enumerate(found):
        if not isinstance(one, dict):
            raise InputError(
                f"{path}: {location}{name}[{i}] is {type(one).__name__}, expected an object, as SQuAD has it"
            )
    return found


def _member(path: Path, holder: Any, name: str, kind: type, location: str) -> Any:
    value = holder.get(name) if isinstance(holder, dict) else None
    if type(value) is not kind:
        names = {str: "a text", int: "a whole number", list: "a list", bool: "true or false"}
        raise InputError(f"{path}: {location}{name} is {type(value).__name__}, expected {names[kind]}, as SQuAD has it")
    return value
