"""The four kinds of tokenizers that are learned. The search is the `tokenizers` library's; that the same texts give the
same vocabulary is ours."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from pellucid.errors import Argument, InputError
from pellucid.text.corpus import Corpus
from pellucid.text.cut import panics_as_errors
from pellucid.text.wordpiece import wordpiece

log = logging.getLogger("pellucid")

DEFAULT_VOCAB_SIZE = 8_000
"""Tokens of a vocabulary where nobody says how many; of single characters, all that there are."""

DIGITS = 6
"""Of a piece's score: what stands behind them depends on the order of sums, which the library leaves to chance."""

_STEP = 1e-4
"""By so much the library tells the scores of characters apart that it has put back, in an order left to chance."""


@dataclass(frozen=True)
class TokenizerSpec:
    """What is to be learned, from what.

    size: tokens, special ones among them.
    special_tokens: these, in the order of their ids.  unk_token: the one among them that stands for what is not known.
    min_frequency: how often a pair is seen that is joined.
    normalizer: what is done to a text first; None for nothing.
    """

    corpus: Corpus
    size: int | None
    special_tokens: tuple[str, ...]
    unk_token: str | None
    min_frequency: int
    normalizer: Any

    @property
    def vocab_size(self) -> int:
        """The size, where it is not that of the texts."""
        return DEFAULT_VOCAB_SIZE if self.size is None else self.size

    def alphabet(self) -> set[str]:
        """Every character that the cleaned texts hold and that is no space."""
        return {one for one in self.corpus.character_counts(self.normalizer) if not one.isspace()}

    def check_size(self, needed: int, what: str) -> None:
        """Refuses a vocabulary with fewer tokens than there have to be."""
        least = needed + len(self.special_tokens)
        if self.vocab_size < least:
            raise InputError(
                f"vocab_size is {self.vocab_size}, expected at least {least}: {what}, "
                f"and {len(self.special_tokens)} special tokens"
            )

    def backend_with(self, model: Any) -> tokenizers.Tokenizer:
        """A tokenizer that cleans texts first."""
        backend = tokenizers.Tokenizer(model)
        if self.normalizer is not None:
            backend.normalizer = self.normalizer
        return backend

    def train(
        self, backend: tokenizers.Tokenizer, trainer_class: Callable[..., Any], *parts: str, **options: Any
    ) -> None:
        """The library reads the texts and learns; what is wrong with a file is said as the file's reader says it.

        parts: tokens that are known beforehand, behind the special ones.  options: what this trainer alone takes.
        """
        known = [*self.special_tokens, *parts]
        with panics_as_errors():
            trainer = trainer_class(vocab_size=self.vocab_size, special_tokens=known, show_progress=False, **options)
            backend.train_from_iterator(iter(self.corpus), trainer)


def train_bpe(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Pairs of bytes, joined the most frequent first (Sennrich et al., 2015, arXiv:1508.07909; of bytes: Radford et
    al., 2019, section 2.2)."""
    spec.alphabet()  # refuses texts that hold nothing
    spec.check_size(256, "the 256 bytes")
    backend = spec.backend_with(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    spec.train(backend, trainers.BpeTrainer, min_frequency=spec.min_frequency, initial_alphabet=letters)
    return backend


def train_wordpiece(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Words, and `##` parts that go on with one (Schuster and Nakajima, 2012; Devlin et al., 2018, arXiv:1810.04805).

    The library numbers the parts of one character as it meets them, in an order that is left to chance, and ties
    between pairs go by number. So they are told beforehand, as if they were special tokens.
    """
    splitter, letters = pre_tokenizers.BertPreTokenizer(), spec.alphabet()
    parts = sorted(f"##{one}" for one in letters if len(splitter.pre_tokenize_str(f"a{one}")) == 1)
    spec.check_size(len(letters) + len(parts), f"the {len(letters)} characters of these texts, also as parts of words")
    backend = spec.backend_with(models.WordPiece(unk_token=spec.unk_token or ""))
    backend.pre_tokenizer = splitter
    spec.train(backend, trainers.WordPieceTrainer, *parts, min_frequency=spec.min_frequency)
    return wordpiece(backend.get_vocab(), spec.unk_token or "", spec.normalizer)


def train_unigram(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Pieces by their probability, spaces written as `▁` (Kudo, 2018, arXiv:1804.10959)."""
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
    """The special tokens and then the pieces, the likeliest first, with scores that are the same each time."""
    found = [tuple(one) for one in json.loads(backend.to_str())["model"]["vocab"] if one[0] not in spec.special_tokens]
    lowest = min(score for _, score in found)
    band = lowest + _STEP * sum(len(piece) == 1 for piece, _ in found)
    even = [(piece, lowest if len(piece) == 1 and score <= band else score) for piece, score in found]
    rounded = [(piece, round(score, DIGITS)) for piece, score in even]
    return [*((token, 0.0) for token in spec.special_tokens), *sorted(rounded, key=lambda one: (-one[1], one[0]))]


def train_characters(spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """Each character for itself, in the order of Unicode; where there are too many, the most frequent."""
    counts = spec.corpus.character_counts(spec.normalizer)
    for token in spec.special_tokens:
        del counts[token]
    room = len(counts) if spec.size is None else spec.size - len(spec.special_tokens)
    if room < 1 or (room < len(counts) and spec.unk_token is None):
        raise InputError(
            f"vocab_size is {spec.size}, and {spec.corpus.name} has {len(counts)} characters beside "
            f"{len(spec.special_tokens)} special tokens: ask for more, or name a token for those that are left out, ",
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
"""Each by the name that people know it by."""


def train_backend(kind: str, spec: TokenizerSpec) -> tokenizers.Tokenizer:
    """A tokenizer of this kind, without what stands around texts; a note says where the texts did not give enough."""
    backend = TRAINERS[kind](spec)
    found = backend.get_vocab_size()
    if spec.size is not None and found < spec.size:
        sizes = spec.corpus.name, found, spec.size
        log.warning("%s yields %d tokens instead of the requested %d: its texts hold no more", *sizes)
    return backend
