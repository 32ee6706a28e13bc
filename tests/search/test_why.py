"""Which words of a query matched which words of a hit."""

import re

import numpy as np
import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.search.entry import Entry
from pellucid.search.hits import Hit
from pellucid.search.why import match


def test_each_word_of_a_query_finds_its_own(index: pellucid.Index) -> None:
    hit = index.search("coca cola", k=1)[0]
    found = index.why("coca cola", hit)
    assert found.text == ("Coca", "Cola", "Company", "The")  # hyphen and brackets are no words
    assert [(mine, theirs) for mine, theirs, _ in found.pairs()] == [("coca", "Coca"), ("cola", "Cola")]
    assert min(like for _, _, like in found.pairs()) > 0.85
    assert np.abs(found.similarity).max() <= 1 + 1e-6
    assert "id KO" in found.summary and "BM25" in found.summary


def test_a_similarity_below_zero_has_the_minus_of_the_page(minilm: pellucid.Model) -> None:
    said = match(minilm.loaded, "tea", Hit(Entry("a-1", "tea"), -0.0454, -0.0004, 1.5)).summary
    assert said == "id a-1, score −0.045, similarity of the vectors 0.000, BM25 of the words 1.50"


def test_the_numbers_are_cosines_of_recorded_states(index: pellucid.Index, minilm: pellucid.Model) -> None:
    query, text = "microsfot drinks", "Coca-Cola Company (The)"
    found = index.why(query, {"text": text})
    sides = []
    for said, words in ((query, [["micro", "##sf", "##ot"], ["drinks"]]), (text, None)):
        trace = minilm.trace(said)
        states, tokens = trace["layers.5.residual.post"][0], trace.tokens
        groups = words or [["coca"], ["cola"], ["company"], ["the"]]
        rows = [torch.stack([states[tokens.index(one)] for one in group]).mean(dim=0) for group in groups]
        sides.append(torch.nn.functional.normalize(torch.stack(rows), dim=-1))
    assert np.allclose(found.similarity, (sides[0] @ sides[1].T).numpy(), atol=1e-5)


def test_words_stand_where_they_are_said_to(index: pellucid.Index) -> None:
    found = index.why("Wie groß, naïve 東京 😀?", {"text": "  Ünder\tall — of\nit Cafe\u0301!"})
    for whole, words, spans in zip(found.texts, (found.query, found.text), found.spans):
        assert tuple(whole[slice(*span)] for span in spans) == words
    assert found.text == ("Ünder", "all", "of", "it", "Cafe\u0301")


def test_a_long_text_is_compared_as_far_as_the_model_reads_and_that_is_said(index: pellucid.Index) -> None:
    found = index.why("tea", {"text": "tea and " * 4_000})
    assert len(found.text) < 600
    assert re.search(r"not read: the last [\d,]+ tokens", found.summary)


def test_a_prompt_belongs_to_the_text_and_is_no_word_of_it(minilm: pellucid.Model) -> None:
    with_it = match(minilm.loaded, "tea", {"text": "green tea"}, "passage: ")
    assert with_it.text == ("green", "tea")
    assert with_it.spans[1] == ((0, 5), (6, 9))
    assert not np.allclose(with_it.similarity, match(minilm.loaded, "tea", {"text": "green tea"}).similarity)


def test_where_there_are_no_words_that_is_said(index: pellucid.Index) -> None:
    with pytest.raises(InputError, match="the query ' ' holds no words"):
        index.why(" ", {"text": "tea"})
    empty = index.why("tea", {"text": " ", "id": "7"})
    assert empty.pairs() == [] and empty.similarity.shape == (1, 0)
    assert "<table>" not in empty.view().html()
    assert index.why("?!", {"text": "tea"}).query == ("?", "!")  # better than no words
