"""The input of a trace: texts, pairs and targets as rows of tokens, and these rows as one padded batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count, is_list_like, unwrap_arrow
from pellucid.errors import Argument, InputError, Item, format_count
from pellucid.models import EncoderDecoder
from pellucid.text.truncation import check_has_tokens, warn_of_truncation

Texts = str | Sequence[str]


@dataclass(frozen=True)
class Reading:
    """One text, or one pair of texts, as the model read it.

    texts: the text, or the two of a pair.  tokens, ids: what the model read.  segments: 0 or 1, the text of each token.
    offsets: the span of each token in its text, in characters.  special: which tokens are not part of the text.
    cut: how many tokens were cut off.
    target: the text given to the decoder of an encoder-decoder; empty where the decoder read the text itself.
    target_tokens, target_ids: the tokens that the decoder read, from its start token on.
    before, before_ids: the tokens read in an earlier pass, whose keys and values are in the cache.
    by_bytes: whether the characters of tokens stand for bytes, as in the byte-level vocabulary of GPT-2.
    target_by_bytes: the same of target_tokens, whose vocabulary may be another.
    """

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]
    special: tuple[bool, ...]
    cut: int = 0
    target_tokens: tuple[str, ...] = ()
    target_ids: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    before_ids: tuple[int, ...] = ()
    target: str = ""
    by_bytes: bool = False
    target_by_bytes: bool = False


def read_texts(
    loaded: Loaded, text: Texts, pair: Texts | None, target: Texts | None, after: Texts | None, max_length: int | None
) -> tuple[Reading, ...]:
    """Tokenizes texts into rows. max_length: longer texts are cut; by default to the model's maximum."""
    tokenizer, target_tokenizer = loaded.required_tokenizer, loaded.required_target_tokenizer
    texts = _list_of_texts(text, "text")
    pairs = None if pair is None else _list_of_texts(pair, "pair", len(texts))
    targets = [None] * len(texts) if target is None else _list_of_texts(target, "target", len(texts))
    before = _prefix_ids(loaded, after, pair, len(texts))
    limit = max_length
    if limit is not None:
        limit = check_count("max_length", limit)
    elif loaded.max_length is not None:
        limit = max(loaded.max_length - max(len(ids) for ids in before), 1)
    rows = tokenizer.encode(texts, pairs, max_length=limit, add_special_tokens=after is None)
    readings = []
    for i, row in enumerate(rows):
        check_has_tokens(row.ids, Item(i, "text"))
        target_ids = _decoder_ids(loaded, row.ids, targets[i])
        readings.append(
            Reading(
                texts=(texts[i],) if pairs is None else (texts[i], pairs[i]),
                tokens=tuple(row.tokens),
                ids=tuple(row.ids),
                segments=tuple(row.type_ids),
                offsets=tuple(row.offsets),
                special=tuple(bool(flag) for flag in row.special),
                cut=row.cut,
                target_tokens=tuple(target_tokenizer.convert_ids_to_tokens(target_ids)),
                target_ids=tuple(target_ids),
                before=tuple(tokenizer.convert_ids_to_tokens(before[i])),
                before_ids=tuple(before[i]),
                target=targets[i] or "",
                by_bytes=tokenizer.by_bytes,
                target_by_bytes=target_tokenizer.by_bytes,
            )
        )
    return tuple(readings)


def warn_if_truncated(rows: Sequence[Reading], max_length: int | None) -> None:
    """Warns how much was cut off, unless the caller set a length.

    max_length: the length that the caller set.
    """
    if max_length is None:
        warn_of_truncation(sum(row.cut > 0 for row in rows), len(rows), max(len(row.ids) for row in rows))


def batch_of(loaded: Loaded, rows: Sequence[Reading], *, pad_left: bool = False) -> dict[str, Tensor]:
    """The module's inputs for these rows in one pass; shorter rows are padded and masked."""
    targets = [row.target_ids for row in rows] if isinstance(loaded.module, EncoderDecoder) else None
    return as_batch(
        loaded, [row.ids for row in rows], [row.segments for row in rows], decoder_rows=targets, pad_left=pad_left
    )


def _list_of_texts(argument: object, name: str, count: int | None = None) -> list[str]:
    texts = list(unwrap_arrow(argument)) if is_list_like(argument) else [argument]
    if not texts or not all(isinstance(text, str) for text in texts):
        found = repr(str(argument)[:40]) if texts else "empty"
        raise InputError(f"{name} is {found}: expected a string, or a list of strings")
    if count is not None and len(texts) != count:
        raise InputError(f"{format_count(count, 'text')} and {len(texts)} of {name} were given: each text needs one")
    return texts


def _prefix_ids(loaded: Loaded, after: Texts | None, pair: Texts | None, count: int) -> list[list[int]]:
    if after is None:
        return [[]] * count
    if loaded.config.kind != "decoder" or pair is not None:
        raise InputError(
            f"'after' is for decoders and single texts, and this is a model of kind {loaded.config.kind!r}"
            + (" with a second text" if pair is not None else "")
        )
    rows = [row.ids for row in loaded.required_tokenizer.encode(_list_of_texts(after, "after", count))]
    if not all(rows):
        raise InputError("a text of 'after' has no tokens: leave 'after' out where nothing was read before")
    max_length = max(map(len, rows))
    if loaded.max_length is not None and max_length >= loaded.max_length:
        raise InputError(
            f"'after' has {max_length:,} tokens, and this model reads {loaded.max_length:,} in all: shorten it"
        )
    return rows


def _decoder_ids(loaded: Loaded, ids: list[int], target: str | None) -> list[int]:
    """The ids that an encoder-decoder's decoder reads: the start token, then the target or, by the same
    vocabulary, the text itself."""
    if not isinstance(loaded.module, EncoderDecoder):
        if target is not None:
            problem = f" was given, and a model of kind {loaded.config.kind!r} has no decoder beside it: leave it out"
            raise InputError(Argument("target"), problem)
        return []
    head = loaded.config.head
    if target is not None and head is not None and head.per == "text":
        raise InputError(Argument("target"), f" was given, and {head.name} judges the text itself: leave it out")
    if target is not None:
        ids = loaded.required_target_tokenizer.encode([target])[0].ids
        if not ids:
            raise InputError(Argument("target"), " has no tokens: give what the decoder reads")
    elif loaded.target_tokenizer is not None:
        problem = " is missing, and the decoder has a vocabulary of its own, in which it cannot read the text itself"
        raise InputError(Argument("target"), f"{problem}: give what it reads")
    return loaded.module.shift_right(torch.tensor([ids], device="cpu"))[0].tolist()
