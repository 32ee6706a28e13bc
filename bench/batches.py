"""Texts to padded batches, and vectors back in order, for libraries that have no tokenizer of their own."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Batch:
    """Some of the texts, padded to the longest of them."""

    rows: list[int]  # index of each text in the input
    ids: np.ndarray  # int64 [texts, tokens]
    mask: np.ndarray  # int64 [texts, tokens], 1 on tokens and 0 on padding


def read_tokenizer(model: Path) -> Tokenizer:
    """The checkpoint's tokenizer, without padding, which truncates where sentence-transformers does."""
    longest = json.loads((model / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer


def token_counts(texts: Sequence[str], model: Path) -> list[int]:
    """Number of tokens of each text for ``model``, including special tokens."""
    return [len(encoding.ids) for encoding in read_tokenizer(model).encode_batch_fast(list(texts))]


def _groups(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups of consecutive rows of ``order`` (longest first), each of at most ``budget`` positions or of one row."""
    rows: list[int] = []
    for row in order:
        if rows and lengths[rows[0]] * (len(rows) + 1) > budget:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _pad(rows: list[int], ids: Sequence[list[int]]) -> Batch:
    """A batch of these rows, the first of which is the longest."""
    longest = len(ids[rows[0]])
    table = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros_like(table)
    for line, row in enumerate(rows):
        table[line, : len(ids[row])] = ids[row]
        mask[line, : len(ids[row])] = 1
    return Batch(rows, table, mask)


def pack(tokenizer: Tokenizer, texts: Sequence[str], budget: int) -> Iterator[Batch]:
    """Tokenizes, sorts by length, longest first, and pads each batch."""
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
    lengths = [len(row) for row in ids]
    order = sorted(range(len(ids)), key=lambda row: -lengths[row])
    for rows in _groups(order, lengths, budget):
        yield _pad(rows, ids)


def pool(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the tokens, normalised to length one: float32 [texts, tokens, width] to [texts, width]."""
    weights = mask.astype(np.float32)[:, None, :]
    mean = np.matmul(weights, states)[:, 0]  # the sum, which has the same direction as the mean
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)
