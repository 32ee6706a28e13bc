"""Splits texts and queries into words by one rule, and corrects mistyped words of a query."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.errors import Argument, InputError
from pellucid.lazy import cached_property
from pellucid.text.unspaced import UNSPACED, is_unspaced

MIN_SIMILARITY = 0.75
"""The least similarity for a correction: 1 minus the share of letters edited, where swapping two counts as one edit."""

MIN_LENGTH = 4
"""The least number of letters for a correction; nearly every edit of a shorter word is another word."""

MAX_WORDS = 64
"""Words of a query; further ones are not searched for. At most as many unknown words are corrected."""

MAX_ROWS = 50_000
"""The words of a query are searched for, the rarest first, until this many rows contain them; more common ones would
only cost time, since BM25 hardly counts them, as long as a row contains another. The rarest is always searched for."""

MAX_WORD_CHARACTERS = 64
"""Characters kept of one word; longer ones are usually numbers, which should not fill an index. In a script without
spaces a run is a sentence, and is kept whole."""

_RUNS = re.compile(f"[{UNSPACED}]+|[^ {UNSPACED}]+")
_PLAIN = re.compile(r"[a-z0-9]+")
_VARIATION_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Variation selectors, which follow many an emoji and some Han characters."""

_POINTS = (
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
)
"""Vowel and cantillation marks of Hebrew and Arabic, which most texts leave out, and the Arabic tatweel."""

_ACCENTS = re.compile(
    f"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f{_POINTS}{_VARIATION_SELECTORS}]+"
)


@dataclass(frozen=True)
class QueryTerms:
    """The parsed words of a query.

    terms: the words to search for.  corrected: the query with mistyped words corrected; None where there was none.
    common: words of the query that too many rows contain (see `MAX_ROWS`), for queries without any other match.
    """

    terms: tuple[str, ...]
    corrected: str | None
    common: tuple[str, ...] = ()


def split_words(text: str) -> list[str]:
    """Runs of letters, marks and digits, in lower case, without accents; a run also ends where a script without spaces
    begins or ends. "Müller's 手机X" -> muller, s, 手机, x."""
    if text.isascii():
        return [run[:MAX_WORD_CHARACTERS] for run in _PLAIN.findall(text.lower())]
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    joined = unicodedata.normalize("NFC", _ACCENTS.sub("", plain))
    return [
        run if is_unspaced(run) else run[:MAX_WORD_CHARACTERS] for run in _RUNS.findall("".join(map(_letter, joined)))
    ]


def terms(text: str) -> list[str]:
    """The terms that are indexed of a text: its words; in scripts without spaces each character and each pair of
    adjacent characters, the most that is possible without a dictionary."""
    return [term for run in split_words(text) for term in ([*_bigrams(run), *run] if is_unspaced(run) else [run])]


def parse_query(query: str, vocabulary: "Vocabulary") -> QueryTerms:
    """The words of a query; an unknown word is replaced by the nearest known ones, and in `corrected` by the nearest of
    all."""
    found: dict[str, None] = {}
    changes: dict[str, str] = {}
    unknown: set[str] = set()
    runs = split_words(query)
    for run in runs:
        if len(found) >= MAX_WORDS:
            break
        if is_unspaced(run):
            found |= dict.fromkeys(term for term in _bigrams(run) or [run] if term in vocabulary.document_frequencies)
        elif vocabulary.has_live_row(run):
            found[run] = None
        elif run not in unknown and len(unknown) < MAX_WORDS:  # each is compared with all of the vocabulary
            unknown.add(run)
            if nearest := vocabulary.nearest_words(run):
                found |= dict.fromkeys(nearest)
                changes[run] = nearest[0]
    corrected = " ".join(changes.get(run, run) for run in runs) if changes else None
    words = list(found)[:MAX_WORDS]
    rare = _rare_words(words, vocabulary.document_frequencies)
    return QueryTerms(tuple(rare), corrected, tuple(word for word in words if word not in rare))


def _rare_words(words: list[str], document_frequencies: Mapping[str, int]) -> list[str]:
    """The words that are rare enough to search for, in their own order."""
    rare, rows = set(), 0
    for word in sorted(words, key=lambda word: (document_frequencies[word], word)):
        rows += document_frequencies[word]
        if rare and rows > MAX_ROWS:
            break
        rare.add(word)
    return [word for word in words if word in rare]


@dataclass
class Vocabulary:
    """All words of an index.

    document_frequencies: how many rows contain each word, deleted rows included.
    deleted_rows: the number of deleted rows.  is_live: whether a row that is not deleted contains a word.
    """

    document_frequencies: Mapping[str, int]
    deleted_rows: int = 0
    is_live: Callable[[str], bool] = lambda word: True

    def has_live_row(self, word: str) -> bool:
        """Whether a row that is not deleted contains a word."""
        frequency = self.document_frequencies.get(word, 0)
        return frequency > self.deleted_rows or (frequency > 0 and (not self.deleted_rows or self.is_live(word)))

    @cached_property
    def words(self) -> list[str]:
        """All words, sorted, so that ties between near words do not depend on the order of reading."""
        return sorted(self.document_frequencies)

    def nearest_words(self, word: str, limit: int = 3) -> list[str]:
        """The nearest words by optimal string alignment; of equally near ones those in more rows first."""
        if len(word) < MIN_LENGTH:
            return []
        try:
            from rapidfuzz import distance, process
        except ImportError as missing:
            advice = "pip install 'pellucid[search]', or to compare vectors alone pass ", Argument("mode", "dense")
            raise InputError("a search for words needs RapidFuzz: ", *advice) from missing
        similarity: Any = distance.OSA.normalized_similarity
        found = process.extract(word, self.words, scorer=similarity, limit=None, score_cutoff=MIN_SIMILARITY)
        nearest = sorted(found, key=lambda hit: (-hit[1], -self.document_frequencies[hit[0]], hit[0]))
        return list(itertools.islice((one for one, _, _ in nearest if self.has_live_row(one)), limit))


@functools.lru_cache(4096)
def _letter(letter: str) -> str:
    """A letter, mark or digit as it is, a format character as nothing, anything else as a space."""
    kind = unicodedata.category(letter)
    return letter if kind[0] in "LMN" else "" if kind == "Cf" else " "


def _bigrams(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]
