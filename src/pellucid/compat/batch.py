"""The results of the reference's tokenizers: columns of ids and masks, as lists or as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy
import torch

from pellucid.config.checks import check_one_of
from pellucid.errors import Argument, InputError, did_you_mean, format_count
from pellucid.text import Batch
from pellucid.text.batch import RETURN_TENSORS, check_equally_long, text_list
from pellucid.text.truncation import truncates_second

Features = dict[str, list[Any]]
"""Columns by name, each with one entry per text."""

_COLUMNS: dict[str, tuple[str, Any]] = {
    "input_ids": ("", lambda row: row.ids),
    "token_type_ids": ("return_token_type_ids", lambda row: row.type_ids),
    "attention_mask": ("return_attention_mask", lambda row: row.attention_mask),
    "special_tokens_mask": ("return_special_tokens_mask", lambda row: row.special_tokens_mask),
    "offset_mapping": ("return_offsets_mapping", lambda row: row.offsets),
    "length": ("return_length", lambda row: len(row.ids)),
}
"""Every column: the option that requests it, and how a row gives it."""

_MASK_PADDING = {"token_type_ids": 0, "attention_mask": 0, "special_tokens_mask": 1}
"""The value that a column is padded with; of all others only `input_ids` are padded."""

COLUMN_OPTIONS = {option: name for name, (option, _) in _COLUMNS.items() if option}
"""The columns by the options that request them."""


class BatchEncoding(Batch):
    """A tokenizer's result: lists or tensors by name, each also an attribute; `model(**batch)` takes it.

    rows: the encoding of each text, with the origin of each token.
    """

    rows: Sequence[Any] = ()

    def __getitem__(self, item: Any) -> Any:
        """A column by its name; by an index or a slice, the encodings of these texts."""
        if isinstance(item, slice):
            return list(self.rows[item])
        return self._row(item) if isinstance(item, int) else super().__getitem__(item)

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a text."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """The index of the word that each token is part of; None for special tokens and padding."""
        return self._row(batch_index).word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """0 for tokens of the first text, 1 for those of the second; None for special tokens and padding."""
        return self._row(batch_index).sequence_ids

    @property
    def encodings(self) -> Sequence[Any]:
        """The encoding of each text: `ids`, `tokens`, `offsets`, `word_ids`, `sequence_ids`."""
        return self.rows

    @property
    def data(self) -> Self:
        """The batch itself, a dict of its columns by name."""
        return self

    @property
    def n_sequences(self) -> int:
        """1 for texts, 2 for pairs."""
        return self._row(0).n_sequences

    def token_to_chars(self, batch_or_token_index: int, token_index: int | None = None) -> "Span | None":
        """The characters of a token; with one argument, of the first text."""
        row, token = self._row_and_index(batch_or_token_index, token_index)
        return _span(row.token_to_chars(token))

    def token_to_word(self, batch_or_token_index: int, token_index: int | None = None) -> int | None:
        """The index of the word that a token is part of; with one argument, of the first text."""
        row, token = self._row_and_index(batch_or_token_index, token_index)
        return row.token_to_word(token)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> "Span | None":
        """The tokens of a word; with one argument, of the first text."""
        row, word = self._row_and_index(batch_or_word_index, word_index)
        return _span(row.word_to_tokens(word, sequence_index))

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The index of the token that holds a character; with one argument, of the first text."""
        row, char = self._row_and_index(batch_or_char_index, char_index)
        return row.char_to_token(char, sequence_index)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> "Span | None":
        """The characters of a word; with one argument, of the first text."""
        row, word = self._row_and_index(batch_or_word_index, word_index)
        return _span(row.word_to_chars(word, sequence_index))

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The index of the word that holds a character; with one argument, of the first text."""
        row, char = self._row_and_index(batch_or_char_index, char_index)
        return row.char_to_word(char, sequence_index)

    def _row_and_index(self, first: int, second: int | None) -> tuple[Any, int]:
        """The row and the index in it, for one or two numbers."""
        return (self._row(0), first) if second is None else (self._row(first), second)

    def _row(self, number: int) -> Any:
        if not -len(self.rows) <= number < len(self.rows):
            raise InputError(f"there is no text {number} here: this batch is of {format_count(len(self.rows), 'text')}")
        return self.rows[number]

    def to(self, device: Any) -> "BatchEncoding":
        """The same batch with its tensors on `device`."""
        return self.with_rows(super().to(device), self.rows)

    @staticmethod
    def with_rows(columns: Mapping[str, Any], rows: Sequence[Any]) -> "BatchEncoding":
        """A batch with the encodings that it was made from."""
        found = BatchEncoding(columns)
        found.__dict__["rows"] = rows
        return found


class Span(NamedTuple):
    """The half-open range from `start` to `end`."""

    start: int
    end: int


def _span(found: Any) -> Span | None:
    """The library's pair of numbers for characters or tokens."""
    return None if found is None else Span(*found)


