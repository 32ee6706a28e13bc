"""Similarity of two texts: the scores of sentence-transformers, and every way to give a pair."""

import dataclasses
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, SimilarityFunction

import pellucid
from pellucid.checkpoints.sentence_transformers import read_pooling
from pellucid.config.pooling import Pooling
from tests.parity.tiny import write

SOURCE = "A dog sleeps in the sun."
OTHERS = ["A puppy takes a nap.", "The stock market fell by 3 %.", "Ein Hund schläft in der Sonne.", SOURCE, "x"]
FILLER = " ".join("the city has a large river and two old bridges near it".split() * 8).split()[:64]
"""64 words of one token each."""


@pytest.fixture(scope="module")
def pipe(minilm: "pellucid.Model") -> "pellucid.Pipeline":
    return pellucid.pipeline("sentence-similarity", minilm)


@pytest.fixture(scope="module")
def reference(minilm_folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(minilm_folder), device="cpu")


def scores(answers: Any) -> list[float]:
    return [answer["score"] for answer in answers]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores_equal_sentence_transformers(
    pipe: "pellucid.Pipeline", reference: SentenceTransformer, similarity: str
) -> None:
    similarity_function = SimilarityFunction.to_similarity_fn(similarity)
    expected = similarity_function(reference.encode([SOURCE]), reference.encode(OTHERS))[0].tolist()
    found = scores(pipe(SOURCE, OTHERS, similarity=similarity))
    assert found[:3] == pytest.approx(expected[:3], rel=3e-6, abs=1e-6)
    if similarity == "cosine":
        assert found == scores(pipe(SOURCE, OTHERS)) and found[3] == pytest.approx(1.0)


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_of_the_checkpoint_is_used(tmp_path: Path, similarity: str) -> None:
    plain = pellucid.load(write("bert-body", tmp_path / "plain")).loaded
    saved = pellucid.Model(dataclasses.replace(plain, pooling=Pooling(("cls",), similarity == "dot", 64, similarity)))
    folder = saved.save(tmp_path / "model")
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), pellucid.pipeline("sentence-similarity", folder)
    expected = theirs.similarity(theirs.encode([SOURCE]), theirs.encode(OTHERS))[0].tolist()
    assert scores(ours(SOURCE, OTHERS)) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert theirs.similarity_fn_name == similarity == ours.model.loaded.pooling.similarity


