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
from pellucid.checkpoints.sentence import read_pooling
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


@pytest.mark.parametrize("way", ["cosine", "dot", "euclidean", "manhattan"])
def test_scores_are_those_of_sentence_transformers(
    pipe: "pellucid.Pipeline", reference: SentenceTransformer, way: str
) -> None:
    compared = SimilarityFunction.to_similarity_fn(way)
    wanted = compared(reference.encode([SOURCE]), reference.encode(OTHERS))[0].tolist()
    found = scores(pipe(SOURCE, OTHERS, similarity=way))
    assert found[:3] == pytest.approx(wanted[:3], rel=3e-6, abs=1e-6)
    if way == "cosine":
        assert found == scores(pipe(SOURCE, OTHERS)) and found[3] == pytest.approx(1.0)


@pytest.mark.parametrize("way", ["cosine", "dot", "euclidean", "manhattan"])
def test_what_the_checkpoint_says_is_done(tmp_path: Path, way: str) -> None:
    plain = pellucid.load(write("bert-body", tmp_path / "plain")).loaded
    saved = pellucid.Model(dataclasses.replace(plain, pooling=Pooling(("cls",), way == "dot", 64, way)))
    folder = saved.save(tmp_path / "model")
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), pellucid.pipeline("sentence-similarity", folder)
    wanted = theirs.similarity(theirs.encode([SOURCE]), theirs.encode(OTHERS))[0].tolist()
    assert scores(ours(SOURCE, OTHERS)) == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    assert theirs.similarity_fn_name == way == ours.model.loaded.pooling.similarity


