"""Embeddings: one vector per text."""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pellucid.bars import progress_bar
from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import as_list, check_bool, check_choice, check_count
from pellucid.config.pooling import MODES, Pooling
from pellucid.errors import InputError, Item, join_names
from pellucid.machine import choose_dtype
from pellucid.models import Encoder, Network, check_finite
from pellucid.tasks.passes import run_batches
from pellucid.text.encoded import is_all_unknown
from pellucid.text.prefix import with_special_tokens
from pellucid.text.truncation import check_has_tokens, clean_text, warn_of_truncation

log = logging.getLogger("pellucid")

TOKENIZED_AT_ONCE = 4_096
"""Texts that are tokenized at a time; only their ids and types are kept, since there may be a million of them."""


class _Row(NamedTuple):
    ids: "array[int]"
    types: "array[int]"


def embed(loaded: Loaded, texts: str | Iterable[str], **how: Any) -> Tensor:
    """One vector per text. See `Model.embed`.  how: the options of `embed_in_chunks`."""
    if isinstance(texts, str):
        return embed(loaded, [texts], **how)[0]
    if (found := as_list(texts)) is None:
        raise InputError(f"texts are {type(texts).__name__}, expected a string or several strings")
    return next(embed_in_chunks(loaded, found, len(found), **how))


