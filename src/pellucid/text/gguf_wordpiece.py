"""WordPiece from the vocabulary inside a GGUF file, which marks words its own way and seldom states their case."""

import logging
import unicodedata

import tokenizers
from tokenizers import normalizers

from pellucid.errors import join_names
from pellucid.text.gguf_vocabulary import Vocabulary
from pellucid.text.piece_offsets import SPACE
from pellucid.text.spm import PieceKind
from pellucid.text.wordpiece import wordpiece

log = logging.getLogger("pellucid")


def bert_tokens(vocabulary: Vocabulary) -> list[str]:
    """The tokens with `##` before those that continue a word; the file marks those that begin one, by `▁`."""
    written = []
    for token, kind in vocabulary.tokens_and_kinds():
        whole = kind in (PieceKind.CONTROL, PieceKind.UNKNOWN) or (token.startswith("[") and token.endswith("]"))
        written.append(token[1:] if token.startswith(SPACE) else token if whole else f"##{token}")
    return written


def build_wordpiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """WordPiece (Devlin et al., 2018) with the tokens of `bert_tokens`."""
    lowercase, strip_accents = _casing(vocabulary)
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    return wordpiece(vocabulary.token_ids(), vocabulary.token_of_role("unk") or "[UNK]", normalizer)


def _casing(vocabulary: Vocabulary) -> tuple[bool, bool]:
    """Whether texts are lower-cased, and whether accents are stripped.

    Where the file states neither, the vocabulary decides: one from lower-cased texts has no capitals, and one from
    texts without accents has none. Otherwise accents are stripped from lower-cased texts, as in BERT and llama.cpp.
    """
    lowercase, strip = (vocabulary.flags.get(f"normalizer.{name}") for name in ("lowercase", "strip_accents"))
    words = [
        word for word, kind in vocabulary.tokens_and_kinds() if kind == PieceKind.NORMAL and not word.startswith("[")
    ]
    if lowercase is None:
        capitals = [word for word in words if word != word.lower()]
        lowercase = not capitals
        if capitals:
            _warn(vocabulary, "lowercase", capitals, "lowercased")
        accented = [word for word in words if lowercase and _accented(word)]
        if strip is None and accented:
            _warn(vocabulary, "strip_accents", accented, "stripped of accents")
            strip = False
    return lowercase, lowercase if strip is None else strip


def _accented(word: str) -> bool:
    return not word.isascii() and any(unicodedata.category(c) == "Mn" for c in unicodedata.normalize("NFD", word))


def _warn(vocabulary: Vocabulary, key: str, words: list[str], done: str) -> None:
    log.warning(
        "%s: tokenizer.ggml.normalizer.%s is missing; since the vocabulary has %s, texts are not %s",
        vocabulary.source,
        key,
        join_names(map(ascii, words), 3),
        done,
    )
