"""One tokenizer for every family: words to ids and back. A thin, thread-safe shell over the `tokenizers` library."""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from pellucid.errors import CorruptFileError, InputError
from pellucid.text.batch import Batch, collate

MOST_CHARACTERS = 10_000_000
"""Longest single text that is tokenised at all; a longer one is refused before any work is done."""

Truncation = bool | str
_STRATEGIES = ("longest_first", "only_first", "only_second")


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text, or one pair of texts, as the model sees it."""

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special: list[int]
    cut: int
    """Tokens that were cut off because the text was too long."""


class Tokenizer:
    """Words to ids and back.

    Called like the tokenizers that users know; nothing in it changes between calls, so threads may share one.

    >>> tokenizer(["a b", "c"], padding=True, return_tensors="pt").input_ids.shape   # doctest: +SKIP
    torch.Size([2, 4])
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        settings: dict[str, Any] | None = None,
        max_length: int | None = None,
        token_types: bool = True,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.settings = dict(settings or {})
        self.model_max_length = max_length
        self.token_types = token_types

    # -- words to ids -------------------------------------------------------------------------------------------------

    def __call__(
        self,
        texts: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        padding: bool | str = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        return_tensors: str | None = None,
        parse_special_tokens: bool = True,
    ) -> Batch:
        """Texts, or pairs of texts, to `input_ids`, `token_type_ids` and `attention_mask`.

        padding: True or "longest" pads to the longest text, "max_length" to `max_length`.
        truncation: True cuts texts longer than `max_length` (by default the model's own limit), the longer of a pair
            first; "only_first" and "only_second" cut one of them.
        return_tensors: "pt" for torch tensors [batch, seq], "np" for NumPy arrays, None for lists.
        parse_special_tokens: False makes a `[SEP]` that somebody typed into a text plain characters.
        """
        single = isinstance(texts, str)
        firsts = [texts] if single else list(texts)
        seconds = None if pair is None else [pair] if isinstance(pair, str) else list(pair)
        limit = self._limit(max_length) if truncation else None
        rows = self.encode(
            firsts,
            seconds,
            max_length=limit,
            strategy="longest_first" if truncation is True else truncation or "longest_first",
            add_special_tokens=add_special_tokens,
            parse_special_tokens=parse_special_tokens,
        )
        return self._batch(rows, padding, max_length, return_tensors, single)

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        strategy: str = "longest_first",
        add_special_tokens: bool = True,
        parse_special_tokens: bool = False,
    ) -> list[Encoded]:
        """Texts one by one, unpadded, each with its tokens and their places in the text (in characters)."""
        if strategy not in _STRATEGIES:
            raise InputError(f"truncation is {strategy!r}, expected True, False or one of {', '.join(_STRATEGIES)}")
        firsts = self._raw(texts, parse_special_tokens, "text")
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"{len(texts)} texts but {len(pairs)} second texts: a pair needs one of each")
        seconds = [None] * len(firsts) if pairs is None else self._raw(pairs, parse_special_tokens, "second text")
        added = self._backend.num_special_tokens_to_add(pairs is not None) if add_special_tokens else 0
        rows = []
        for first, second in zip(firsts, seconds):
            cut = _cut(first, second, max_length, added, strategy)
            done = self._backend.post_process(first, second, add_special_tokens)
            rows.append(Encoded(done.ids, done.type_ids, done.tokens, done.offsets, done.special_tokens_mask, cut))
        return rows

    def _raw(self, texts: Sequence[str], parse: bool, what: str) -> list[tokenizers.Encoding]:
        clean = [_text(text, i, what) for i, text in enumerate(texts)]
        plain = [not parse and self._looks_special(text) for text in clean]
        if not any(plain):
            return _guarded(self._backend.encode_batch, clean, add_special_tokens=False)
        backends = [self._literal if is_plain else self._backend for is_plain in plain]
        return [_guarded(b.encode, text, add_special_tokens=False) for b, text in zip(backends, clean)]

    def _batch(
        self, rows: list[Encoded], padding: bool | str, max_length: int | None, kind: str | None, single: bool
    ) -> Batch:
        names = (
            ("input_ids", "token_type_ids", "attention_mask") if self.token_types else ("input_ids", "attention_mask")
        )
        if padding not in (True, False, "longest", "max_length", "do_not_pad"):
            raise InputError(f"padding is {padding!r}, expected True, False, 'longest' or 'max_length'")
        if kind not in (None, "pt", "np"):
            raise InputError(f"return_tensors is {kind!r}, expected 'pt', 'np' or None")
        padded = padding in (True, "longest", "max_length")
        if not padded and (kind is None or not rows):
            columns = {
                "input_ids": [r.ids for r in rows],
                "token_type_ids": [r.type_ids for r in rows],
                "attention_mask": [[1] * len(r.ids) for r in rows],
            }
            return Batch({n: columns[n][0] if single else columns[n] for n in names})
        if not padded and len({len(r.ids) for r in rows}) > 1:
            raise InputError("texts of unequal length do not make one tensor: pass padding=True")
        length = self._limit(max_length) if padding == "max_length" else None
        if length is not None and (longest := max((len(r.ids) for r in rows), default=0)) > length:
            raise InputError(f"a text of {longest} tokens does not fit into {length}: pass truncation=True")
        arrays = collate([r.ids for r in rows], [r.type_ids for r in rows], self.pad_token_id or 0, length=length)
        if kind is None:
            return Batch({n: arrays[n][0].tolist() if single else arrays[n].tolist() for n in names})
        return Batch({n: _tensor(arrays[n]) if kind == "pt" else arrays[n] for n in names})

    def _limit(self, max_length: int | None) -> int:
        limit = max_length if max_length is not None else self.model_max_length
        if limit is None:
            raise InputError("this tokenizer states no greatest length: pass max_length")
        if type(limit) is not int or limit < 1:
            raise InputError(f"max_length is {limit!r}, expected a whole number from 1")
        return limit

    # -- ids to words -------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Ids back to a text."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Each id as its token, as the vocabulary writes it."""
        tokens = []
        for i in ids:
            token = self._backend.id_to_token(int(i))
            if token is None:
                raise InputError(f"id {int(i)} is not in this vocabulary of {len(self)} tokens")
            tokens.append(token)
        return tokens

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int | None]:
        """Each token as its id; None for one that the vocabulary lacks."""
        return [self._backend.token_to_id(token) for token in tokens]

    # -- facts --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({len(self):,} tokens, at most {self.model_max_length} a text)"

    @functools.cached_property
    def largest_id(self) -> int:
        """The greatest id that this tokenizer can give."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def special_token(self, role: str) -> str | None:
        """The token that plays `role`: "pad", "unk", "cls", "sep", "mask", "bos" or "eos"."""
        token = self.settings.get(f"{role}_token")
        return token.get("content") if isinstance(token, dict) else token

    def _special_id(self, role: str) -> int | None:
        token = self.special_token(role)
        return None if token is None else self._backend.token_to_id(token)

    pad_token_id = property(lambda self: self._special_id("pad"))
    unk_token_id = property(lambda self: self._special_id("unk"))
    cls_token_id = property(lambda self: self._special_id("cls"))
    sep_token_id = property(lambda self: self._special_id("sep"))
    mask_token_id = property(lambda self: self._special_id("mask"))
    mask_token = property(lambda self: self.special_token("mask"))

    def to_json(self) -> str:
        """The whole tokenizer as the text of a `tokenizer.json`."""
        return self._backend.to_str()

    # -- special tokens that somebody typed ---------------------------------------------------------------------------

    @functools.cached_property
    def _typed(self) -> re.Pattern[str] | None:
        added = self._backend.get_added_tokens_decoder().values()
        # A mask is something that a person writes; every other special token in a text is just characters.
        words = sorted(t.content for t in added if t.special and t.content and t.content != self.mask_token)
        return re.compile("|".join(map(re.escape, words))) if words else None

    def _looks_special(self, text: str) -> bool:
        return self._typed is not None and self._typed.search(text) is not None

    @functools.cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        twin = tokenizers.Tokenizer.from_str(self.to_json())
        twin.encode_special_tokens = True
        return twin


def _text(text: object, index: int, what: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{what} {index} is {type(text).__name__}, expected a string")
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{what} {index} has {len(text):,} characters, expected at most {MOST_CHARACTERS:,}: split it first"
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair is no character: U+FFFD says so
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _cut(first: Any, second: Any, limit: int | None, added: int, strategy: str) -> int:
    """Shortens the encodings in place until both fit into `limit` with `added` special tokens; says by how much."""
    sizes = [len(first), 0 if second is None else len(second)]
    excess = 0 if limit is None else sum(sizes) + added - limit
    if excess <= 0:
        return 0
    room = sum(sizes) - excess
    if room < 0:
        raise InputError(f"max_length {limit} leaves no room beside {added} special tokens")
    if strategy == "only_first" or second is None:
        keep = [sizes[0] - excess, sizes[1]]
    elif strategy == "only_second":
        keep = [sizes[0], sizes[1] - excess]
    else:  # the longer one gives first, then both in turn, as the reference does
        shorter = min(min(sizes), room // 2)
        keep = [room - shorter, shorter] if sizes[0] > sizes[1] else [shorter, room - shorter]
    if min(keep) < 0:
        raise InputError(f"cutting {strategy.removeprefix('only_')} text alone cannot fit the pair into {limit} tokens")
    for encoding, size in zip((first, second), keep):
        if encoding is not None:
            encoding.truncate(size)
    return excess


def _guarded(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs the library; its panics, which no `except Exception` would see, become one of our errors."""
    try:
        return call(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise CorruptFileError(f"the tokenizer failed on this text: {error}") from error


def _tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)
