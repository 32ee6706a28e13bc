"""Which words of a query matched which words of a text: their vectors, compared pairwise."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError, format_count, shorten
from pellucid.machine import inference_mode
from pellucid.tasks.feature_extraction import states_of
from pellucid.text import Window, windows
from pellucid.text.truncation import visible_span
from pellucid.view.similarities import SimilarityView, Span, WordSimilarities, format_number


@dataclass(frozen=True, eq=False)
class Match:
    """The similarity of the words of a query and of a text, in their contexts: the cosine of their last hidden states,
    averaged over the tokens of each word (compare Khattab and Zaharia, 2020, arXiv:2004.12832).

    query, text: their words.  similarity: Float32[ndarray, "query text"], from -1 to 1.
    texts: the query and the text.  spans: of the words in each, in characters.  summary: a one-line summary of the hit.
    In a notebook it displays itself. It does not show why the whole texts are near: their vectors are made from all
    tokens together.
    """

    query: tuple[str, ...]
    text: tuple[str, ...]
    similarity: np.ndarray
    texts: tuple[str, str]
    spans: tuple[tuple[Span, ...], tuple[Span, ...]]
    summary: str = ""

    def pairs(self) -> list[tuple[str, str, float]]:
        """Each word of the query, the most similar word of the text, and their similarity; empty for a text without
        words."""
        if not self.text:
            return []
        best = self.similarity.argmax(axis=1)
        return [(word, self.text[j], float(self.similarity[i, j])) for i, (word, j) in enumerate(zip(self.query, best))]

    def view(self, theme: str | None = None) -> SimilarityView:
        """A page with the words of the text shaded by similarity, and all numbers.

        theme: "light" or "dark"; None for the reader's preference.
        """
        part = WordSimilarities(*self.texts, *self.spans, self.similarity.T, self.summary)
        return SimilarityView(part, theme=theme)

    def _repr_html_(self) -> str:
        return self.view()._repr_html_()


def match(loaded: Loaded, query: str, hit: Mapping[str, Any], prompt: str = "") -> Match:
    """Compares the words of a query with those of a hit's text; a text longer than the model's limit is truncated."""
    if not isinstance(query, str):
        raise InputError(f"the query is {type(query).__name__}, expected a text")
    text = hit.get("text") if isinstance(hit, Mapping) else None
    if not isinstance(text, str):
        raise InputError("the hit holds no text: give one of those that `search` found")
    query_spans, query_vectors, _ = _word_vectors(loaded, query, "")
    if not query_spans:
        raise InputError(f"the query {shorten(repr(query))} holds no words that could be compared")
    text_spans, text_vectors, cut = _word_vectors(loaded, text, prompt)
    spans = query_spans, text_spans
    words = [tuple(whole[slice(*span)] for span in some) for whole, some in zip((query, text), spans)]
    return Match(words[0], words[1], query_vectors @ text_vectors.T, (query, text), spans, _hit_summary(hit, cut))


def _hit_summary(hit: Mapping[str, Any], cut: int) -> str:
    """A one-line summary of a hit.  cut: the number of tokens of its text that were not read."""
    similarity, words = getattr(hit, "similarity", None), getattr(hit, "words", None)
    parts = [f"id {hit['id']}"] if "id" in hit else []
    parts += [f"score {format_number(hit['score'], 3)}"] if "score" in hit else []
    parts += [f"similarity of the vectors {format_number(similarity, 3)}"] if similarity is not None else []
    parts += [f"BM25 of the words {format_number(words)}"] if words is not None else []
    parts += [f"not read: the last {format_count(cut, 'token')}"] if cut else []
    return ", ".join(parts)


def _word_vectors(loaded: Loaded, text: str, prompt: str) -> tuple[tuple[Span, ...], np.ndarray, int]:
    """The spans of the words of a text; their vectors, of length 1: Float32[ndarray, "words hidden"]; and the number of
    tokens cut off."""
    (window,) = windows(loaded.required_tokenizer, prompt + text, rule="truncate", max_length=loaded.pooling_length())
    every = _word_spans(window, len(prompt))
    word_spans = [
        word_span for word_span in every if not _is_punctuation((prompt + text)[slice(*word_span[2])])
    ] or every
    states = _states(loaded, window)
    vectors = np.array([states[first:last].mean(axis=0) for first, last, _ in word_spans]).reshape(-1, states.shape[1])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    spans = tuple(visible_span(text, first - len(prompt), last - len(prompt)) for _, _, (first, last) in word_spans)
    return spans, vectors, window.cut


def _states(loaded: Loaded, window: Window) -> np.ndarray:
    """The last hidden states: Float32[ndarray, "seq hidden"]"""
    with inference_mode():
        states = states_of(loaded.module.packed_copy(), as_batch(loaded, [window.ids], [window.type_ids]))
        return states[0].float().cpu().numpy()


def _is_punctuation(word: str) -> bool:
    """Whether a word is only punctuation, whose vector is similar to nearly everything."""
    return all(unicodedata.category(letter)[0] in "PZ" or letter in "`^~" for letter in word)


def _word_spans(window: Window, start: int) -> list[tuple[int, int, tuple[int, int]]]:
    """The token span and the character span of each word, without those of a prompt."""
    found: list[tuple[int, int, tuple[int, int]]] = []
    before = None
    for i, (word, (first, last)) in enumerate(zip(window.words, window.offsets)):
        first = max(first, start)  # some tokenizers count the space before a word, here the prompt's
        if word is not None and last > first:
            if word == before and found:
                opened, _, span = found[-1]
                found[-1] = (opened, i + 1, (span[0], last))
            else:
                found.append((i, i + 1, (first, last)))
        before = word
    return found
