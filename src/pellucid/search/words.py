"""The words of a text and of a query, by one rule for both; and what somebody meant who mistyped one."""

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

NEAR = 0.75
"""From here on two words count as one mistyped: 1 less the share of letters to change, two swapped ones as one."""

SHORTEST = 4
"""Letters of a word that can be mistyped; of shorter ones nearly every change is another word."""

MAX_WORDS = 64
"""Of a query; the others are left out of the search for words. Of its unknown words as many are taken for mistyped."""

MAX_ROWS = 50_000
"""In so many rows the words of a query may stand, the rarest first; more common ones would only cost time, since BM25
hardly counts them, as long as some row holds another. The rarest is always looked for."""

MAX_WORD_CHARACTERS = 64
"""Letters that are looked at of one word; longer ones are numbers in disguise, and no index should be made of them. Of
a script without spaces a run is a sentence, and all of it is looked at."""

_RUNS = re.compile(f"[{UNSPACED}]+|[^ {UNSPACED}]+")
_PLAIN = re.compile(r"[a-z0-9]+")
_VARIATION_SELECTORS = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Selectors of how a sign is drawn, which stand behind many an emoji and some Han."""

_POINTS = (
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
)
"""What says in Hebrew and in Arabic how a letter is spoken, which most texts leave out, and what makes one longer."""

_ACCENTS = re.compile(
    f"[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f{_POINTS}{_VARIATION_SELECTORS}]+"
)


@dataclass(frozen=True)
class QueryTerms:
    """What is looked for.

    terms: every word to look for.  corrected: the query with mistyped words put right; None where none was.
    common: words of the query that stand in too many rows (see `MAX_ROWS`), for where the others find nothing.
    """

    terms: tuple[str, ...]
    corrected: str | None
    common: tuple[str, ...] = ()


def split_words(text: str) -> list[str]:
    """Runs of letters, marks and digits, in lower case, without accents; a run ends where a script begins that puts no
    space between its words. "Müller's 手机X" -> muller, s, 手机, x."""
    if text.isascii():
        return [run[:MAX_WORD_CHARACTERS] for run in _PLAIN.findall(text.lower())]
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    joined = unicodedata.normalize("NFC", _ACCENTS.sub("", plain))
    return [
        run if is_unspaced(run) else run[:MAX_WORD_CHARACTERS] for run in _RUNS.findall("".join(map(_letter, joined)))
    ]


def terms(text: str) -> list[str]:
    """What the index of words keeps of a text: its words; in scripts without spaces each letter, and each two letters
    that stand side by side, which is as much as can be known without a dictionary."""
    return [term for run in split_words(text) for term in ([*_bigrams(run), *run] if is_unspaced(run) else [run])]


def parse_query(query: str, vocabulary: "Vocabulary") -> QueryTerms:
    """The words of a query; one that stands nowhere is taken for those nearest to it, the nearest of all put in its
    place in `corrected`."""
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
        elif run not in unknown and len(unknown) < MAX_WORDS:  # each is compared with the whole vocabulary
            unknown.add(run)
            if nearest := vocabulary.nearest_words(run):
                found |= dict.fromkeys(nearest)
                changes[run] = nearest[0]
    corrected = " ".join(changes.get(run, run) for run in runs) if changes else None
    words = list(found)[:MAX_WORDS]
    rare = _rare_words(words, vocabulary.document_frequencies)
    return QueryTerms(tuple(rare), corrected, tuple(word for word in words if word not in rare))


def _rare_words(words: list[str], document_frequencies: Mapping[str, int]) -> list[str]:
    """The words that are rare enough to be looked for, in their own order."""
    rare, rows = set(), 0
    for word in sorted(words, key=lambda word: (document_frequencies[word], word)):
        rows += document_frequencies[word]
        if rare and rows > MAX_ROWS:
            break
        rare.add(word)
    return [word for word in words if word in rare]


@dataclass
class Vocabulary:
    """Every word of an index.

    document_frequencies: in how many rows each stands, those that were deleted among them.
    deleted_rows: how many rows were deleted.  is_live: whether a word stands in one that was not.
    """

    document_frequencies: Mapping[str, int]
    deleted_rows: int = 0
    is_live: Callable[[str], bool] = lambda word: True

    def has_live_row(self, word: str) -> bool:
        """Whether a word stands in a row that was not deleted."""
        many = self.document_frequencies.get(word, 0)
        return many > self.deleted_rows or (many > 0 and (not self.deleted_rows or self.is_live(word)))

    @cached_property
    def words(self) -> list[str]:
        """In the order of their letters, so that equals among near ones do not depend on how they were read."""
        return sorted(self.document_frequencies)

    def nearest_words(self, word: str, limit: int = 3) -> list[str]:
        """The nearest words, those that stand in more rows first among equals (optimal string alignment)."""
        if len(word) < SHORTEST:
            return []
        try:
            from rapidfuzz import distance, process
        except ImportError as missing:
            advice = "pip install 'pellucid[search]', or to compare vectors alone pass ", Argument("mode", "dense")
            raise InputError("a search for words needs RapidFuzz: ", *advice) from missing
        similarity: Any = distance.OSA.normalized_similarity
        found = process.extract(word, self.words, scorer=similarity, limit=50, score_cutoff=NEAR)
        nearest = sorted(found, key=lambda hit: (-hit[1], -self.document_frequencies[hit[0]], hit[0]))
        return list(itertools.islice((one for one, _, _ in nearest if self.has_live_row(one)), limit))


@functools.lru_cache(4096)
def _letter(letter: str) -> str:
    """A letter, mark or digit as it is, a joiner as nothing, all else as a space."""
    kind = unicodedata.category(letter)
    return letter if kind[0] in "LMN" else "" if kind == "Cf" else " "


def _bigrams(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]
