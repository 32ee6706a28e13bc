"""The four kinds of tokenizers that can be trained. The `tokenizers` library trains; that the same texts give the same
vocabulary is ensured here."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from pellucid.errors import Argument, InputError, format_count
from pellucid.text.corpus import Corpus
from pellucid.text.truncation import panics_as_errors
from pellucid.text.wordpiece import wordpiece

log = logging.getLogger("pellucid")

DEFAULT_VOCAB_SIZE = 8_000
"""Size of a vocabulary where none is requested; for single characters, all of them."""

DIGITS = 6
"""Decimal places of a piece's score; further ones depend on the order of sums, which varies in the library."""

_STEP = 1e-4
"""The library separates the scores of characters that it adds back by this much, in an order that varies."""


@dataclass(frozen=True)
class TokenizerSpec:
    """What to train, on what.

    size: number of tokens, special tokens included; None for the default.
    special_tokens: in the order of their ids.  unk_token: the one of them for unknown text.
    min_frequency: the least number of occurrences of a pair that is merged.
    normalizer: applied to texts first; None for no normalisation.
    """

    corpus: Corpus
    size: int | None
    special_tokens: tuple[str, ...]
    unk_token: str | None
    min_frequency: int
    normalizer: Any

    @property
    def vocab_size(self) -> int:
        """`size`, or its default."""
        return DEFAULT_VOCAB_SIZE if self.size is None else self.size

    def alphabet(self) -> set[str]:
        """All characters of the normalised texts except white space."""
        return {one for one in self.corpus.character_counts(self.normalizer) if not one.isspace()}

    def check_size(self, needed: int, what: str) -> None:
        """Raises InputError for a vocabulary smaller than the number of tokens needed."""
        least = needed + len(self.special_tokens)
        if self.vocab_size < least:
            raise InputError(
                f"vocab_size is {self.vocab_size}, expected at least {least}: {what}, "
                f"and {format_count(len(self.special_tokens), 'special token')}"
            )

    def backend_with(self, model: Any) -> tokenizers.Tokenizer:
        """A tokenizer of this model and the normalizer."""
        backend = tokenizers.Tokenizer(model)
        if self.normalizer is not None:
            backend.normalizer = self.normalizer
        return backend

    def train(
        self, backend: tokenizers.Tokenizer, trainer_class: Callable[..., Any], *parts: str, **options: Any
    ) -> None:
        """Trains the backend on the texts; errors of reading a file are raised as they are.

        parts: tokens fixed beforehand, after the special ones.  options: options of this trainer.
        """
        known = [*self.special_tokens, *parts]
        with panics_as_errors():
            trainer = trainer_class(vocab_size=self.vocab_size, special_tokens=known, show_progress=False, **options)
            backend.train_from_iterator(iter(self.corpus), trainer)


def train_bpe(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Byte-pair encoding, which merges the most frequent pairs first (Sennrich et al., 2015, arXiv:1508.07909; of
    bytes: Radford et al., 2019, section 2.2)."""
    spec.alphabet()  # raises for texts without content
    spec.check_size(256, "the 256 bytes")
    backend = spec.backend_with(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    spec.train(backend, trainers.BpeTrainer, min_frequency=spec.min_frequency, initial_alphabet=letters)
    return backend


def train_wordpiece(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Words, and `##` parts that continue a word (Schuster and Nakajima, 2012; Devlin et al., 2018, arXiv:1810.04805).

    The library numbers single-character parts in an order that varies, and breaks ties between pairs by number. So
    these parts are passed beforehand, as if they were special tokens.
    """
    splitter, letters = pre_tokenizers.BertPreTokenizer(), spec.alphabet()
    parts = sorted(f"##{one}" for one in letters if len(splitter.pre_tokenize_str(f"a{one}")) == 1)
    spec.check_size(len(letters) + len(parts), f"the {len(letters)} characters of these texts, also as parts of words")
    backend = spec.backend_with(models.WordPiece(unk_token=spec.unk_token or ""))
    backend.pre_tokenizer = splitter
    spec.train(backend, trainers.WordPieceTrainer, *parts, min_frequency=spec.min_frequency)
    return wordpiece(backend.get_vocab(), spec.unk_token or "", spec.normalizer)


def train_unigram(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Pieces by their probability, with spaces written as `▁` (Kudo, 2018, arXiv:1804.10959)."""
    letters = spec.alphabet()
    spec.check_size(len(letters) + 1, f"the {len(letters)} characters of these texts and the space")
    backend = spec.backend_with(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    spec.train(backend, trainers.UnigramTrainer, unk_token=spec.unk_token)
    done = spec.backend_with(
        models.Unigram(_stable_scores(backend, spec), spec.special_tokens.index(spec.unk_token or ""), False)
    )
    done.pre_tokenizer, done.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return done


def _stable_scores(backend: tokenizers.Tokenizer, spec: TokenizerSpec) -> list[tuple[str, float]]:
    """The special tokens, then the pieces by descending score, with scores that are the same each time."""
    found = [tuple(one) for one in json.loads(backend.to_str())["model"]["vocab"] if one[0] not in spec.special_tokens]
    lowest = min(score for _, score in found)
    band = lowest + _STEP * sum(len(piece) == 1 for piece, _ in found)
    even = [(piece, lowest if len(piece) == 1 and score <= band else score) for piece, score in found]
    rounded = [(piece, round(score, DIGITS)) for piece, score in even]
    return [*((token, 0.0) for token in spec.special_tokens), *sorted(rounded, key=lambda one: (-one[1], one[0]))]


def train_characters(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Single characters, in the order of Unicode; where there are too many, the most frequent."""
    counts = spec.corpus.character_counts(spec.normalizer)
    for token in spec.special_tokens:
        del counts[token]
    room = len(counts) if spec.size is None else spec.size - len(spec.special_tokens)
    if room < 1 or (room < len(counts) and spec.unk_token is None):
        raise InputError(
            f"vocab_size is {spec.size}, and {spec.corpus.name} has {format_count(len(counts), 'character')} beside "
            f"{format_count(len(spec.special_tokens), 'special token')}: ask for more, or name a token for "
            "those that are left out, ",
            Argument("special_tokens", {"unk": "<unk>"}),
        )
    letters = sorted(sorted(counts, key=lambda one: (-counts[one], one))[:room])
    vocabulary = {token: i for i, token in enumerate([*spec.special_tokens, *letters])}
    known = {} if spec.unk_token is None else {"unk_token": spec.unk_token}
    backend = spec.backend_with(models.WordLevel(vocabulary, **known))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


TRAINERS: dict[str, Callable[[TokenizerSpec], tokenizers.Tokenizer]] = {
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
    "characters": train_characters,
}
"""The trainers by the common names of their kinds."""


def train_backend(kind: str, spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """A trained tokenizer without its template; logs where the texts yield fewer tokens than requested."""
    backend = TRAINERS[kind](spec)
    found = backend.get_vocab_size()
    if spec.size is not None and found < spec.size:
        sizes = spec.corpus.name, found, spec.size
        log.warning("%s gave %d tokens instead of the requested %d: the texts hold no more", *sizes)
    return backend
