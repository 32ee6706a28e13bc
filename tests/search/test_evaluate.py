"""Evaluating a search: the metrics against another library's, and the search against what is documented."""

import csv
import json
import math
import time
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score

import pellucid
from pellucid.errors import InputError
from pellucid.search import retrieval
from pellucid.search.evaluate import score_query
from pellucid.search.opened_generation import Generation, Segments


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_metrics_match_another_library(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 12))
    names = [f"text {i}" for i in range(count)]
    grades = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count).filter(any))
    found = data.draw(st.permutations(names))
    k = data.draw(st.integers(1, count))
    grade_by_name = dict(zip(names, map(float, grades)))
    recall, rank, gain = score_query(found, grade_by_name, k)
    scores = [[-found.index(name) for name in names]]
    assert math.isclose(gain, ndcg_score([grades], scores, k=k), abs_tol=1e-12)
    answers = [name for name in names if grade_by_name[name]]
    assert recall == sum(name in found[:k] for name in answers) / len(answers)
    if len(answers) == 1:  # the average precision is then one divided by the rank
        _, whole, _ = score_query(found, grade_by_name, count)
        assert math.isclose(whole, label_ranking_average_precision_score([[g > 0 for g in grades]], scores))
        assert rank == (whole if found.index(answers[0]) < k else 0)


def test_missing_results_count_as_zero() -> None:
    grade_by_name = {"a": 2.0, "b": 1.0, "c": 0.0}
    assert score_query([], {"a": 1.0}, 5) == score_query(["x", "a"], grade_by_name, 1) == (0.0, 0.0, 0.0)
    gain = pytest.approx((2 / math.log2(3)) / (2 + 1 / math.log2(3)))
    assert (
        score_query(["x", "a"], grade_by_name, 2) == score_query(["x", "x", "a"], grade_by_name, 3) == (0.5, 0.5, gain)
    )


def test_evaluation_reports_metrics_and_every_miss(index: pellucid.Index) -> None:
    queries = ["Apple", "Microsfot", "soft drinks"]
    found = index.evaluate(queries, ["AAPL", ["MSFT"], {"KO": 2, "PEP": 1}], k=(1, 10))
    assert found.queries == 3 and found.unlisted == 0
    assert found.recall == {1: pytest.approx(2 / 3), 10: 1.0}
    (miss,) = found.misses
    hits = [hit["id"] for hit in index.search("soft drinks", k=10)]
    assert miss.query == "soft drinks" and miss.instead == hits[0]
    assert miss.rank == min(hits.index("KO"), hits.index("PEP")) + 1
    assert found.mrr[10] == pytest.approx((2 + 1 / miss.rank) / 3)
    assert json.loads(json.dumps(found.data()))["queries"] == 3
    assert "recall@1 0.6667" in repr(found)


def test_warm_up_of_the_first_search_is_not_timed(index: pellucid.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    original_search, calls = pellucid.Index.search, []

    def search(self: pellucid.Index, *queries: Any, **options: Any) -> Any:
        if not calls:
            time.sleep(1.0)
        calls.append(queries)
        return original_search(self, *queries, **options)

    monkeypatch.setattr(pellucid.Index, "search", search)
    assert index.evaluate(["Apple"], ["AAPL"], k=1).seconds < 1.0 and len(calls) == 2


def test_answers_may_come_from_a_data_frame(index: pellucid.Index) -> None:
    plain = index.evaluate(["Apple", "a bank"], [["AAPL"], {"JPM": 2, "BAC": 1}], k=5)
    grades = dict(zip(["JPM", "BAC"], np.array([2, 1])))
    from_arrays = index.evaluate(["Apple", "a bank"], [np.array(["AAPL"]), grades], k=5)
    assert (from_arrays.recall, from_arrays.mrr, from_arrays.ndcg) == (plain.recall, plain.mrr, plain.ndcg)
    assert index.evaluate(["Apple"], [{"AAPL": np.float32(2)}], k=1).ndcg[1] == 1.0


class NAType:
    """Like pandas' `NA`."""


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), NAType(), ""])
def test_empty_cell_is_no_answer(index: pellucid.Index, missing: object) -> None:
    for answers in (["AAPL", missing], {"AAPL": 1, missing: 1}):
        assert index.evaluate(["Apple"], [answers], k=1).recall == {1: 1.0}
    assert index.evaluate(["Apple"], [["Cupertino, California", missing]], k=1, by="headquarters").recall == {1: 1.0}
    with pytest.raises(InputError, match="query 0 has no right answer"):
        index.evaluate(["Apple"], [missing])


