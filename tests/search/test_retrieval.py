"""From queries to hits: each query has its own, as many texts as requested, and no more is read than is shown."""

import csv
import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.search import retrieval, words
from pellucid.search.entries import Entries
from pellucid.search.hits import RRF_K, reciprocal_rank_fusion


def ids(hits: list) -> list[str]:
    return [hit["id"] for hit in hits]


@pytest.fixture(scope="module")
def vector_index() -> "tuple[pellucid.Index, np.ndarray]":
    """3,000 vectors in a graph, and the vectors themselves."""
    generator = np.random.default_rng(0)
    vectors = (generator.standard_normal((30, 48))[generator.integers(0, 30, 3_000)] * 2).astype(np.float32)
    vectors += generator.standard_normal(vectors.shape).astype(np.float32)
    return pellucid.Index.build(None, vectors, kind="hnsw", efSearch=128), vectors


@pytest.mark.parametrize("mode", ["hybrid", "dense", "words"])
def test_query_of_a_batch_gives_the_same_hits_as_alone(index: pellucid.Index, mode: str) -> None:
    queries = ["Apple", "soft drinks", "Microsfot", "bank of america", "zzzz qqqq", "oil and gas", "Apple"]
    together = index.search(queries, k=7, mode=mode)
    for query, hits in zip(queries, together):
        alone = index.search(query, k=7, mode=mode)
        assert ids(hits) == ids(alone)
        assert (hits.query, hits.corrected) == (query, alone.corrected)
        assert [hit.words for hit in hits] == [hit.words for hit in alone]
    assert ids(together[0]) == ids(together[-1])


def test_no_queries_give_no_hits(index: pellucid.Index) -> None:
    assert index.search([]) == []
    assert index.search(np.empty((0, 384), np.float32)) == []


def test_batch_of_vectors_gives_the_hits_of_each_row(vector_index: "tuple[pellucid.Index, np.ndarray]") -> None:
    index, vectors = vector_index
    together = index.search(vectors[:40], k=5)
    assert [ids(index.search(one, k=5)) for one in vectors[:40]] == [ids(hits) for hits in together]
    assert [hits[0]["id"] for hits in together] == [str(i + 1) for i in range(40)]
    scores = np.array([[hit["score"] for hit in hits] for hits in together])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.array([[int(one) - 1 for one in ids(hits)] for hits in together])
    assert np.allclose(scores, np.einsum("qd,qkd->qk", unit[:40], unit[rows]), atol=1e-6)


def test_only_returned_rows_are_read(
    vector_index: "tuple[pellucid.Index, np.ndarray]", monkeypatch: pytest.MonkeyPatch
) -> None:
    index, vectors = vector_index
    read: list[int] = []
    get = Entries.get
    monkeypatch.setattr(Entries, "get", lambda own, rows: (read.extend(rows), get(own, rows))[1])
    index.search(vectors[0], k=5)
    assert len(read) == 5
    read.clear()
    index.search(vectors[:20], k=5)
    assert len(read) == len(set(read)) <= 100


def test_k_texts_are_found_even_if_passages_of_one_text_rank_first() -> None:
    """Each passage is a row; over 500 passages of one text are nearer than anything else."""
    crowd = " ".join(["Bees make honey in their hive."] * 600)
    texts = [("bees", crowd), *((f"other {i}", f"Story number {i} tells of the sea.") for i in range(8))]
    index = pellucid.Index.build("all-MiniLM-L6-v2", texts, passage_tokens=12, progress=False)
    assert index.segments[0].segment.rows > 500
    for mode in ("dense", "hybrid"):
        hits = index.search("bees make honey", k=9, mode=mode)
        assert ids(hits)[0] == "bees"
        assert len(set(ids(hits))) == len(hits) == 9
    assert [len(hits) for hits in index.search(["bees make honey", "the sea"], k=4, mode="dense")] == [4, 4]


