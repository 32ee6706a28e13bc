"""A sentencepiece `.model` file as a record (Kudo & Richardson, 2018), read by a bounded reader.

The sentencepiece library is not needed, and a hostile file reaches no C++ (CVE-2026-1260): every length is checked
against the bytes that exist, and nothing is kept before the whole file has been checked.
"""

import math
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from pellucid.errors import CorruptFileError, InputError
from pellucid.files import check_byte_count
from pellucid.text import protobuf
from pellucid.text.expansion import check_charsmap_size

MAX_BYTES = 32 * 2**20
MAX_PIECES = 2**19
"""Twice the largest vocabulary in use."""
MAX_PIECE_BYTES = 1024
MAX_VOCABULARY_BYTES = 8 * 2**20
"""Of all pieces; the library builds a trie with a node for each byte."""


class PieceKind(IntEnum):
    """The type of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The contents of a `.model` file. Ids index `pieces`; scores are log probabilities, or negative merge ranks."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[PieceKind, ...]
    is_bpe: bool
    """True for byte-pair encoding, False for a unigram model."""
    unknown: int
    """The id of the unknown piece."""
    byte_fallback: bool
    charsmap: bytes
    """The precompiled normalisation table; empty where characters are kept."""
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    def pieces_of_kind(self, *kinds: PieceKind) -> list[str]:
        """The pieces of these kinds, by id."""
        return [piece for piece, kind in zip(self.pieces, self.kinds) if kind in kinds]


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Reads a `.model` file.

    Raises CorruptFileError, stating the fault, for anything that the library would not have written, and InputError for
    types of models that no Transformer uses (words, characters, spaces after words).
    """
    check_byte_count(path, MAX_BYTES)
    try:
        return _model(path.read_bytes(), path)
    except (protobuf.InvalidMessageError, UnicodeDecodeError) as error:
        raise CorruptFileError(f"{path} is not a sentencepiece model: {error}") from error


def _model(data: bytes, path: Path) -> SentencePieceModel:
    pieces: dict[str, tuple[float, PieceKind]] = {}
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    _check_pieces(data)
    for number, kind, value in protobuf.fields(data):
        if kind == protobuf.BYTES and isinstance(value, bytes):
            if number == 1:
                _read_piece(pieces, value)
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update((n, v) for n, _, v in protobuf.fields(value))
    if not trainer or not normalizer:
        raise protobuf.InvalidMessageError("it ends before it says how it was trained and how it normalises")
    unknown = [i for i, (_, kind) in enumerate(pieces.values()) if kind is PieceKind.UNKNOWN]
    if len(unknown) != 1:
        raise protobuf.InvalidMessageError(f"it has {len(unknown)} unknown pieces among {len(pieces)}, expected one")
    kind = _integer_field(trainer, 3, 1)
    if kind not in (1, 2) or _integer_field(trainer, 24, 0):
        made_of = "word suffixes" if kind in (1, 2) else {3: "words", 4: "characters"}.get(kind, f"kind {kind}")
        raise InputError(f"{path} is a SentencePiece model of {made_of}, expected unigram or BPE")
    return SentencePieceModel(
        pieces=tuple(pieces),
        scores=tuple(score for score, _ in pieces.values()),
        kinds=tuple(kind for _, kind in pieces.values()),
        is_bpe=kind == 2,
        unknown=unknown[0],
        byte_fallback=bool(_integer_field(trainer, 35, 0)),
        charsmap=_checked_charsmap(normalizer.get(2, b"")),
        add_dummy_prefix=bool(_integer_field(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_integer_field(normalizer, 4, 1)),
        escape_whitespaces=bool(_integer_field(normalizer, 5, 1)),
    )


def _check_pieces(data: bytes) -> None:
    """Checks the whole file once without keeping anything, so that a broken one takes no memory."""
    count = total = 0
    for number, kind, value in protobuf.fields(data):
        if number == 1 and kind == protobuf.BYTES and isinstance(value, bytes):
            count, total = count + 1, total + len(value)
            if count > MAX_PIECES or total > 3 * MAX_VOCABULARY_BYTES or len(value) < 3:
                raise protobuf.InvalidMessageError(f"piece {count:,} has {len(value)} bytes after {total:,} in all")
    if count == 0:
        raise protobuf.InvalidMessageError("it has no pieces")


def _read_piece(pieces: dict[str, tuple[float, PieceKind]], message: bytes) -> None:
    text, score, kind = b"", 0.0, 1
    for number, form, value in protobuf.fields(message):
        if number == 1 and form == protobuf.BYTES and isinstance(value, bytes):
            text = value
        elif number == 2 and form == protobuf.FIXED32 and isinstance(value, bytes):
            score = protobuf.float32(value)
        elif number == 3 and form == protobuf.VARINT and isinstance(value, int):
            kind = value
    piece = text.decode()
    what = f"piece {len(pieces)} ({piece[:20]!a})"
    if not text or len(text) > MAX_PIECE_BYTES or "\0" in piece:
        raise protobuf.InvalidMessageError(
            f"{what} has {len(text)} bytes, expected 1 to {MAX_PIECE_BYTES} without a NUL"
        )
    if piece in pieces:
        raise protobuf.InvalidMessageError(f"{what} is there twice")
    if not math.isfinite(score) or not 1 <= kind <= 6:
        raise protobuf.InvalidMessageError(f"{what} has the score {score} and the kind {kind}")
    pieces[piece] = (score, PieceKind(kind))


def _integer_field(message: dict[int, int | bytes], field: int, default: int) -> int:
    value = message.get(field, default)
    if not isinstance(value, int):
        raise protobuf.InvalidMessageError(f"field {field} is no number")
    return protobuf.signed(value)


def _checked_charsmap(table: int | bytes) -> bytes:
    """The normalisation table: the size of a trie of 32-bit units, the trie, and NUL-terminated replacements."""
    if not isinstance(table, bytes) or (table and len(table) < 8):
        raise protobuf.InvalidMessageError("its normalisation table is cut short")
    if table:
        check_charsmap_size(table)
    return table
