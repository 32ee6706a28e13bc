"""How the reference's tokenizers encode texts: the arguments of a call, and the batch made from them."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pellucid.compat.arguments import UnsupportedArguments, without_unsupported
from pellucid.compat.batch import (
    COLUMN_OPTIONS,
    BatchEncoding,
    Features,
    build_batch,
    build_columns,
    is_word_list,
    overflow_windows,
    pad_columns,
    texts_and_pairs,
)
from pellucid.config.checks import check_bool, check_count, check_one_of, store_plain_numbers
from pellucid.errors import InputError, format_count
from pellucid.text import Tokenizer
from pellucid.text.batch import PADDINGS, text_list
from pellucid.text.truncation import truncate_pair

_UNSUPPORTED: UnsupportedArguments = {
    "truncation_side": "set tokenizer.truncation_side, which holds for every call",
    "pad_to_max_length": "pass padding='max_length'",
}

_TRUNCATIONS = (True, False, None, "longest_first", "only_first", "only_second", "do_not_truncate")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of one call of `AutoTokenizer.__call__`, for texts and targets alike.

    padding_side: "left" or "right".  columns: further columns, and whether each is wanted.
    """

    add_special_tokens: bool
    padding: bool | str
    truncation: bool | str | None
    max_length: int | None
    stride: int
    return_overflowing_tokens: bool
    return_tensors: str | None
    pad_to_multiple_of: int | None
    padding_side: str
    is_split_into_words: bool
    columns: Mapping[str, bool | None]

    def __post_init__(self) -> None:
        check_one_of("truncation", self.truncation, _TRUNCATIONS)
        check_bool("add_special_tokens", self.add_special_tokens)
        flags = {name: getattr(self, name) for name in ("return_overflowing_tokens", "is_split_into_words")}
        for name, value in (flags | {one: self.columns[one] for one in self.columns if one in COLUMN_OPTIONS}).items():
            if value is not None:
                check_bool(name, value)
        store_plain_numbers(self)
        for name in ("max_length", "stride"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value, minimum=0)


def encode_batch(tokenizer: Tokenizer, text: Any, pair: Any, request: Request) -> BatchEncoding:
    """Texts, or pairs of texts, as the requested batch."""
    single = isinstance(text, str) or (request.is_split_into_words and is_word_list(text))
    if single and isinstance(pair, str | list | tuple) and not pair:  # ignored by the reference, but not in a list
        pair = None
    rows, owners = _truncated_rows(tokenizer, _raw_encodings(tokenizer, text, pair, single, request), request)
    width = _padded_width(
        tokenizer, [len(row.ids) for row in rows], request.padding, request.max_length, request.pad_to_multiple_of
    )
    side = check_side("padding_side", request.padding_side)
    for row in rows if width else ():  # the batch's encodings include padding, too
        row.pad(width, direction=side, pad_id=tokenizer.pad_token_id or 0, pad_token=tokenizer.pad_token or "")
    others = [one.name for one in fields(request) if one.name != "columns"]
    features = build_columns(rows, without_unsupported(request.columns, _UNSUPPORTED), tokenizer.token_types, others)
    if request.return_overflowing_tokens:
        features["overflow_to_sample_mapping"] = owners
    return build_batch(features, request.return_tensors, single and not request.return_overflowing_tokens, rows)


def pad(
    tokenizer: Tokenizer, features: Features, padding: bool | str, length: int | None, multiple: int | None, side: str
) -> None:
    """Pads the rows of every column to one length, in place.  length: with "max_length", else the tokenizer's own."""
    width = _padded_width(tokenizer, [len(row) for row in features["input_ids"]], padding, length, multiple)
    pad_columns(features, width, check_side("padding_side", side) == "left", tokenizer.pad_token_id)


def _padded_width(
    tokenizer: Tokenizer, lengths: list[int], padding: bool | str, length: int | None, multiple: int | None
) -> int:
    """The length to which rows of these lengths are padded; 0 for no padding.

    length: with "max_length", else the tokenizer's own; without any nothing is padded, as in the reference, and no row
        is shortened.
    multiple: the result is a multiple of it.
    """
    if length is not None:
        length = check_count("max_length", length, minimum=0)
    if multiple is not None:
        multiple = check_count("pad_to_multiple_of", multiple)
    check_one_of("padding", padding, PADDINGS)
    if padding in (False, "do_not_pad"):
        return 0
    max_length = length or tokenizer.model_max_length or 0
    width = max_length if padding == "max_length" else max(lengths, default=0)
    width += -width % (multiple or 1)
    if tokenizer.pad_token_id is None and any(one < width for one in lengths):
        raise InputError("this tokenizer has no padding token: tokenizer.pad_token = tokenizer.eos_token gives it one")
    return width


def check_side(name: str, value: Any) -> str:
    """Checks a side; InputError for anything but "left" and "right"."""
    check_one_of(name, value, ("left", "right"))
    return value


def _raw_encodings(
    tokenizer: Tokenizer, text: Any, pair: Any, single: bool, request: Request
) -> Iterable[tuple[Any, Any]]:
    """Each text, or pair, encoded without special tokens."""
    if request.is_split_into_words:
        firsts = tokenizer.encode_raw_words([text] if single else text or [])
        seconds = (
            None if pair is None else tokenizer.encode_raw_words([pair] if single else text_list("text_pair", pair))
        )
    else:
        texts, others = texts_and_pairs(text, pair)
        firsts = tokenizer.encode_raw(texts, True, "text")
        seconds = None if others is None else tokenizer.encode_raw(others, True, "second text")
    if seconds is None:
        return zip(firsts, itertools.repeat(None))
    if len(firsts) != len(seconds):
        raise InputError(
            f"{format_count(len(firsts), 'text')} but {format_count(len(seconds), 'second text')}: a pair needs one "
            "of each"
        )
    return zip(firsts, seconds)


def _truncated_rows(
    tokenizer: Tokenizer, raw: Iterable[tuple[Any, Any]], request: Request
) -> tuple[list[Any], list[int]]:
    """Truncated rows with their special tokens, and the index of each row's text."""
    truncation, max_length, special = request.truncation, request.max_length, request.add_special_tokens
    effective = max_length is not None and request.padding is False if truncation is None else truncation
    limit = None if effective in (False, "do_not_truncate") else max_length or tokenizer.model_max_length
    strategy, side = effective if isinstance(effective, str) else "longest_first", tokenizer.truncation_side
    rows, owners = [], []
    for i, (first, second) in enumerate(raw):
        added = tokenizer.added_tokens(pair=second is not None) if special else 0
        parts = [(first, second)]
        if request.return_overflowing_tokens and limit is not None:
            parts = overflow_windows(first, second, limit - added, strategy, request.stride, side)
        else:
            truncate_pair(first, second, limit, added, strategy, side)
        rows += [_with_sequence_id(tokenizer.post_process(*part, special), second is None) for part in parts]
        owners += [i] * len(parts)
    return rows, owners


def _with_sequence_id(row: Any, single: bool) -> Any:
    """A row with its sequence id set: for a text without special tokens the processor does not set it, and padding
    added later would count as text."""
    if single and not any(row.special_tokens_mask):
        row.set_sequence_id(0)
    return row