def test_several_segments_answer_as_one(minilm: pellucid.Model, companies: Path, tmp_path: Path) -> None:
    with companies.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    options = {"column": "name", "id_column": "symbol", "progress": False}
    single = pellucid.Index.build(minilm, rows, tmp_path / "one", **options)
    parts = pellucid.Index.build(minilm, rows[:40], tmp_path / "parts", **options)
    parts.add(rows[40:70], progress=False)
    parts.add(rows[70:], progress=False)
    assert len(parts.segments) == 3
    queries = ["Apple", "soft drinks", "a bank", "Microsfot"]
    for where in (None, "sector = Financials"):
        found = [index.search(queries, where=where, mode="dense") for index in (single, parts)]
        for whole, divided in zip(*found):
            assert ids(whole) == ids(divided)
            assert [h["score"] for h in whole] == pytest.approx([h["score"] for h in divided], abs=1e-6)
    for mode in ("hybrid", "words"):
        for whole, divided in zip(*(index.search(queries, k=20, mode=mode) for index in (single, parts))):
            assert ids(whole) == ids(divided)
            assert [h.words for h in whole] == [h.words for h in divided]
            assert whole.corrected == divided.corrected


def test_added_text_has_the_same_word_scores_as_in_one_build(minilm: pellucid.Model) -> None:
    texts = ["a red apple", "the red bus", "a red house", "blue sea", "green tree", "old man", "new car", "big dog"]
    new = "zyzzyva red red apple apple manual"
    single = pellucid.Index.build(minilm, [*texts, new], progress=False)
    parts = pellucid.Index.build(minilm, texts, progress=False)
    parts.add([new], progress=False)
    for mode in ("words", "hybrid"):
        for query in ("zyzzyva manual for a dog", "red bus", "apple"):
            found = [
                [(h["id"], h["score"], h.words) for h in index.search(query, mode=mode)] for index in (single, parts)
            ]
            assert found[0] == found[1]
    assert parts.search("zyzzyva", mode="words")[0]["text"] == new
    metrics = [index.evaluate(["zyzzyva manual", "red bus"], ["9", "2"], mode="words") for index in (single, parts)]
    assert metrics[0].mrr == metrics[1].mrr == {1: 1.0, 5: 1.0, 10: 1.0}


def test_condition_and_deletion_apply_in_every_mode(writable_index: pellucid.Index) -> None:
    writable_index.delete(["AAPL"])
    for mode in ("hybrid", "dense", "words"):
        hits = writable_index.search("Apple Inc. bank", k=100, mode=mode)
        assert hits and "AAPL" not in ids(hits)
        only = writable_index.search("Apple Inc. bank", k=100, mode=mode, where={"sector": "Financials"})
        assert {hit["metadata"]["sector"] for hit in only} <= {"Financials"}


def test_words_of_deleted_rows_are_unknown(minilm: pellucid.Model) -> None:
    rows = [("ms", "Microsoft Corporation"), ("bad", "Micrsoft Ltd"), ("z", "Zebra Technologies")]
    index = pellucid.Index.build(
        minilm, [*rows, *((f"f{i}", f"filler company {i}") for i in range(30))], progress=False
    )
    assert index.search("Micrsoft").corrected is None and index.search("Zebbra").corrected == "zebra"
    index.update([("bad", "Oracle Ltd")], progress=False)
    index.delete("z")
    found = index.search("Micrsoft", mode="words")
    assert found.corrected == "microsoft" and [hit["id"] for hit in found] == ["ms"]
    assert index.search("Zebbra").corrected is None and any(one.deleted.any() for one in index.segments)


def test_dropped_index_is_freed_without_the_garbage_collector(writable_index: pellucid.Index) -> None:
    index = pellucid.Index.open(writable_index.folder)
    index._loaded = writable_index.loaded
    index.search("Microsfot")
    vectors = weakref.ref(index.segments[0].vectors)
    gc.disable()
    try:
        del index
        assert vectors() is None
    finally:
        gc.enable()


def test_reciprocal_rank_fusion_joins_both_orders() -> None:
    score = reciprocal_rank_fusion(np.array([0.9, 0.8, 0.8, 0.1]), np.array([np.nan, 3.0, 5.0, np.nan]))
    reciprocals = [1 / (RRF_K + 1 + rank) for rank in range(4)]
    best = 2 * reciprocals[0]
    assert np.allclose(
        score,
        [
            reciprocals[0] / best,
            (reciprocals[1] + reciprocals[1]) / best,
            (reciprocals[2] + reciprocals[0]) / best,
            reciprocals[3] / best,
        ],
    )
    assert reciprocal_rank_fusion(np.array([1.0]), np.array([2.0])).tolist() == [1.0]
    assert reciprocal_rank_fusion(np.array([]), np.array([])).tolist() == []


