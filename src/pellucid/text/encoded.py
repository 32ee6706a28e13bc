"""One tokenized text, as a model reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pellucid.text.piece_offsets import tiled_offsets


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text, or one pair of texts, tokenized for a model."""

    ids: list[int]
    type_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    special: list[int]
    cut: int
    """Number of tokens that were truncated because the text was too long."""

    def is_all_unknown(self, unknown: int | None) -> bool:
        """Whether all tokens are unknown, as of a long unspaced sentence in WordPiece.  unknown: that token's id."""
        return is_all_unknown(self.ids, self.special, unknown)


def is_all_unknown(ids: Sequence[int], special: Sequence[int], unknown: int | None) -> bool:
    """The same for the ids of a text.  special: 1 for each special token, else 0."""
    return unknown in ids and all(id_ == unknown or mark for id_, mark in zip(ids, special))


def input_names(token_types: bool) -> list[str]:
    """The names of a model's inputs.  token_types: whether token types tell the two texts of a pair apart."""
    return ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]


Row = TypeVar("Row", bound=Encoded)


def with_tiled_offsets(row: Row, text: str) -> Row:
    """The row with the offsets of its tokens as sentencepiece counts them; those of special tokens stay."""
    plain = [i for i, special in enumerate(row.special) if not special]
    offsets = list(row.offsets)
    spans = tiled_offsets(text, [row.tokens[i] for i in plain], [row.offsets[i] for i in plain])
    for i, span in zip(plain, spans):
        offsets[i] = span
    return replace(row, offsets=offsets)