def embed_in_chunks(
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
    """The same vectors in chunks, in the order of the texts: Float32[Tensor, "size width"], the last one smaller.

    All texts are tokenized before the first vector is computed; at least one chunk is yielded. progress: a bar for each
    chunk; or a function, called with the number of texts that were just embedded.
    """
    plan = _pooling(loaded, pooling, normalize, max_length)
    kind = None if dtype is None else choose_dtype(dtype, loaded.module.dtype, loaded.module.device)
    if loaded.untrained_body:
        log.warning("%s is not trained (%s): its vectors are random", loaded.name, join_names(loaded.untrained_body))
    rows = _encode_rows(loaded, texts, plan)
    for start in range(0, max(len(rows), 1), max(size, 1)):
        some = rows[start : start + size]
        vectors = torch.empty(len(some), plan.width(loaded.config.hidden_size), dtype=torch.float32, device="cpu")
        for group, answer in _pooled_batches(loaded, some, kind, plan, progress):
            vectors[group] = answer
        yield torch.nn.functional.normalize(vectors, dim=-1) if normalize and plan.truncate_dim else vectors


def _pooling(loaded: Loaded, pooling: str | None, normalize: bool | None, max_length: int | None) -> Pooling:
    plan = loaded.pooling or Pooling()
    if pooling is not None:
        check_choice("pooling", pooling, MODES)
        plan = replace(plan, modes=(pooling,))
    if normalize is not None:
        check_bool("normalize", normalize)
        plan = replace(plan, normalize=normalize)
    if max_length is not None:
        max_length = check_count("max_length", max_length)
    return replace(plan, max_length=loaded.pooling_length(max_length))


def _encode_rows(loaded: Loaded, texts: Sequence[str], plan: Pooling) -> list[_Row]:
    texts = [clean_text(text, i, "text") for i, text in enumerate(texts)]  # numbered among all texts
    tokenizer, rows, cut, empty, bare, strange = loaded.required_tokenizer, [], 0, 0, 0, 0
    unknown = tokenizer.unk_token_id
    for start in range(0, len(texts), TOKENIZED_AT_ONCE):
        raw = tokenizer.encode_raw(texts[start : start + TOKENIZED_AT_ONCE], False, "text")
        for row, lost in with_special_tokens(tokenizer, raw, plan.max_length):
            ids, special = row.ids, row.special_tokens_mask
            # in a batch with other texts it would get the vector of padding
            check_has_tokens(ids, Item(len(rows), "text"), ", so leave it out")
            rows.append(_Row(array("i", ids), array("i", row.type_ids)))
            cut += lost > 0
            empty += all(special) and not lost
            bare += all(special) and lost > 0
            strange += is_all_unknown(ids, special, unknown)
    warn_of_truncation(cut, len(rows), plan.max_length)
    if bare:
        log.warning("%d of %d texts kept no token but special ones, which are alike for every text", bare, len(rows))
    if empty:
        log.warning("%d of %d texts are empty; their vectors are those of the special tokens alone", empty, len(rows))
    warn_unknown_tokens(strange, len(rows))
    return rows


def warn_unknown_tokens(number: int, total: int) -> None:
    """Warns of texts that consist of unknown tokens only, if there are any."""
    if number:
        log.warning(
            "%d of %d texts consist of unknown tokens alone; their vectors do not distinguish them", number, total
        )


def _pooled_batches(
    loaded: Loaded,
    rows: list[_Row],
    dtype: torch.dtype | None,
    plan: Pooling,
    progress: bool | Callable[[int], object] | None,
) -> Iterator[tuple[list[int], Tensor]]:
    module = loaded.module.packed_copy(dtype)
    lengths = [len(row.ids) for row in rows]

    def vectors_of(group: list[int]) -> Tensor:
        batch = as_batch(loaded, [rows[i].ids for i in group], [rows[i].types for i in group])
        states, mask = pooled_states(module, batch, plan)
        vectors = pool(states.float(), mask, plan).cpu()
        check_finite(vectors.abs(), module)
        return vectors

    shown = False if callable(progress) else progress
    with progress_bar("embedding", total=len(rows), unit=" texts", shown=shown) as line:
        for group, vectors in run_batches(module, lengths, vectors_of):
            yield group, vectors
            line.update(len(group))
            if callable(progress):
                progress(len(group))


def pooled_states(module: Network, batch: Mapping[str, Tensor], plan: Pooling) -> tuple[Tensor, Tensor | None]:
    """The hidden states to pool and their mask, of texts padded on the right; see `pool`.

    Where only an encoder's first position is pooled, it alone is computed: its states and no mask.
    """
    ids, mask, types = batch["input_ids"], batch.get("attention_mask"), batch.get("token_type_ids")
    if plan.modes == ("cls",) and isinstance(module, Encoder):
        return module.first_states(ids, mask, types), None
    return module.states(ids, mask, types), mask


def pool(hidden_states: Tensor, mask: Tensor | None, plan: Pooling) -> Tensor:
    """Pools the vectors of tokens into one per text, by each of `plan`'s modes, concatenated.

    hidden_states: Float[Tensor, "batch seq hidden"]; mask: Int[Tensor, "batch seq"], None where nothing is padding.
    ->  Float[Tensor, "batch width"]
    """
    real_tokens = (
        torch.ones(hidden_states.shape[:2], dtype=hidden_states.dtype, device=hidden_states.device)
        if mask is None
        else mask.to(hidden_states.dtype)
    )
    vectors = torch.cat([_pool(hidden_states, real_tokens, mode) for mode in plan.modes], dim=-1)
    return normalize_and_truncate(vectors, plan)


def normalize_and_truncate(vectors: Tensor, plan: Pooling) -> Tensor:
    """Pooled vectors, normalized and truncated by `plan`: Float[Tensor, "... modes*hidden"]  ->  "... width" """
    scaled = torch.nn.functional.normalize(vectors, dim=-1) if plan.normalize else vectors
    return scaled[..., : plan.truncate_dim]


def _pool(hidden_states: Tensor, real_tokens: Tensor, mode: str) -> Tensor:
    rows = torch.arange(len(hidden_states), device=hidden_states.device)
    if mode == "cls":
        return hidden_states[rows, real_tokens.argmax(dim=1)]
    if mode == "lasttoken":
        return hidden_states[rows, hidden_states.shape[1] - 1 - real_tokens.flip(1).argmax(dim=1)]
    if mode == "max":
        return hidden_states.masked_fill(real_tokens[..., None] == 0, -torch.inf).amax(dim=1)
    if mode == "weightedmean":
        real_tokens = real_tokens * torch.arange(
            1, hidden_states.shape[1] + 1, device=hidden_states.device, dtype=real_tokens.dtype
        )
    total = torch.einsum("bsh,bs->bh", hidden_states, real_tokens)
    count = real_tokens.sum(dim=1, keepdim=True).clamp(min=1e-9)
    return total / (count.sqrt() if mode == "mean_sqrt_len" else count)