def test_word_search_has_no_similarity_and_is_ordered_by_bm25(index: pellucid.Index) -> None:
    hits = index.search("bank", k=50, mode="words")
    assert hits and all("bank" in hit["text"].lower() for hit in hits)
    assert all(hit.similarity is None and hit.words == hit["score"] for hit in hits)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


def test_common_words_are_searched_where_filtered_rows_lack_rarer_ones(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "MAX_ROWS", 3)
    rows = [{"text": f"the {'zebra' if i < 2 else 'cow'} and {'we' * (i % 3 + 1)}", "n": i} for i in range(9)]
    index = pellucid.Index.build(checkpoint("bert-body"), rows, column="text", progress=False)
    options = {"mode": "words", "k": 9}
    assert set(ids(index.search("the zebra", **options))) == {"1", "2"}
    assert len(index.search("the cow", where="n >= 2", **options)) == 7
    found = index.search("the zebra and", where="n >= 2", **options)
    assert set(ids(found)) == set(map(str, range(3, 10))) and all(hit.words == hit["score"] > 0 for hit in found)
    assert index.search("zebra", where="n >= 2", **options) == []
    index.delete(["1", "2"])
    alone = index.search("zebra the", **options)
    assert set(ids(alone)) == set(map(str, range(3, 10))) and ids(index.search("the", **options)) == ids(alone)
    assert ids(index.search("zebra the", mode="words", k=2)) == ids(alone)[:2]


def test_hybrid_hit_holds_similarity_and_word_score(index: pellucid.Index) -> None:
    hits = index.search("Apple", k=10)
    assert hits[0]["score"] == 1.0
    assert hits[0].words is not None
    assert any(hit.words is None for hit in hits)
    assert all(hit.similarity is not None and -1.0001 <= hit.similarity <= 1.0001 for hit in hits)


def test_hit_has_its_word_score_even_if_many_rows_score_higher(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "DEPTH", 10)
    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{i}" for i in generator.integers(0, 15, size)) for size in generator.integers(1, 9, 200)]
    index = pellucid.Index.build(checkpoint("bert-body"), texts, progress=False)
    queries = texts[:10]
    scores_by_id = [{hit["id"]: hit["score"] for hit in hits} for hits in index.search(queries, k=200, mode="words")]
    for scores, hits in zip(scores_by_id, index.search(queries, k=20)):
        assert [hit.words for hit in hits] == [scores.get(hit["id"]) for hit in hits]


@pytest.mark.parametrize("kind", ["bert-one-label", "bert-body"])
def test_rerank_accepts_cross_encoders_and_encoders(
    index: pellucid.Index, checkpoint: Callable[[str], Path], kind: str
) -> None:
    model, before = pellucid.load(checkpoint(kind)), index.search("a bank", k=retrieval.RERANK_DEPTH)
    expected = pellucid.pipeline("text-ranking", model)("a bank", [hit["text"] for hit in before])
    hits = index.search("a bank", k=5, rerank=model)
    assert ids(hits) == [before[one["corpus_id"]]["id"] for one in expected[:5]] != ids(before)[:5]
    assert [hit["score"] for hit in hits] == pytest.approx([one["score"] for one in expected[:5]], abs=1e-5)
    scores = {hit["id"]: (hit.similarity, hit.words) for hit in before}
    assert [(hit.similarity, hit.words) for hit in hits] == [scores[hit["id"]] for hit in hits]
    metrics = index.evaluate(["a bank"], [ids(hits)[4]], (1, 5, 60), rerank=model)
    assert (metrics.recall[1], metrics.mrr[5]) == (0.0, 1 / 5)
    assert index.search("qqqqqqqq", mode="words", rerank=model) == []


def test_rerank_refuses_a_model_with_several_labels(index: pellucid.Index, checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match="labels, and text-ranking needs one"):
        index.search("a bank", rerank=str(checkpoint("bert-nli")))


def test_invalid_searches_are_refused(index: pellucid.Index, vector_index: "tuple[pellucid.Index, np.ndarray]") -> None:
    with pytest.raises(InputError, match="rerank reads texts"):
        index.search(np.ones(384, np.float32), rerank="anything")
    with pytest.raises(InputError, match="mode"):
        index.search("Apple", mode="fuzzy")
    with pytest.raises(InputError, match="a vector has no words: give the queries as texts"):
        index.search(np.ones(384, np.float32), mode="words")
    with pytest.raises(InputError, match=r"beyond 1e\+15"):
        vector_index[0].search(np.full(48, 1e20))
