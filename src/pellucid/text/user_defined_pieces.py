"""User-defined pieces of a sentencepiece model: they are kept as they are, and nothing is merged with them."""

import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers

from pellucid.errors import CorruptFileError
from pellucid.text.spm import PieceKind, SentencePieceModel

_MAX_PIECES = 4096
"""Number of pieces that a text can be searched for at once in negligible time."""
_PRIVATE = 0xF0000
"""The first of 65,534 private-use characters, which no text should contain and no normalisation table maps."""


def piece_splitter(pieces: Sequence[str]) -> Any:
    """A pre-tokenizer that splits a text before and after each of these pieces, at the longest that matches."""
    _check_number(pieces)
    longest_first = sorted(pieces, key=len, reverse=True)
    firsts = "".join(sorted({re.escape(piece[0]) for piece in pieces}))
    found = Regex(f"(?=[{firsts}])(?:{'|'.join(map(re.escape, longest_first))})")
    return pre_tokenizers.Split(found, behavior="isolated")


def unmerged_piece_splitters(merges: models.BPE, model: SentencePieceModel) -> list[Any]:
    """A pre-tokenizer that splits words which equal a piece that merges would not assemble, such as `</s>` in a text,
    since a model that looks up words whole (`ignore_merges`) would return that piece.

    Each is split where its own merges leave it in parts, so that the parts come out as if merged side by side.
    """
    cuts = []
    for piece, kind in zip(model.pieces, model.kinds):
        if len(piece) > 1 and kind is not PieceKind.USER:
            first = merges.tokenize(piece)[0]
            if first.value != piece or kind is not PieceKind.NORMAL:
                characters = piece.encode()[: first.offsets[1]].decode(errors="ignore")  # offsets count bytes
                cut = min(max(len(characters), 1), len(piece) - 1)
                cuts.append(rf"{re.escape(piece[:cut])}(?={re.escape(piece[cut:])}\z)")
    _check_number(cuts)
    return [pre_tokenizers.Split(Regex(rf"\A(?:{'|'.join(cuts)})"), behavior="isolated")] if cuts else []


def normalizers_sparing(pieces: Sequence[str], table: Any) -> list[Any]:
    """A normalizer that keeps these pieces: meanwhile each that it would change is replaced by one character."""
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