def test_null_in_a_row_matches_no_answer(minilm: pellucid.Model) -> None:
    rows = [{"text": "alpha", "c": None}, {"text": "beta", "c": "None"}, {"text": "gamma"}, {"text": "delta", "c": ""}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for query in ("alpha", "gamma", "delta"):
        found = index.evaluate([query, "beta"], ["None", "None"], k=1, by="c")
        assert found.recall == {1: 0.5} and [miss.instead for miss in found.misses] == [""], query


@pytest.mark.parametrize("value", [["x", "é", 1.5], {"a": [None, True]}, []])
def test_list_value_matches_its_json_text(minilm: pellucid.Model, value: Any) -> None:
    rows = [{"text": "alpha", "c": value}, {"text": "beta", "c": "x"}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    spelled = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert [hit["text"] for hit in index.search("alpha", where={"c": spelled})] == ["alpha"]
    for answers in (spelled, [value], [spelled, "nothing"]):
        assert index.evaluate(["alpha"], [answers], k=1, by="c").recall[1] == (1.0 if "nothing" not in answers else 0.5)
    with pytest.raises(InputError, match="the index has no c"):
        index.evaluate(["alpha"], [[[*value, object()]]], by="c")


def test_whole_float_answers_match_integer_ids(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, [(1, "a dog"), (2, "a cat"), (3.0, "a cow")], progress=False)
    for answers in ([1.0, math.nan], {np.float64(1): 1}, 1.0):
        assert index.evaluate(["a dog"], [answers], k=1).recall == {1: 1.0}
    assert index.evaluate(["a cow"], [3.0], k=1).recall == {1: 1.0}


def test_answers_may_be_values_of_a_column(index: pellucid.Index) -> None:
    found = index.evaluate(
        ["Apple", "Microsoft"], ["Cupertino, California", "Redmond, Washington"], 1, by="headquarters"
    )
    assert found.recall == {1: 1.0}
    with pytest.raises(InputError, match=r"no row has 'headquartes' .did you mean headquarters"):
        index.evaluate(["Apple"], ["Cupertino"], by="headquartes")


def test_metrics_at_k_do_not_depend_on_other_k(index: pellucid.Index) -> None:
    """A column's values recur among the hits, and a search looks further for more of them."""
    queries, answers = ["soft drinks", "a bank", "cars"], ["Industrials", "Health Care", "Energy"]
    separate = [index.evaluate(queries, answers, k, by="sector") for k in (2, 5, 60)]
    together = index.evaluate(queries, answers, (2, 5, 60), by="sector")
    for one in separate:
        (k,) = one.recall
        assert (one.recall[k], one.mrr[k], one.ndcg[k]) == (together.recall[k], together.mrr[k], together.ndcg[k])
    assert separate[0].recall[2] < separate[2].recall[60] == 1.0


def test_metrics_of_a_graph_with_deleted_rows_do_not_depend_on_other_k(minilm: pellucid.Model) -> None:
    """There, a search for more results visits more of the graph."""
    texts = [f"row {i} of {i * 7 % 53} and {i * 31 % 17}" for i in range(2_000)]
    index = pellucid.Index.build(minilm, texts, kind="hnsw", M=4, efConstruction=4, efSearch=4, progress=False)
    index.delete("1")
    queries = [f"{i} and {i}" for i in range(40)]
    expected = [[hit["id"] for hit in without_graph(index).search(one, k=5, mode="dense")] for one in queries]
    alone = index.evaluate(queries, expected, 5, mode="dense").recall[5]
    assert index.evaluate(queries, expected, (5, 60), mode="dense").recall[5] == alone


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_metrics_of_passages_do_not_depend_on_other_k(
    checkpoint: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for more texts then reads more rows, in another order."""
    monkeypatch.setattr(retrieval, "DEPTH", 20)
    generator = np.random.default_rng(0)
    texts = [(f"t{i}", " ".join(f"w{j}" for j in generator.integers(0, 200, size=9 + i % 4 * 300))) for i in range(12)]
    index = pellucid.Index.build(checkpoint("bert-body"), texts, kind=kind, passage_tokens=12, progress=False)
    queries = [" ".join(f"w{j}" for j in generator.integers(0, 200, size=3)) for _ in range(30)]
    for mode in retrieval.MODES:
        found = {k: [[hit["id"] for hit in hits] for hits in index.search(queries, k=k, mode=mode)] for k in (3, 4, 10)}
        together = index.evaluate(queries, found[3], (3, 4, 10), mode=mode)
        assert together.recall[3] == 1.0, mode
        for k, names in found.items():
            scores = [score_query(one, dict.fromkeys(answers, 1.0), k) for one, answers in zip(names, found[3])]
            assert (together.recall[k], together.mrr[k], together.ndcg[k]) == pytest.approx(tuple(np.mean(scores, 0)))


def without_graph(index: pellucid.Index) -> pellucid.Index:
    """The same index without a graph."""
    segments = Segments(replace(one, vectors=replace(one.vectors, graph=None)) for one in index.segments)
    return pellucid.Index(Generation(index.folder, index.manifest, segments), index.loaded)


@pytest.mark.parametrize("answers", [1999, 1999.0, "1999", True, "TRUE"])
def test_answers_match_values_as_in_a_condition(minilm: pellucid.Model, answers: object) -> None:
    column = "" if "1999" in str(answers) else "old"  # the name that pandas writes for the column of its index
    rows = [{"text": "alpha", "": 1999.0, "old": True}, {"text": "beta", "": 2001, "old": False}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    assert index.evaluate(["alpha"], [answers], k=1, by=column).recall == {1: 1.0}


@pytest.mark.parametrize(
    "answers",
    [
        date(2026, 1, 2),
        "2026-01-02 00:00:00",
        np.datetime64("2026-01-02T00:00:00.000"),
        np.datetime64("2026-01-02", "ns"),
    ],
)
def test_answer_dates_match_in_every_format(minilm: pellucid.Model, answers: object) -> None:
    rows = [{"text": "alpha", "d": "2026-01-02T00:00"}, {"text": "beta", "d": datetime(2026, 1, 2, tzinfo=UTC)}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    found = index.evaluate(["alpha", "beta"], [answers, rows[1]["d"]], 1, by="d")
    assert found.recall == {1: 1.0}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_answers_and_columns_match_across_unicode_forms(minilm: pellucid.Model, form: Any) -> None:
    rows = [{"text": text, unicodedata.normalize(form, "née"): "caf\u00e9"} for text in ("alpha", "beta")]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for answers in ("caf\u00e9", "cafe\u0301"):
        found = index.evaluate(["alpha", "beta"], [answers, {answers: 1}], k=2, by="n\u00e9e")
        assert found.recall == found.mrr == {2: 1.0} and not found.misses
    with pytest.raises(InputError, match="the index has no née thé, the right answers of 1"):
        index.evaluate(["alpha"], ["the\u0301"], by="n\u00e9e")


def test_many_queries_are_evaluated_in_batches(index: pellucid.Index) -> None:
    names = [(hit["text"], hit["id"]) for hit in index.search("company", k=100)] * 3
    queries, answers = zip(*names)
    found = index.evaluate(queries, answers, k=1)
    assert found.queries == 300
    assert found.recall[1] == 1.0


@pytest.mark.parametrize(
    ("queries", "answers", "fragment"),
    [
        (["a"], [], "1 query and 0 answers were given"),
        ([], [], "there are no queries"),
        ("Apple", "AAPL", "are lists"),
        (["a"], [[]], "query 0 has no right answer"),
        (["a"], [{"AAPL": 0}], "query 0 has no right answer"),
        (["a"], [{"AAPL": -1}], "grade -1, expected a number from 0 to 1e30"),
        (["a"], [{"AAPL": "1"}], "grade '1'"),
        (["a"], [{1: 2.0, "1": 0.5}], "query 0: the answer '1' is graded 2 and 0.5: leave one of them out"),
        (["a", " "], [["AAPL"], ["AAPL"]], "query 1 holds nothing to look for"),
        (["a"], [{"AAPL": math.nan}], "grade nan"),
        (["a", "b"], ["NOPE", "AAPL"], "no id NOPE, the right answers of 1 of 2 queries.*with unlisted='skip'"),
        (["a", ""], ["AAPL", "MSFT"], "query 1 holds nothing to look for"),
    ],
)
def test_invalid_evaluations_are_refused(index: pellucid.Index, queries: list, answers: list, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        index.evaluate(queries, answers)


def test_evaluation_without_columns_or_texts_is_refused(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, ["a cat", "a dog"], progress=False)
    with pytest.raises(InputError, match=r"^no row has 's'; rows have no columns beside the text$"):
        index.evaluate(["a cat"], ["x"], by="s")
    index.delete(["1", "2"])
    for by, unlisted in (("s", "error"), (None, "skip")):
        with pytest.raises(InputError, match=r"holds no texts: add some first$"):
            index.evaluate(["a cat"], ["1"], by=by, unlisted=unlisted)


def test_k_and_unlisted_are_checked(index: pellucid.Index) -> None:
    for k in (0, (), (1, 2.5)):
        with pytest.raises(InputError, match="k "):
            index.evaluate(["a"], ["AAPL"], k=k)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"unlisted is 'skp'.*did you mean skip"):
        index.evaluate(["a"], ["AAPL"], unlisted="skp")
    with pytest.raises(InputError, match="no query has a right answer"):
        index.evaluate(["a"], ["NOPE"], unlisted="skip")


@pytest.fixture(scope="module")
def clusters() -> tuple[np.ndarray, np.ndarray]:
    """6,000 vectors around 60 centres, and 100 queries: Float32[ndarray, "rows 32"]"""
    generator = np.random.default_rng(0)
    middles = generator.standard_normal((60, 32))

    def around(count: int) -> np.ndarray:
        spread = 0.7 * generator.standard_normal((count, 32))
        return (middles[generator.integers(0, 60, count)] + spread).astype(np.float32)

    return around(6_000), around(100)


def test_recall_grows_with_effort_up_to_brute_force(clusters: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    rows, queries = clusters
    index = pellucid.Index.build(None, rows, metric="euclidean", kind="hnsw", M=4, efConstruction=10)
    curve = index.curve(queries, k=10, efSearch=(10, 40, 400))
    *graph, exact = curve.points
    assert [point.efSearch for point in graph] == [10, 40, 400] and exact.efSearch is None
    assert exact.recall == 1.0
    assert graph[0].recall < graph[1].recall < graph[2].recall <= 1
    expected = np.argsort(((queries[:, None] - rows) ** 2).sum(axis=2), axis=1)[:, :10]
    found = [{int(hit["id"]) - 1 for hit in hits} for hits in index.search(queries, k=10)]
    recall = np.mean([len(one & set(row)) / 10 for one, row in zip(found, expected.tolist())])
    used = next(point for point in index.curve(queries, efSearch=(curve.used or 0,)).points)
    assert recall >= used.recall - 0.02  # a search visits at least as many rows
    assert all(point.milliseconds > 0 and point.queries_per_second > 0 for point in curve.points)
    assert curve.used in [point.efSearch for point in index.curve(queries).points]
    assert curve.svg(tmp_path / "a.svg").read_text().count("<circle") == 4
    assert curve.png(tmp_path / "a.png", "dark").read_bytes().startswith(b"\x89PNG")


def test_equally_near_rows_count_as_found(clusters: tuple[np.ndarray, np.ndarray]) -> None:
    rows, queries = clusters
    index = pellucid.Index.build(None, np.repeat(rows[:300], 20, axis=0), kind="hnsw", progress=False)
    curve = index.curve(queries, k=10)
    assert min(point.recall for point in curve.points) > 0.8  # by row number, it would be half of that
    equal = pellucid.Index.build(None, np.ones((400, 8)), kind="hnsw", progress=False).curve(k=5)
    assert {point.recall for point in equal.points} == {1.0}


def test_deleted_rows_do_not_count_as_neighbours(clusters: tuple[np.ndarray, np.ndarray]) -> None:
    rows, queries = clusters
    index = pellucid.Index.build(None, rows[:500], kind="hnsw")
    index.delete([str(i) for i in range(1, 60)])
    curve = index.curve(queries, k=5)
    assert curve.rows == 441
    with pytest.raises(InputError, match="queries is empty"):
        index.curve(queries[:0])
    assert max(point.recall for point in curve.points) == 1.0


def test_index_without_graph_has_one_point_and_accepts_texts(index: pellucid.Index) -> None:
    curve = index.curve(["a bank", "soft drinks"], k=3)
    assert [(point.efSearch, point.recall) for point in curve.points] == [(None, 1.0)]
    assert (curve.queries, curve.rows, curve.used) == (2, 100, None)
    assert index.curve(k=1_000).points[0].recall == 1.0
    for k, efforts in ((0, None), (5, (0,))):
        with pytest.raises(InputError, match="is 0"):
            index.curve(k=k, efSearch=efforts)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_company_names_find_their_symbols(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """The 500 large companies that are listed, searched by name among 7,182."""
    listed_path, large_path = (shared(f"data/us_companies/{name}.csv") for name in ("us_listed", "sp500"))
    index = pellucid.Index.build("all-MiniLM-L6-v2", listed_path, tmp_path / "us.index", column="name", progress=False)
    first = index.search("Apple", k=5)[0]
    assert (first["text"], first["metadata"]["symbol"]) == ("Apple Inc. Common Stock", "AAPL")
    assert index.search("Microsfot", k=1)[0]["metadata"]["symbol"] == "MSFT"
    with large_path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names, symbols = ([row[column] for row in rows] for column in ("Security", "Symbol"))
    found = index.evaluate(names, symbols, (1, 5), by="symbol", unlisted="skip")
    assert found.queries >= 495
    assert found.recall[1] >= 0.96 and found.recall[5] >= 0.99, found
    again = pellucid.Index.open(index.folder).evaluate(names, symbols, (1, 5), by="symbol", unlisted="skip")
    assert (again.recall, again.mrr, again.misses) == (found.recall, found.mrr, found.misses)
