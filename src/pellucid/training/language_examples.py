"""Rows of data as tokens and targets of a language model: texts, completions of prompts, answers in conversations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.text import Encoded, Tokenizer
from pellucid.text.rows import is_missing
from pellucid.training.data import row_location, text_of, value_of

Span = tuple[int, int]
"""Characters of a text: start, and end (exclusive)."""

COLUMNS = ("text", "prompt", "completion", "messages")

_PLACEHOLDER = "\ue000"
"""A private-use character put in place of an answer, to find where a chat template puts it."""

BATCH_SIZE = 512
"""Texts that are tokenized in one call."""


class TokenizedText(NamedTuple):
    """One text as token ids.

    is_target: for each token whether it is to be predicted.  answers_only: whether only those of answers are; an answer
        depends on the text before it, so such a text is truncated, not split.
    """

    ids: list[int]
    is_target: list[bool]
    answers_only: bool = False


def end_token(loaded: Loaded) -> int | None:
    """The id of the token that ends a text, from the tokenizer, else from the config; None where there is none."""
    tokenizer = loaded.required_tokenizer
    if tokenizer.eos_token_id is not None:
        return tokenizer.eos_token_id
    return next((token for token in loaded.config.end_tokens if token in tokenizer.special_ids), None)


def texts_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The column `text` of every row; empty texts are kept."""
    return [text_of(row, "text", is_missing) for row in rows]


def tokenized_texts(loaded: Loaded, rows: Sequence[Mapping[str, Any]]) -> Iterator[TokenizedText]:
    """Tokenizes every row as one text, and as further ones answers whose rendering depends on later messages."""
    tokenizer, end = loaded.required_tokenizer, end_token(loaded)
    for start in range(0, len(rows), BATCH_SIZE):
        part = rows[start : start + BATCH_SIZE]
        kinds = list(map(_kind, part))
        plain = texts_of([row for row, kind in zip(part, kinds) if kind == "text"])
        read = iter(tokenizer.encode(plain))
        for row, kind in zip(part, kinds):
            if kind == "messages":
                yield from _conversation(tokenizer, row["messages"], row_location(row))
            elif kind == "prompt":
                prompt, completion = (text_of(row, name, is_missing) for name in ("prompt", "completion"))
                yield _prompt_and_completion(tokenizer, prompt, completion, end)
            else:
                ids = _with_end_token(next(read).ids, end)
                yield TokenizedText(ids, [True] * len(ids))


def _kind(row: Mapping[str, Any]) -> str:
    """What a row holds: "messages", a "prompt" or a "text"."""
    present = [name for name in COLUMNS if not is_missing(row.get(name))]
    if not present:
        value_of(row, next((name for name in COLUMNS if name in row), "text"), is_missing)  # raises
    return "messages" if "messages" in present else "text" if present == ["text"] else "prompt"


def _with_end_token(ids: list[int], end: int | None) -> list[int]:
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _prompt_and_completion(tokenizer: Tokenizer, prompt: str, completion: str, end: int | None) -> TokenizedText:
    """Both as one text; tokens that hold a character of the completion, and the end token, are targets."""
    (read,) = tokenizer.encode([prompt + completion])
    is_target = _tokens_within(read, [(len(prompt), len(prompt) + len(completion))])
    for i, special in enumerate(read.special):  # the tokenizer's own end token is a target too
        is_target[i] = is_target[i] or bool(special and i and is_target[i - 1])
    ids = _with_end_token(read.ids, end)
    return TokenizedText(ids, is_target + [True] * (len(ids) - len(is_target)), answers_only=True)


def _conversation(tokenizer: Tokenizer, messages: Any, location: str) -> Iterator[TokenizedText]:
    full_text, separate_texts, spans = _render_chat(tokenizer, messages, location), [], []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        so_far = _render_chat(tokenizer, messages[: i + 1], location)
        span = _answer_start(tokenizer, messages, i, so_far, location), len(so_far)
        if full_text.startswith(so_far):
            spans.append(span)
        else:
            separate_texts.append((so_far, [span]))
    if not spans and not separate_texts:
        raise InputError(f"{location}: its messages hold no answer, expected one of the role 'assistant'")
    for text, answer_spans in [*separate_texts, *([(full_text, spans)] if spans else [])]:
        (read,) = tokenizer.encode([text], add_special_tokens=False, parse_special_tokens=True)
        yield TokenizedText(read.ids, _tokens_within(read, answer_spans), answers_only=True)


def _render_chat(tokenizer: Tokenizer, messages: Any, location: str, add_generation_prompt: bool = False) -> str:
    """The messages, rendered.  add_generation_prompt: whether to end with an answer's start."""
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt))
    except InputError as error:
        raise InputError(f"{location}: ", error) from error


def _answer_start(tokenizer: Tokenizer, messages: Any, number: int, so_far: str, location: str) -> int:
    """The first character of the answer that ends a conversation: after its generation prompt, or of its content."""
    before = _render_chat(tokenizer, messages[:number], location, add_generation_prompt=True) if number else None
    if before is not None and so_far.startswith(before):
        return len(before)
    answer, start = messages[number].get("content"), -1
    if isinstance(answer, str) and answer.strip():
        marked = _render_chat(tokenizer, [*messages[:number], {**messages[number], "content": _PLACEHOLDER}], location)
        start = marked.find(_PLACEHOLDER)
        if start < 0 or not so_far.startswith(marked[:start]):  # the template depends on the answer
            start = so_far.rfind(answer.strip())
    if start < 0:
        raise InputError(
            f"{location}: the chat template does not show where answer {number} begins, so it cannot be trained on"
        )
    return start


def _tokens_within(read: Encoded, spans: Sequence[Span]) -> list[bool]:
    """For each token whether it holds a character of the spans."""
    return [any(start < last and end > first for first, last in spans) for start, end in read.offsets]