def build_columns(
    rows: Sequence[Any], requested: Mapping[str, Any], token_types: bool, others: Sequence[str] = ()
) -> Features:
    """The columns of rows that are requested or included by default.

    others: other options of the call, to suggest for a misspelt one.
    """
    for option in requested:
        if option not in COLUMN_OPTIONS:
            raise InputError(f"a tokenizer has no option {option!r}{did_you_mean(option, [*COLUMN_OPTIONS, *others])}")
    usual = {"input_ids": True, "token_type_ids": token_types, "attention_mask": True}
    flags = {COLUMN_OPTIONS[option]: value for option, value in requested.items() if value is not None}
    chosen = [name for name in _COLUMNS if flags.get(name, usual.get(name, False))]
    return {name: [_COLUMNS[name][1](row) for row in rows] for name in chosen}


def pad_columns(features: Features, width: int, left: bool, pad: int | None) -> None:
    """Pads the rows of ids and masks to one length, in place; labels and others stay, as in the reference."""
    for name, padding_value in {"input_ids": pad, **_MASK_PADDING}.items():
        column = features.get(name, [])
        for i, row in enumerate(column):
            if isinstance(row, list):
                gap = [padding_value] * (width - len(row))
                column[i] = gap + row if left else row + gap


def build_batch(features: Features, kind: str | None, single: bool, rows: Sequence[Any] = ()) -> BatchEncoding:
    """Columns as a batch.  kind: "pt", "np", or None for lists.  single: one text, whose lists are not nested."""
    check_one_of("return_tensors", kind, RETURN_TENSORS)
    if kind is None:
        if single:
            features = {n: column[0] if isinstance(column[0], list) else column for n, column in features.items()}
        return BatchEncoding.with_rows(features, rows)
    for name, column in features.items():
        lists = [row for row in column if isinstance(row, list)]
        if name == "input_ids" or name in _MASK_PADDING:
            check_equally_long(lists, ", and ", Argument("truncation", True))
        elif len({len(row) for row in lists}) > 1:
            raise InputError(
                f"{name} of unequal length cannot form a tensor, and only ids and masks are padded: pad them first"
            )
    return BatchEncoding.with_rows({name: _to_tensor(column, kind) for name, column in features.items()}, rows)


def _to_tensor(column: Any, kind: str) -> Any:
    """A column as one tensor or array; an empty one is of integers, as other columns of ids are."""
    if kind == "pt":
        tensor = torch.tensor(column, device="cpu")
        return tensor if tensor.numel() else tensor.long()
    array = numpy.array(column)
    return array if array.size else array.astype(numpy.int64)


def to_lists(ids: Any) -> Any:
    """Tensors, arrays, tuples and ranges as lists or numbers."""
    return ids.tolist() if hasattr(ids, "tolist") else [*map(to_lists, ids)] if isinstance(ids, tuple | range) else ids


def without_empty_pair(item: Any) -> Any:
    """A text, or a pair, without an empty second text: the reference ignores one."""
    if isinstance(item, Mapping):
        return {key: value for key, value in item.items() if key != "text_pair" or value != ""}
    return item[0] if isinstance(item, tuple) and item[1:] == ("",) else item


def is_word_list(text: Any) -> bool:
    """Whether this is one text as a list of words."""
    return isinstance(text, list | tuple) and all(isinstance(word, str) for word in text)


def list_conversations(inputs: Any) -> tuple[bool, list[Any]]:
    """Whether several conversations were given, and a list of all; InputError, with its number, for an invalid one."""
    many = isinstance(inputs, list | tuple) and bool(inputs) and isinstance(inputs[0], list | tuple)
    conversations = list(inputs) if many else [inputs]
    for i, conversation in enumerate(conversations):
        if not isinstance(conversation, list | tuple) or not conversation:
            name = f"conversation {i}" if many else "conversation"
            found = "empty" if isinstance(conversation, list | tuple) else f"a {type(conversation).__name__}"
            raise InputError(f'{name} is {found}, expected a list of messages, such as {{"role": ..., "content": ...}}')
    return many, conversations


def texts_and_pairs(text: Any, pair: Any) -> tuple[list[str], list[str] | None]:
    """First and second texts; a list of pairs is accepted as well."""
    firsts = [text] if isinstance(text, str) else text
    if not isinstance(firsts, list | tuple):
        raise InputError(f"the tokenizer was given {type(text).__name__}, expected a text or a list of texts")
    if pair is None and firsts and all(isinstance(item, list | tuple) and len(item) == 2 for item in firsts):
        return [item[0] for item in firsts], [item[1] for item in firsts]
    return list(firsts), None if pair is None else text_list("text_pair", pair)


def overflow_windows(
    first: Any, second: Any, room: int, strategy: str, stride: int, direction: str
) -> list[tuple[Any, Any]]:
    """A text, or a pair, in windows that each fit into `room` tokens and share `stride` with the one before.

    direction: "right" begins with a text's first tokens, "left" with its last.
    """
    sizes = len(first), 0 if second is None else len(second)
    if sum(sizes) <= room:
        return [(first, second)]
    if second is not None and strategy == "longest_first":
        raise InputError(
            "of a pair one text is split into windows: say which, truncation='only_second' or 'only_first'"
        )
    side = int(truncates_second(strategy, second))
    size = room - sizes[1 - side]
    if not 0 <= stride < size:
        raise InputError(
            f"stride is {stride}, and a window has room for {format_count(size, 'token')}: it must be less"
        )
    long: Any = second if side else first
    long.truncate(size, stride=stride, direction=direction)
    parts = [long, *long.overflowing]
    return [(first, part) if side else (part, second) for part in parts]
