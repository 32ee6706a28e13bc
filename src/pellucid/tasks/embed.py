"""Texts to vectors."""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pellucid.bars import bar
from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import all_of, choice, count, plain_number, truth
from pellucid.config.pooling import MODES, Pooling
from pellucid.errors import InputError, Item, several
from pellucid.machine import choose_dtype
from pellucid.models import Encoder, Network, check_finite
from pellucid.tasks.passes import passes
from pellucid.text.cut import check_read, clean_text, warn_of_cut
from pellucid.text.encoded import unread
from pellucid.text.prefix import framed

log = logging.getLogger("pellucid")

PORTION = 4_096
"""So many texts are made into tokens at a time; of each its ids alone are kept, since a million may be asked for."""


class _Row(NamedTuple):
    ids: "array[int]"
    types: "array[int]"


def embed(loaded: Loaded, texts: str | Iterable[str], **how: Any) -> Tensor:
    """One vector per text. See `Model.embed`.  how: the options of `in_pieces`."""
    if isinstance(texts, str):
        return embed(loaded, [texts], **how)[0]
    if (found := all_of(texts)) is None:
        raise InputError(f"texts are {type(texts).__name__}, expected a string or several strings")
    return next(in_pieces(loaded, found, len(found), **how))


def in_pieces(
    loaded: Loaded,
    texts: Sequence[str],
    size: int,
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    dtype: str | torch.dtype | None = None,
    max_length: int | None = None,
    progress: bool | Callable[[int], object] | None = None,
) -> Iterator[Tensor]:
    """The same vectors, some at a time in the order of the texts: Float32[Tensor, "size width"], the last ones fewer.

    All texts are read before the first is computed; one piece at least is given. progress: of each piece; may also be a
    function that is told how many more are done.
    """
    plan = _plan(loaded, pooling, normalize, max_length)
    kind = None if dtype is None else choose_dtype(dtype, loaded.module.dtype, loaded.module.device)
    if loaded.random:
        log.warning("%s is not trained (%s): its vectors are random", loaded.name, several(loaded.random))
    rows = _rows(loaded, texts, plan)
    for start in range(0, max(len(rows), 1), max(size, 1)):
        some = rows[start : start + size]
        vectors = torch.empty(len(some), plan.width(loaded.config.hidden_size), dtype=torch.float32, device="cpu")
        for group, answer in _run(loaded, some, kind, plan, progress):
            vectors[group] = answer
        yield torch.nn.functional.normalize(vectors, dim=-1) if normalize and plan.truncate_dim else vectors


def _plan(loaded: Loaded, pooling: str | None, normalize: bool | None, max_length: int | None) -> Pooling:
    plan = loaded.pooling or Pooling()
    if pooling is not None:
        choice("pooling", pooling, MODES)
        plan = replace(plan, modes=(pooling,))
    if normalize is not None:
        truth("normalize", normalize)
        plan = replace(plan, normalize=normalize)
    if max_length is not None:
        count("max_length", max_length := plain_number(max_length))
    return replace(plan, max_length=loaded.most_pooled(max_length))


def _rows(loaded: Loaded, texts: Sequence[str], plan: Pooling) -> list[_Row]:
    texts = [clean_text(text, i, "text") for i, text in enumerate(texts)]  # by its number among all of them
    words, rows, cut, empty, bare, strange = loaded.words, [], 0, 0, 0, 0
    unknown = words.unk_token_id
    for start in range(0, len(texts), PORTION):
        raw = words.raw(texts[start : start + PORTION], False, "text")
        for row, lost in framed(words, raw, plan.max_length):
            ids, special = row.ids, row.special_tokens_mask
            # beside other texts it would get the vector of padding
            check_read(ids, Item(len(rows), "text"), ", so leave it out")
            rows.append(_Row(array("i", ids), array("i", row.type_ids)))
            cut += lost > 0
            empty += all(special) and not lost
            bare += all(special) and lost > 0
            strange += unread(ids, special, unknown)
    warn_of_cut(cut, len(rows), plan.max_length)
    if bare:
        log.warning("%d of %d texts kept no token but special ones, which tell no text from another", bare, len(rows))
    if empty:
        log.warning("%d of %d texts are empty; their vectors are those of the special tokens alone", empty, len(rows))
    tell_unread(strange, len(rows))
    return rows


def tell_unread(number: int, total: int) -> None:
    """Tells of texts that are unknown tokens alone, where there are any."""
    if number:
        log.warning("%d of %d texts are unknown tokens alone; their vectors do not tell them apart", number, total)


def _run(
    loaded: Loaded,
    rows: list[_Row],
    dtype: torch.dtype | None,
    plan: Pooling,
    progress: bool | Callable[[int], object] | None,
) -> Iterator[tuple[list[int], Tensor]]:
    module = loaded.module.swift(dtype)
    lengths = [len(row.ids) for row in rows]

    def vectors_of(group: list[int]) -> Tensor:
        batch = as_batch(loaded, [rows[i].ids for i in group], [rows[i].types for i in group])
        stream, mask = pooled_states(module, batch, plan)
        vectors = pool(stream.float(), mask, plan).cpu()
        check_finite(vectors.abs(), module)
        return vectors

    shown = False if callable(progress) else progress
    with bar("embedding", total=len(rows), unit=" texts", shown=shown) as line:
        for group, vectors in passes(module, lengths, vectors_of):
            yield group, vectors
            line.update(len(group))
            if callable(progress):
                progress(len(group))


def pooled_states(module: Network, batch: Mapping[str, Tensor], plan: Pooling) -> tuple[Tensor, Tensor | None]:
    """What is pooled of texts that are padded behind their end, and its mask; see `pool`.

    Of an encoder whose first position alone is read it is that position.
    """
    ids, mask, types = batch["input_ids"], batch.get("attention_mask"), batch.get("token_type_ids")
    if plan.modes == ("cls",) and isinstance(module, Encoder):
        return module.first_states(ids, mask, types), None
    return module.states(ids, mask, types), mask


def pool(stream: Tensor, mask: Tensor | None, plan: Pooling) -> Tensor:
    """Many vectors to one, each way that `plan` names, side by side.

    stream: Float[Tensor, "batch seq hidden"]; mask: Int[Tensor, "batch seq"], None where nothing is padding.
    ->  Float[Tensor, "batch width"]
    """
    real = (
        torch.ones(stream.shape[:2], dtype=stream.dtype, device=stream.device)
        if mask is None
        else mask.to(stream.dtype)
    )
    vectors = torch.cat([_pool(stream, real, mode) for mode in plan.modes], dim=-1)
    return finished(vectors, plan)


def finished(vectors: Tensor, plan: Pooling) -> Tensor:
    """Pooled vectors as `plan` leaves them, scaled and then cut: Float[Tensor, "... modes*hidden"]  ->  "... width" """
    scaled = torch.nn.functional.normalize(vectors, dim=-1) if plan.normalize else vectors
    return scaled[..., : plan.truncate_dim]


def _pool(stream: Tensor, real: Tensor, mode: str) -> Tensor:
    rows = torch.arange(len(stream), device=stream.device)
    if mode == "cls":
        return stream[rows, real.argmax(dim=1)]
    if mode == "lasttoken":
        return stream[rows, stream.shape[1] - 1 - real.flip(1).argmax(dim=1)]
    if mode == "max":
        return stream.masked_fill(real[..., None] == 0, -torch.inf).amax(dim=1)
    if mode == "weightedmean":
        real = real * torch.arange(1, stream.shape[1] + 1, device=stream.device, dtype=real.dtype)
    total = torch.einsum("bsh,bs->bh", stream, real)
    count = real.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len" else count)
