"""Rows of data as what a language model learns to say: texts, answers to prompts, answers in conversations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.text import Encoded, Tokenizer
from pellucid.text.rows import is_missing
from pellucid.training.data import place, text_of, value_of

Span = tuple[int, int]
"""Characters of a text, from and to."""

COLUMNS = ("text", "prompt", "completion", "messages")

_MARK = "\ue000"
"""A character that nobody writes, put in place of an answer to see where a template puts it."""

TOGETHER = 512
"""Texts that are made into tokens in one call."""


class Line(NamedTuple):
    """One text as tokens.

    learned: whether each is to be said.  answers: whether that is some of them only; what stands before an answer
        belongs to it, so such a text is cut, not split.
    """

    ids: list[int]
    learned: list[bool]
    answers: bool = False


def end_token(loaded: Loaded) -> int | None:
    """The token that stands behind a text, as the tokenizer or the config name it; None where there is none."""
    reader = loaded.words
    if reader.eos_token_id is not None:
        return reader.eos_token_id
    return next((token for token in loaded.config.end_tokens if token in reader.special_ids), None)


def texts_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column `text` of every row; an empty line of a file is a line."""
    return [text_of(row, "text", is_missing) for row in rows]


def lines_of(loaded: Loaded, rows: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """Every row as one text, or of a conversation that the template tells otherwise each time, one for each answer."""
    reader, end = loaded.words, end_token(loaded)
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        kinds = list(map(_kind, part))
        plain = texts_of([row for row, kind in zip(part, kinds) if kind == "text"])
        read = iter(reader.encode(plain))
        for row, kind in zip(part, kinds):
            if kind == "messages":
                yield from _conversation(reader, row["messages"], place(row))
            elif kind == "prompt":
                prompt, completion = (text_of(row, name, is_missing) for name in ("prompt", "completion"))
                yield _answer(reader, prompt, completion, end)
            else:
                ids = _ended(next(read).ids, end)
                yield Line(ids, [True] * len(ids))


def _kind(row: Mapping[str, Any]) -> str:
    """What a row holds: "messages", a "prompt" or a "text"."""
    held = [name for name in COLUMNS if not is_missing(row.get(name))]
    if not held:
        value_of(row, next((name for name in COLUMNS if name in row), "text"), is_missing)  # which says so
    return "messages" if "messages" in held else "text" if held == ["text"] else "prompt"


def _ended(ids: list[int], end: int | None) -> list[int]:
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _answer(reader: Tokenizer, prompt: str, completion: str, end: int | None) -> Line:
    """Both as one text, as the model is to write it; tokens that hold a character of the completion are learned."""
    (read,) = reader.encode([prompt + completion])
    learned = _within(read, [(len(prompt), len(prompt) + len(completion))])
    for i, special in enumerate(read.special):  # what the tokenizer puts behind a text ends the answer
        learned[i] = learned[i] or bool(special and i and learned[i - 1])
    ids = _ended(read.ids, end)
    return Line(ids, learned + [True] * (len(ids) - len(learned)), answers=True)


def _conversation(reader: Tokenizer, messages: Any, where: str) -> Iterator[Line]:
    many = len(messages) if isinstance(messages, Sequence) else 0
    whole, apart, spans = _told(reader, messages, many, where), [], []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        so_far = _told(reader, messages, i + 1, where)
        span = _begin(reader, messages, i, so_far, where), len(so_far)
        if whole.startswith(so_far):
            spans.append(span)
        else:
            apart.append((so_far, [span]))
    if not spans and not apart:
        raise InputError(f"{where}: its messages hold no answer, expected one of the role 'assistant'")
    for text, asked in [*apart, *([(whole, spans)] if spans else [])]:
        (read,) = reader.encode([text], add_special_tokens=False, parse_special_tokens=True)
        yield Line(read.ids, _within(read, asked), answers=True)


def _told(reader: Tokenizer, messages: Any, many: int, where: str, asks: bool = False) -> str:
    """The first messages in the words of the template.  asks: an answer is to follow."""
    said = messages[:many] if isinstance(messages, Sequence) else messages
    try:
        return str(reader.apply_chat_template(said, add_generation_prompt=asks))
    except InputError as error:
        raise InputError(f"{where}: ", error) from error


def _begin(reader: Tokenizer, messages: Any, number: int, so_far: str, where: str) -> int:
    """Where an answer begins in the conversation that it ends: behind what the model reads when it is asked for it."""
    before = _told(reader, messages, number, where, asks=True) if number else None
    if before is not None and so_far.startswith(before):
        return len(before)
    said, place = messages[number].get("content"), -1
    if isinstance(said, str) and said.strip():
        marked = _told(reader, [*messages[:number], {**messages[number], "content": _MARK}], number + 1, where)
        place = marked.find(_MARK)
        if place < 0 or not so_far.startswith(marked[:place]):  # what the template does depends on the answer
            place = so_far.rfind(said.strip())
    if place < 0:
        raise InputError(f"{where}: the chat template hides where answer {number} begins, so it cannot be learned")
    return place


def _within(read: Encoded, spans: Sequence[Span]) -> list[bool]:
    """Which tokens hold a character of the spans."""
    return [any(start < last and end > first for first, last in spans) for start, end in read.offsets]
