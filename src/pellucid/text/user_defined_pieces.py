"""Pieces that a sentencepiece model's user gave it: they stay as they are, and nothing is merged with them."""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers

from pellucid.errors import CorruptFileError
from pellucid.text.spm import PieceKind, SentencePieceModel

_MAX_PIECES = 4096
"""So many pieces a text can be looked through for at once, in time that nobody notices."""
_PRIVATE = 0xF0000
"""The first of 65,534 characters that no text is meant to hold, and no table of normalisation knows."""


def piece_splitter(pieces: Sequence[str]) -> Any:
    """The step that cuts a text before and behind each of these pieces, the longest of those that begin alike."""
    _check_number(pieces)
    longest_first = sorted(pieces, key=len, reverse=True)
    firsts = "".join(sorted({re.escape(piece[0]) for piece in pieces}))
    found = Regex(f"(?=[{firsts}])(?:{'|'.join(map(re.escape, longest_first))})")
    return pre_tokenizers.Split(found, behavior="isolated")


def unmerged_piece_splitters(merges: models.BPE, model: SentencePieceModel) -> list[Any]:
    """The step that cuts stretches which are a piece by name, and which merges would not put together: `</s>` typed
    between two pieces. A model that takes stretches whole where it can (`ignore_merges`) would take them for the piece.

    Each is cut where its own merges leave it in parts, so the parts come out as if they had been merged side by side.
    """
    cuts = []
    for piece, kind in zip(model.pieces, model.kinds):
        if len(piece) > 1 and kind is not PieceKind.USER:
            first = merges.tokenize(piece)[0]
            if first.value != piece or kind is not PieceKind.NORMAL:
                characters = piece.encode()[: first.offsets[1]].decode(errors="ignore")  # offsets count bytes
                place = min(max(len(characters), 1), len(piece) - 1)
                cuts.append(rf"{re.escape(piece[:place])}(?={re.escape(piece[place:])}\z)")
    _check_number(cuts)
    return [pre_tokenizers.Split(Regex(rf"\A(?:{'|'.join(cuts)})"), behavior="isolated")] if cuts else []


def normalizers_sparing(pieces: Sequence[str], table: Any) -> list[Any]:
    """A normalisation, which leaves these pieces as they are: meanwhile each that it would change is one character."""
    changed = sorted((piece for piece in pieces if table.normalize_str(piece) != piece), key=len, reverse=True)
    _check_number(changed)
    pairs = [(piece, chr(_PRIVATE + i)) for i, piece in enumerate(changed)]
    before = [normalizers.Replace(piece, private) for piece, private in pairs]
    return [*before, table, *(normalizers.Replace(private, piece) for piece, private in pairs)]


def _check_number(pieces: Sequence[str]) -> None:
    if len(pieces) > _MAX_PIECES:
        raise CorruptFileError(
            f"a sentencepiece model with {len(pieces):,} pieces that stand in a text as they are, "
            f"expected at most {_MAX_PIECES:,}"
        )