def test_a_comparison_that_nobody_knows_is_refused(minilm_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(minilm_folder, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    (tmp_path / "model" / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "maxsim"}')
    with pytest.raises(pellucid.PellucidError, match=r"similarity_fn_name is 'maxsim', expected one of cosine, dot"):
        read_pooling(tmp_path / "model")


def test_every_way_to_give_a_pair(pipe: "pellucid.Pipeline") -> None:
    wanted = pipe(SOURCE, OTHERS[0])
    assert set(wanted) == {"score"} and type(wanted["score"]) is float
    assert pipe((SOURCE, OTHERS[0])) == pipe(source_sentence=SOURCE, sentences=OTHERS[0]) == wanted
    assert pipe({"source_sentence": SOURCE, "sentences": OTHERS[0]}) == wanted
    pairs = [(SOURCE, other) for other in OTHERS]
    several = scores(pipe(pairs))
    assert scores(pipe(SOURCE, OTHERS)) == pytest.approx(several, abs=1e-6)
    assert scores(pipe({"source_sentence": SOURCE, "sentences": OTHERS})) == pytest.approx(several, abs=1e-6)
    assert scores(pipe([SOURCE] * 5, OTHERS)) == pytest.approx(several, abs=1e-6)
    assert pipe([]) == []


def test_a_plain_checkpoint_is_the_mean_of_its_tokens(tmp_path: Path) -> None:
    for name in ("bert-body", "bert-filler", "gpt2-body", "t5-tasks"):
        model = pellucid.load(write(name, tmp_path / name))
        first, second = model.embed([SOURCE, OTHERS[0]])
        wanted = torch.nn.functional.cosine_similarity(first, second, dim=0)
        found = pellucid.pipeline("sentence-similarity", model)(SOURCE, OTHERS[0])
        assert found["score"] == pytest.approx(float(wanted), abs=1e-6)


def test_an_empty_text_is_compared_and_told(pipe: "pellucid.Pipeline", reference: SentenceTransformer) -> None:
    answer = pipe(SOURCE, "")
    wanted = reference.similarity(reference.encode([SOURCE]), reference.encode([""]))
    assert answer["score"] == pytest.approx(float(wanted), abs=1e-6)
    assert answer.read.empty and not pipe(SOURCE, "x").read.empty


def test_texts_that_are_unknown_tokens_alone_are_told(
    pipe: "pellucid.Pipeline", caplog: pytest.LogCaptureFixture
) -> None:
    thai = "กรุงเทพมหานคร" * 9
    ranking = pellucid.pipeline("text-ranking", pipe.model)
    with caplog.at_level(logging.WARNING, "pellucid"):
        pipe([(thai, thai[:110]), (SOURCE, f"fine {thai}")])
        pipe(thai, f"{thai} " * 9 + SOURCE, long="windows", max_length=8, stride=0)
        ranking(query=SOURCE, documents=[thai, *OTHERS])
    warning = "texts consist of unknown tokens alone; their vectors do not distinguish them"
    assert caplog.messages == [f"2 of 4 {warning}", f"1 of 2 {warning}", f"1 of 7 {warning}"]


def test_texts_of_many_portions_are_told_of_once(
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


def test_a_text_in_stretches_is_the_mean_of_their_vectors(pipe: "pellucid.Pipeline") -> None:
    """64 words a window, without overlap: the last window is short and weighs less."""
    words = FILLER * 3 + "a puppy takes a nap".split()
    answer = pipe(SOURCE, " ".join(words), long="windows", max_length=66, stride=0)
    parts = [" ".join(words[i : i + 64]) for i in range(0, len(words), 64)]
    vectors = pipe.model.embed(parts, normalize=False)
    weights = torch.tensor([66.0, 66.0, 66.0, 7.0])
    vector = (vectors * weights[:, None]).sum(dim=0) / weights.sum()
    wanted = torch.nn.functional.cosine_similarity(vector, pipe.model.embed(SOURCE), dim=0)
    assert answer["score"] == pytest.approx(float(wanted), abs=1e-5)
    assert len(answer.read.windows) == 1 + 4 and answer.read.windows[0] == (0, len(SOURCE))


def test_ten_thousand_words_under_each_rule(pipe: "pellucid.Pipeline") -> None:
    """Half of a long text is about a dog; truncated, it is about bridges only."""
    dogs = " ".join("a small dog was asleep in the warm sun all day and".split() * 6).split()[:64]
    text = " ".join(FILLER * 78 + dogs * 79)
    assert len(text.split()) > 10_000
    with pytest.raises(pellucid.InputError, match=r"item 0 has 9,\d+ tokens more than the 256 "):
        pipe(SOURCE, text)
    setting = {"max_length": 66, "stride": 0}
    cut, whole = (pipe(SOURCE, text, long=rule, **setting) for rule in ("truncate", "windows"))
    assert cut["score"] < 0.05 < 0.3 < whole["score"]
    assert cut.read.cut == len(text.split()) - 64 and whole.read.cut == 0 and len(whole.read.windows) == 1 + 157


def test_the_limit_is_the_one_that_the_checkpoint_was_made_for(
    pipe: "pellucid.Pipeline", reference: SentenceTransformer
) -> None:
    text = " ".join(FILLER * 6)
    wanted = reference.similarity(reference.encode([SOURCE]), reference.encode([text]))
    assert pipe(SOURCE, text, long="truncate")["score"] == pytest.approx(float(wanted), abs=1e-6)
    assert pipe(SOURCE, text, long="truncate").read.cut == len(FILLER) * 6 - 254


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [None, 5, "alone", ("a", None), ("a", 5), {"source_sentence": "a"}, {"x": "a"}])
def test_what_is_no_pair_is_refused_by_its_number(pipe: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 1"):
        pipe([(SOURCE, "x"), item])


def test_what_cannot_be(pipe: "pellucid.Pipeline", tmp_path: Path) -> None:
    with pytest.raises(pellucid.InputError, match=r"similarity is 'cosin' \(did you mean cosine\?\)"):
        pipe(SOURCE, "x", similarity="cosin")
    with pytest.raises(pellucid.InputError, match=r"expected as many of each"):
        pipe([SOURCE, SOURCE], OTHERS)
    for first, second in ((SOURCE, None), (None, OTHERS), (SOURCE, 5), (OTHERS, None)):
        with pytest.raises(pellucid.InputError, match=r"item 0|expected a text or a list of texts"):
            pipe(first, second)
    with pytest.raises(pellucid.InputError, match="has sequence-classification head, and sentence-similarity needs"):
        pellucid.pipeline("sentence-similarity", write("bert-one-label", tmp_path / "model"))
