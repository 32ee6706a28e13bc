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
from pellucid.text.cut import guarded
from pellucid.text.wordpiece import wordpiece

log = logging.getLogger("pellucid")

USUAL_SIZE = 8_000
"""Tokens of a vocabulary where nobody says how many; of single characters, all that there are."""

DIGITS = 6
"""Of a piece's score: what stands behind them depends on the order of sums, which the library leaves to chance."""

_STEP = 1e-4
"""By so much the library tells the scores of characters apart that it has put back, in an order left to chance."""


@dataclass(frozen=True)
class Wanted:
    """What is to be learned, from what.

    size: tokens, special ones among them.  special: these, in the order of their ids.  unknown: the one among them that
    stands for what is not known.  least: how often a pair is seen that is joined.  cleaning: what is done to a text
    first; None for nothing.
    """

    corpus: Corpus
    size: int | None
    special: tuple[str, ...]
    unknown: str | None
    least: int
    cleaning: Any

    @property
    def many(self) -> int:
        """The size, where it is not that of the texts."""
        return USUAL_SIZE if self.size is None else self.size

    def letters(self) -> set[str]:
        """Every character that the cleaned texts hold and that is no space."""
        return {one for one in self.corpus.characters(self.cleaning) if not one.isspace()}

    def room_for(self, needed: int, what: str) -> None:
        """Refuses a vocabulary with fewer tokens than there have to be."""
        least = needed + len(self.special)
        if self.many < least:
            raise InputError(
                f"vocab_size is {self.many}, expected at least {least}: {what}, and {len(self.special)} special tokens"
            )

    def shell(self, model: Any) -> tokenizers.Tokenizer:
        """A tokenizer that cleans texts first."""
        backend = tokenizers.Tokenizer(model)
        if self.cleaning is not None:
            backend.normalizer = self.cleaning
        return backend

    def learn(self, backend: tokenizers.Tokenizer, trainer: Callable[..., Any], *parts: str, **told: Any) -> None:
        """The library reads the texts and learns; what is wrong with a file is said as the file's reader says it.

        parts: tokens that are known beforehand, behind the special ones.  told: what this trainer alone is told.
        """
        known = [*self.special, *parts]
        with guarded():
            teacher = trainer(vocab_size=self.many, special_tokens=known, show_progress=False, **told)
            backend.train_from_iterator(iter(self.corpus), teacher)


def pairs(wanted: Wanted) -> tokenizers.Tokenizer:
    """Pairs of bytes, joined the most frequent first (Sennrich et al., 2015, arXiv:1508.07909; of bytes: Radford et
    al., 2019, section 2.2)."""
    wanted.letters()  # refuses texts that hold nothing
    wanted.room_for(256, "the 256 bytes")
    backend = wanted.shell(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    wanted.learn(backend, trainers.BpeTrainer, min_frequency=wanted.least, initial_alphabet=letters)
    return backend


def words(wanted: Wanted) -> tokenizers.Tokenizer:
    """Words, and `##` parts that go on with one (Schuster and Nakajima, 2012; Devlin et al., 2018, arXiv:1810.04805).

    The library numbers the parts of one character as it meets them, in an order that is left to chance, and ties
    between pairs go by number. So they are told beforehand, as if they were special tokens.
    """
    splitter, letters = pre_tokenizers.BertPreTokenizer(), wanted.letters()
    parts = sorted(f"##{one}" for one in letters if len(splitter.pre_tokenize_str(f"a{one}")) == 1)
    wanted.room_for(len(letters) + len(parts), f"the {len(letters)} characters of these texts, also as parts of words")
    backend = wanted.shell(models.WordPiece(unk_token=wanted.unknown or ""))
    backend.pre_tokenizer = splitter
    wanted.learn(backend, trainers.WordPieceTrainer, *parts, min_frequency=wanted.least)
    return wordpiece(backend.get_vocab(), wanted.unknown or "", wanted.cleaning)


def pieces(wanted: Wanted) -> tokenizers.Tokenizer:
    """Pieces by their probability, spaces written as `▁` (Kudo, 2018, arXiv:1804.10959)."""
    letters = wanted.letters()
    wanted.room_for(len(letters) + 1, f"the {len(letters)} characters of these texts and the space")
    backend = wanted.shell(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    wanted.learn(backend, trainers.UnigramTrainer, unk_token=wanted.unknown)
    done = wanted.shell(models.Unigram(_scored(backend, wanted), wanted.special.index(wanted.unknown or ""), False))
    done.pre_tokenizer, done.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return done


def _scored(backend: tokenizers.Tokenizer, wanted: Wanted) -> list[tuple[str, float]]:
    """The special tokens and then the pieces, the likeliest first, with scores that are the same each time."""
    found = [tuple(one) for one in json.loads(backend.to_str())["model"]["vocab"] if one[0] not in wanted.special]
    lowest = min(score for _, score in found)
    band = lowest + _STEP * sum(len(piece) == 1 for piece, _ in found)
    even = [(piece, lowest if len(piece) == 1 and score <= band else score) for piece, score in found]
    rounded = [(piece, round(score, DIGITS)) for piece, score in even]
    return [*((token, 0.0) for token in wanted.special), *sorted(rounded, key=lambda one: (-one[1], one[0]))]


def characters(wanted: Wanted) -> tokenizers.Tokenizer:
    """Each character for itself, in the order of Unicode; where there are too many, the most frequent."""
    seen = wanted.corpus.characters(wanted.cleaning)
    for token in wanted.special:
        del seen[token]
    room = len(seen) if wanted.size is None else wanted.size - len(wanted.special)
    if room < 1 or (room < len(seen) and wanted.unknown is None):
        raise InputError(
            f"vocab_size is {wanted.size}, and {wanted.corpus.name} has {len(seen)} characters beside "
            f"{len(wanted.special)} special tokens: ask for more, or name a token for those that are left out, ",
            Argument("special_tokens", {"unk": "<unk>"}),
        )
    kept = sorted(sorted(seen, key=lambda one: (-seen[one], one))[:room])
    vocabulary = {token: i for i, token in enumerate([*wanted.special, *kept])}
    known = {} if wanted.unknown is None else {"unk_token": wanted.unknown}
    backend = wanted.shell(models.WordLevel(vocabulary, **known))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


KINDS: dict[str, Callable[[Wanted], tokenizers.Tokenizer]] = {
    "bpe": pairs,
    "wordpiece": words,
    "unigram": pieces,
    "characters": characters,
}
"""Each by the name that people know it by."""


def learned(kind: str, wanted: Wanted) -> tokenizers.Tokenizer:
    """A tokenizer of this kind, without what stands around texts; a note says where the texts did not give enough."""
    backend = KINDS[kind](wanted)
    found = backend.get_vocab_size()
    if wanted.size is not None and found < wanted.size:
        said = wanted.corpus.name, found, wanted.size
        log.warning("%s gave %d tokens, %d were asked for: its texts hold no more", *said)
    return backend