def test_unknown_similarity_is_refused(minilm_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(minilm_folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    (tmp_path / "model" / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "maxsim"}')
    with pytest.raises(pellucid.PellucidError, match=r"similarity_fn_name is 'maxsim', expected one of cosine, dot"):
        read_pooling(tmp_path / "model")


def test_every_form_of_a_pair_is_accepted(pipe: "pellucid.Pipeline") -> None:
    expected = pipe(SOURCE, OTHERS[0])
    assert set(expected) == {"score"} and type(expected["score"]) is float
    assert pipe((SOURCE, OTHERS[0])) == pipe(source_sentence=SOURCE, sentences=OTHERS[0]) == expected
    assert pipe({"source_sentence": SOURCE, "sentences": OTHERS[0]}) == expected
    pairs = [(SOURCE, other) for other in OTHERS]
    several = scores(pipe(pairs))
    assert scores(pipe(SOURCE, OTHERS)) == pytest.approx(several, abs=1e-6)
    assert scores(pipe({"source_sentence": SOURCE, "sentences": OTHERS})) == pytest.approx(several, abs=1e-6)
    assert scores(pipe([SOURCE] * 5, OTHERS)) == pytest.approx(several, abs=1e-6)
    assert pipe([]) == []


def test_checkpoint_without_pooling_uses_the_mean(tmp_path: Path) -> None:
    for name in ("bert-body", "bert-filler", "gpt2-body", "t5-tasks"):
        model = pellucid.load(write(name, tmp_path / name))
        first, second = model.embed([SOURCE, OTHERS[0]])
        expected = torch.nn.functional.cosine_similarity(first, second, dim=0)
        found = pellucid.pipeline("sentence-similarity", model)(SOURCE, OTHERS[0])
        assert found["score"] == pytest.approx(float(expected), abs=1e-6)


def test_empty_text_is_compared_and_marked(pipe: "pellucid.Pipeline", reference: SentenceTransformer) -> None:
    answer = pipe(SOURCE, "")
    expected = reference.similarity(reference.encode([SOURCE]), reference.encode([""]))
    assert answer["score"] == pytest.approx(float(expected), abs=1e-6)
    assert answer.read.empty and not pipe(SOURCE, "x").read.empty


def test_texts_of_unknown_tokens_are_reported(pipe: "pellucid.Pipeline", caplog: pytest.LogCaptureFixture) -> None:
    thai = "กรุงเทพมหานคร" * 9
    ranking = pellucid.pipeline("text-ranking", pipe.model)
    with caplog.at_level(logging.WARNING, "pellucid"):
        pipe([(thai, thai[:110]), (SOURCE, f"fine {thai}")])
        pipe(thai, f"{thai} " * 9 + SOURCE, long="windows", max_length=8, stride=0)
        ranking(query=SOURCE, documents=[thai, *OTHERS])
    warning = "texts consist of unknown tokens alone; their vectors do not distinguish them"
    assert caplog.messages == [f"2 of 4 {warning}", f"1 of 2 {warning}", f"1 of 7 {warning}"]


def test_warnings_are_combined_over_batches(
    pipe: "pellucid.Pipeline", caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["pellucid.pipeline"], "FIRST", 1)
    thai, warning = "กรุงเทพมหานคร" * 9, "texts consist of unknown tokens alone; their vectors do not distinguish them"
    with caplog.at_level(logging.WARNING, "pellucid"):
        assert len(list(pipe.many((SOURCE, thai) for _ in range(5)))) == 5
        answers = pipe.many((SOURCE, thai) for _ in range(9))
        next(answers)
        answers.close()  # the caller needs no more
    assert caplog.messages == [f"5 of 10 {warning}", f"1 of 2 {warning}"]


# -- long texts --------------------------------------------------------------------------------------------------------


def test_windowed_text_is_the_weighted_mean_of_its_windows(pipe: "pellucid.Pipeline") -> None:
    """64 words a window, without overlap: the last window is short and weighs less."""
    words = FILLER * 3 + "a puppy takes a nap".split()
    answer = pipe(SOURCE, " ".join(words), long="windows", max_length=66, stride=0)
    parts = [" ".join(words[i : i + 64]) for i in range(0, len(words), 64)]
    vectors = pipe.model.embed(parts, normalize=False)
    weights = torch.tensor([66.0, 66.0, 66.0, 7.0])
    vector = (vectors * weights[:, None]).sum(dim=0) / weights.sum()
    expected = torch.nn.functional.cosine_similarity(vector, pipe.model.embed(SOURCE), dim=0)
    assert answer["score"] == pytest.approx(float(expected), abs=1e-5)
    assert len(answer.read.windows) == 1 + 4 and answer.read.windows[0] == (0, len(SOURCE))


def test_ten_thousand_words_follow_each_rule(pipe: "pellucid.Pipeline") -> None:
    """Half of a long text is about a dog; truncated, it is about bridges only."""
    about_dogs = " ".join("a small dog was asleep in the warm sun all day and".split() * 6).split()[:64]
    text = " ".join(FILLER * 78 + about_dogs * 79)
    assert len(text.split()) > 10_000
    with pytest.raises(pellucid.InputError, match=r"item 0 has 9,\d+ tokens more than the 256 "):
        pipe(SOURCE, text)
    setting = {"max_length": 66, "stride": 0}
    truncated, windowed = (pipe(SOURCE, text, long=rule, **setting) for rule in ("truncate", "windows"))
    assert truncated["score"] < 0.05 < 0.3 < windowed["score"]
    assert (
        truncated.read.cut == len(text.split()) - 64
        and windowed.read.cut == 0
        and len(windowed.read.windows) == 1 + 157
    )


def test_default_limit_is_the_checkpoint_s(pipe: "pellucid.Pipeline", reference: SentenceTransformer) -> None:
    text = " ".join(FILLER * 6)
    expected = reference.similarity(reference.encode([SOURCE]), reference.encode([text]))
    assert pipe(SOURCE, text, long="truncate")["score"] == pytest.approx(float(expected), abs=1e-6)
    assert pipe(SOURCE, text, long="truncate").read.cut == len(FILLER) * 6 - 254


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, "alone", ("a", None), ("a", 5), {"source_sentence": "a"}, {"x": "a"}])
def test_invalid_item_is_refused_by_number(pipe: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 1"):
        pipe([(SOURCE, "x"), item])


def test_invalid_arguments_are_refused(pipe: "pellucid.Pipeline", tmp_path: Path) -> None:
    with pytest.raises(pellucid.InputError, match=r"similarity is 'cosin' \(did you mean cosine\?\)"):
        pipe(SOURCE, "x", similarity="cosin")
    with pytest.raises(pellucid.InputError, match=r"expected as many of each"):
        pipe([SOURCE, SOURCE], OTHERS)
    for first, second in ((SOURCE, None), (None, OTHERS), (SOURCE, 5), (OTHERS, None)):
        with pytest.raises(pellucid.InputError, match=r"item 0|expected a text or a list of texts"):
            pipe(first, second)
    with pytest.raises(pellucid.InputError, match="has sequence-classification head, and sentence-similarity needs"):
        pellucid.pipeline("sentence-similarity", write("bert-one-label", tmp_path / "model"))
