"""Which words of a query matched which words of a hit."""

import re

import numpy as np
import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.search.entry import Entry
from pellucid.search.hits import hit_of
from pellucid.search.why import match


def test_words_of_a_query_match_their_counterparts(index: pellucid.Index) -> None:
    hit = index.search("coca cola", k=1)[0]
    matches = index.why("coca cola", hit)
    assert matches.text == ("Coca", "Cola", "Company", "The")  # hyphen and brackets are no words
    assert [(query_word, text_word) for query_word, text_word, _ in matches.pairs()] == [
        ("coca", "Coca"),
        ("cola", "Cola"),
    ]
    assert min(similarity for _, _, similarity in matches.pairs()) > 0.85
    assert np.abs(matches.similarity).max() <= 1 + 1e-6
    assert "id KO" in matches.summary and "BM25" in matches.summary


def test_negative_similarity_uses_the_minus_sign(minilm: pellucid.Model) -> None:
    description = match(minilm.loaded, "tea", hit_of(Entry("a-1", "tea"), -0.0454, -0.0004, 1.5)).summary
    assert description == "id a-1, score −0.045, similarity of the vectors 0.000, BM25 of the words 1.50"


def test_similarities_are_cosines_of_recorded_states(index: pellucid.Index, minilm: pellucid.Model) -> None:
    query, text = "microsfot drinks", "Coca-Cola Company (The)"
    matches = index.why(query, {"text": text})
    sides = []
    for sentence, words in ((query, [["micro", "##sf", "##ot"], ["drinks"]]), (text, None)):
        trace = minilm.trace(sentence)
        states, tokens = trace["layers.5.residual.post"][0], trace.tokens
        groups = words or [["coca"], ["cola"], ["company"], ["the"]]
        rows = [torch.stack([states[tokens.index(one)] for one in group]).mean(dim=0) for group in groups]
        sides.append(torch.nn.functional.normalize(torch.stack(rows), dim=-1))
    assert np.allclose(matches.similarity, (sides[0] @ sides[1].T).numpy(), atol=1e-5)


def test_spans_give_the_words(index: pellucid.Index) -> None:
    matches = index.why("Wie groß, naïve 東京 😀?", {"text": "  Ünder\tall — of\nit Cafe\u0301!"})
    for text, words, spans in zip(matches.texts, (matches.query, matches.text), matches.spans):
        assert tuple(text[slice(*span)] for span in spans) == words
    assert matches.text == ("Ünder", "all", "of", "it", "Cafe\u0301")


def test_long_text_is_compared_up_to_the_limit_and_reported(index: pellucid.Index) -> None:
    matches = index.why("tea", {"text": "tea and " * 4_000})
    assert len(matches.text) < 600
    assert re.search(r"not read: the last [\d,]+ tokens", matches.summary)


def test_prompt_affects_states_but_is_no_word(minilm: pellucid.Model) -> None:
    with_prompt = match(minilm.loaded, "tea", {"text": "green tea"}, "passage: ")
    assert with_prompt.text == ("green", "tea")
    assert with_prompt.spans[1] == ((0, 5), (6, 9))
    assert not np.allclose(with_prompt.similarity, match(minilm.loaded, "tea", {"text": "green tea"}).similarity)


def test_texts_without_words_are_handled(index: pellucid.Index) -> None:
    with pytest.raises(InputError, match="the query ' ' holds no words"):
        index.why(" ", {"text": "tea"})
    empty = index.why("tea", {"text": " ", "id": "7"})
    assert empty.pairs() == [] and empty.similarity.shape == (1, 0)
    assert "<table>" not in empty.view().html()
    assert index.why("?!", {"text": "tea"}).query == ("?", "!")  # better than no words
