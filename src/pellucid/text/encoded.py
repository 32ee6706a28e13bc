"""One text as the model sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pellucid.text.pieces import tiled_offsets


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

    def is_all_unknown(self, unknown: int | None) -> bool:
        """Whether it is unknown tokens alone, as a long sentence without spaces is to WordPiece.  unknown: their id."""
        return is_all_unknown(self.ids, self.special, unknown)


def is_all_unknown(ids: Sequence[int], special: Sequence[int], unknown: int | None) -> bool:
    """The same, of a text's ids, and of which of them are special."""
    return unknown in ids and all(id_ == unknown or mark for id_, mark in zip(ids, special))


def input_names(token_types: bool) -> list[str]:
    """What a tokenizer gives a model.  token_types: whether that tells the two texts of a pair apart."""
    return ["input_ids", *["token_type_ids"] * token_types, "attention_mask"]


Row = TypeVar("Row", bound=Encoded)


def with_tiled_offsets(row: Row, text: str) -> Row:
    """The row with the places of its tokens as sentencepiece counts them; special tokens stand nowhere."""
    plain = [i for i, special in enumerate(row.special) if not special]
    offsets = list(row.offsets)
    places = tiled_offsets(text, [row.tokens[i] for i in plain], [row.offsets[i] for i in plain])
    for i, place in zip(plain, places):
        offsets[i] = place
    return replace(row, offsets=offsets)
