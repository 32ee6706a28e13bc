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
from pellucid.search.opened import Generation, Segments


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_measures_are_those_of_another_library(data: st.DataObject) -> None:
    many = data.draw(st.integers(2, 12))
    names = [f"text {i}" for i in range(many)]
    grades = data.draw(st.lists(st.integers(0, 3), min_size=many, max_size=many).filter(any))
    found = data.draw(st.permutations(names))
    k = data.draw(st.integers(1, many))
    wanted = dict(zip(names, map(float, grades)))
    recall, rank, gain = score_query(found, wanted, k)
    scores = [[-found.index(name) for name in names]]
    assert math.isclose(gain, ndcg_score([grades], scores, k=k), abs_tol=1e-12)
    right = [name for name in names if wanted[name]]
    assert recall == sum(name in found[:k] for name in right) / len(right)
    if len(right) == 1:  # the average precision is then one divided by the rank
        _, whole, _ = score_query(found, wanted, many)
        assert math.isclose(whole, label_ranking_average_precision_score([[g > 0 for g in grades]], scores))
        assert rank == (whole if found.index(right[0]) < k else 0)


def test_what_was_not_found_counts_as_nothing() -> None:
    wanted = {"a": 2.0, "b": 1.0, "c": 0.0}
    assert score_query([], {"a": 1.0}, 5) == score_query(["x", "a"], wanted, 1) == (0.0, 0.0, 0.0)
    gain = pytest.approx((2 / math.log2(3)) / (2 + 1 / math.log2(3)))
    assert score_query(["x", "a"], wanted, 2) == score_query(["x", "x", "a"], wanted, 3) == (0.5, 0.5, gain)


def test_a_search_is_judged_and_every_miss_is_named(index: pellucid.Index) -> None:
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


def test_what_the_first_search_makes_ready_is_not_measured(
    index: pellucid.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = pellucid.Index.search, []

    def search(self: pellucid.Index, *asked: Any, **how: Any) -> Any:
        if not calls:
            time.sleep(1.0)
        calls.append(asked)
        return plain(self, *asked, **how)

    monkeypatch.setattr(pellucid.Index, "search", search)
    assert index.evaluate(["Apple"], ["AAPL"], k=1).seconds < 1.0 and len(calls) == 2


def test_answers_may_be_those_of_a_data_frame(index: pellucid.Index) -> None:
    plain = index.evaluate(["Apple", "a bank"], [["AAPL"], {"JPM": 2, "BAC": 1}], k=5)
    grades = dict(zip(["JPM", "BAC"], np.array([2, 1])))
    given = index.evaluate(["Apple", "a bank"], [np.array(["AAPL"]), grades], k=5)
    assert (given.recall, given.mrr, given.ndcg) == (plain.recall, plain.mrr, plain.ndcg)
    assert index.evaluate(["Apple"], [{"AAPL": np.float32(2)}], k=1).ndcg[1] == 1.0


class NAType:
    """Like pandas' `NA`."""


@pytest.mark.parametrize("nothing", [None, math.nan, np.float32("nan"), NAType(), ""])
def test_a_cell_in_which_nothing_stands_is_no_answer(index: pellucid.Index, nothing: object) -> None:
    for right in (["AAPL", nothing], {"AAPL": 1, nothing: 1}):
        assert index.evaluate(["Apple"], [right], k=1).recall == {1: 1.0}
    assert index.evaluate(["Apple"], [["Cupertino, California", nothing]], k=1, by="headquarters").recall == {1: 1.0}
    with pytest.raises(InputError, match="query 0 has no right answer"):
        index.evaluate(["Apple"], [nothing])


def test_null_in_a_row_is_nobodys_answer(minilm: pellucid.Model) -> None:
    rows = [{"text": "alpha", "c": None}, {"text": "beta", "c": "None"}, {"text": "gamma"}, {"text": "delta", "c": ""}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for query in ("alpha", "gamma", "delta"):
        found = index.evaluate([query, "beta"], ["None", "None"], k=1, by="c")
        assert found.recall == {1: 0.5} and [miss.instead for miss in found.misses] == [""], query


@pytest.mark.parametrize("held", [["x", "é", 1.5], {"a": [None, True]}, []])
def test_a_list_is_an_answer_as_a_condition_spells_it(minilm: pellucid.Model, held: Any) -> None:
    rows = [{"text": "alpha", "c": held}, {"text": "beta", "c": "x"}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    spelled = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
    assert [hit["text"] for hit in index.search("alpha", where={"c": spelled})] == ["alpha"]
    for right in (spelled, [held], [spelled, "nothing"]):
        assert index.evaluate(["alpha"], [right], k=1, by="c").recall[1] == (1.0 if "nothing" not in right else 0.5)
    with pytest.raises(InputError, match="the index has no c"):
        index.evaluate(["alpha"], [[[*held, object()]]], by="c")


def test_a_whole_number_that_a_gap_made_a_float_is_its_id(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, [(1, "a dog"), (2, "a cat"), (3.0, "a cow")], progress=False)
    for right in ([1.0, math.nan], {np.float64(1): 1}, 1.0):
        assert index.evaluate(["a dog"], [right], k=1).recall == {1: 1.0}
    assert index.evaluate(["a cow"], [3.0], k=1).recall == {1: 1.0}


def test_a_column_may_stand_for_the_ids(index: pellucid.Index) -> None:
    found = index.evaluate(
        ["Apple", "Microsoft"], ["Cupertino, California", "Redmond, Washington"], 1, by="headquarters"
    )
    assert found.recall == {1: 1.0}
    with pytest.raises(InputError, match=r"no row has 'headquartes' .did you mean headquarters"):
        index.evaluate(["Apple"], ["Cupertino"], by="headquartes")


def test_what_is_measured_at_k_does_not_depend_on_what_else_is(index: pellucid.Index) -> None:
    """A column's values recur among the hits, and a search looks further for more of them."""
    queries, right = ["soft drinks", "a bank", "cars"], ["Industrials", "Health Care", "Energy"]
    alone = [index.evaluate(queries, right, k, by="sector") for k in (2, 5, 60)]
    together = index.evaluate(queries, right, (2, 5, 60), by="sector")
    for one in alone:
        (k,) = one.recall
        assert (one.recall[k], one.mrr[k], one.ndcg[k]) == (together.recall[k], together.mrr[k], together.ndcg[k])
    assert alone[0].recall[2] < alone[2].recall[60] == 1.0


def test_so_it_is_of_a_graph_with_deleted_rows(minilm: pellucid.Model) -> None:
    """There, a search for more results visits more of the graph."""
    texts = [f"row {i} of {i * 7 % 53} and {i * 31 % 17}" for i in range(2_000)]
    index = pellucid.Index.build(minilm, texts, kind="hnsw", M=4, efConstruction=4, efSearch=4, progress=False)
    index.delete("1")
    queries = [f"{i} and {i}" for i in range(40)]
    true = [[hit["id"] for hit in replaced(index).search(one, k=5, mode="dense")] for one in queries]
    alone = index.evaluate(queries, true, 5, mode="dense").recall[5]
    assert index.evaluate(queries, true, (5, 60), mode="dense").recall[5] == alone


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_so_it_is_where_passages_of_one_text_crowd_the_first_places(
    checkpoint: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for more texts then reads more rows, in another order."""
    monkeypatch.setattr(retrieval, "DEPTH", 20)
    chance = np.random.default_rng(0)
    texts = [(f"t{i}", " ".join(f"w{j}" for j in chance.integers(0, 200, size=9 + i % 4 * 300))) for i in range(12)]
    index = pellucid.Index.build(checkpoint("bert-body"), texts, kind=kind, passage_tokens=12, progress=False)
    queries = [" ".join(f"w{j}" for j in chance.integers(0, 200, size=3)) for _ in range(30)]
    for mode in retrieval.MODES:
        found = {k: [[hit["id"] for hit in hits] for hits in index.search(queries, k=k, mode=mode)] for k in (3, 4, 10)}
        together = index.evaluate(queries, found[3], (3, 4, 10), mode=mode)
        assert together.recall[3] == 1.0, mode
        for k, names in found.items():
            shares = [score_query(one, dict.fromkeys(right, 1.0), k) for one, right in zip(names, found[3])]
            assert (together.recall[k], together.mrr[k], together.ndcg[k]) == pytest.approx(tuple(np.mean(shares, 0)))


def replaced(index: pellucid.Index) -> pellucid.Index:
    """The same index without a graph."""
    segments = Segments(replace(one, vectors=replace(one.vectors, graph=None)) for one in index.segments)
    return pellucid.Index(Generation(index.folder, index.manifest, segments), index.loaded)


@pytest.mark.parametrize("right", [1999, 1999.0, "1999", True, "TRUE"])
def test_a_value_is_the_same_as_in_a_condition(minilm: pellucid.Model, right: object) -> None:
    column = "" if "1999" in str(right) else "old"  # the name that pandas writes for the column of its index
    rows = [{"text": "alpha", "": 1999.0, "old": True}, {"text": "beta", "": 2001, "old": False}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    assert index.evaluate(["alpha"], [right], k=1, by=column).recall == {1: 1.0}


@pytest.mark.parametrize(
    "right",
    [
        date(2026, 1, 2),
        "2026-01-02 00:00:00",
        np.datetime64("2026-01-02T00:00:00.000"),
        np.datetime64("2026-01-02", "ns"),
    ],
)
def test_so_is_a_date_however_it_is_spelled(minilm: pellucid.Model, right: object) -> None:
    rows = [{"text": "alpha", "d": "2026-01-02T00:00"}, {"text": "beta", "d": datetime(2026, 1, 2, tzinfo=UTC)}]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    found = index.evaluate(["alpha", "beta"], [right, rows[1]["d"]], 1, by="d")
    assert found.recall == {1: 1.0}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_so_is_its_column_and_letters_with_accents_are_the_same_in_each_form(minilm: pellucid.Model, form: Any) -> None:
    rows = [{"text": text, unicodedata.normalize(form, "née"): "caf\u00e9"} for text in ("alpha", "beta")]
    index = pellucid.Index.build(minilm, rows, column="text", progress=False)
    for right in ("caf\u00e9", "cafe\u0301"):
        found = index.evaluate(["alpha", "beta"], [right, {right: 1}], k=2, by="n\u00e9e")
        assert found.recall == found.mrr == {2: 1.0} and not found.misses
    with pytest.raises(InputError, match="the index has no née thé, the right answers of 1"):
        index.evaluate(["alpha"], ["the\u0301"], by="n\u00e9e")


def test_more_queries_than_are_asked_at_a_time_have_the_same_answers(index: pellucid.Index) -> None:
    names = [(hit["text"], hit["id"]) for hit in index.search("company", k=100)] * 3
    asked, right = zip(*names)
    found = index.evaluate(asked, right, k=1)
    assert found.queries == 300
    assert found.recall[1] == 1.0


@pytest.mark.parametrize(
    ("asked", "right", "said"),
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
def test_what_cannot_be_judged_is_said(index: pellucid.Index, asked: list, right: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        index.evaluate(asked, right)


def test_where_there_are_no_columns_or_no_texts_that_is_said(minilm: pellucid.Model) -> None:
    index = pellucid.Index.build(minilm, ["a cat", "a dog"], progress=False)
    with pytest.raises(InputError, match=r"^no row has 's'; rows have no columns beside the text$"):
        index.evaluate(["a cat"], ["x"], by="s")
    index.delete(["1", "2"])
    for by, unlisted in (("s", "error"), (None, "skip")):
        with pytest.raises(InputError, match=r"holds no texts: add some first$"):
            index.evaluate(["a cat"], ["1"], by=by, unlisted=unlisted)


def test_the_depths_and_the_rule_are_checked(index: pellucid.Index) -> None:
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
    chance = np.random.default_rng(0)
    middles = chance.standard_normal((60, 32))

    def around(many: int) -> np.ndarray:
        spread = 0.7 * chance.standard_normal((many, 32))
        return (middles[chance.integers(0, 60, many)] + spread).astype(np.float32)

    return around(6_000), around(100)


def test_recall_rises_with_the_effort_and_is_that_of_brute_force(
    clusters: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    rows, queries = clusters
    held = pellucid.Index.build(None, rows, metric="euclidean", kind="hnsw", M=4, efConstruction=10)
    curve = held.curve(queries, k=10, efSearch=(10, 40, 400))
    *graph, exact = curve.points
    assert [point.efSearch for point in graph] == [10, 40, 400] and exact.efSearch is None
    assert exact.recall == 1.0
    assert graph[0].recall < graph[1].recall < graph[2].recall <= 1
    true = np.argsort(((queries[:, None] - rows) ** 2).sum(axis=2), axis=1)[:, :10]
    found = [{int(hit["id"]) - 1 for hit in hits} for hits in held.search(queries, k=10)]
    share = np.mean([len(one & set(row)) / 10 for one, row in zip(found, true.tolist())])
    used = next(point for point in held.curve(queries, efSearch=(curve.used or 0,)).points)
    assert share >= used.recall - 0.02  # a search visits at least as many rows
    assert all(point.milliseconds > 0 and point.queries_per_second > 0 for point in curve.points)
    assert curve.used in [point.efSearch for point in held.curve(queries).points]
    assert curve.svg(tmp_path / "a.svg").read_text().count("<circle") == 4
    assert curve.png(tmp_path / "a.png", "dark").read_bytes().startswith(b"\x89PNG")


def test_what_is_as_near_as_a_true_neighbour_is_one(clusters: tuple[np.ndarray, np.ndarray]) -> None:
    rows, queries = clusters
    held = pellucid.Index.build(None, np.repeat(rows[:300], 20, axis=0), kind="hnsw", progress=False)
    curve = held.curve(queries, k=10)
    assert min(point.recall for point in curve.points) > 0.8  # by row number, it would be half of that
    alike = pellucid.Index.build(None, np.ones((400, 8)), kind="hnsw", progress=False).curve(k=5)
    assert {point.recall for point in alike.points} == {1.0}


def test_deleted_rows_are_no_neighbours(clusters: tuple[np.ndarray, np.ndarray]) -> None:
    rows, queries = clusters
    held = pellucid.Index.build(None, rows[:500], kind="hnsw")
    held.delete([str(i) for i in range(1, 60)])
    curve = held.curve(queries, k=5)
    assert curve.rows == 441
    assert max(point.recall for point in curve.points) == 1.0


def test_an_index_without_a_graph_has_one_point_and_texts_are_queries_too(index: pellucid.Index) -> None:
    curve = index.curve(["a bank", "soft drinks"], k=3)
    assert [(point.efSearch, point.recall) for point in curve.points] == [(None, 1.0)]
    assert (curve.queries, curve.rows, curve.used) == (2, 100, None)
    assert index.curve(k=1_000).points[0].recall == 1.0
    for k, tried in ((0, None), (5, (0,))):
        with pytest.raises(InputError, match="is 0"):
            index.curve(k=k, efSearch=tried)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_names_of_companies_find_their_own_symbol(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """The 500 large companies that are listed, searched by name among 7,182."""
    listed, large = (shared(f"data/us_companies/{name}.csv") for name in ("us_listed", "sp500"))
    index = pellucid.Index.build("all-MiniLM-L6-v2", listed, tmp_path / "us.index", column="name", progress=False)
    first = index.search("Apple", k=5)[0]
    assert (first["text"], first["metadata"]["symbol"]) == ("Apple Inc. Common Stock", "AAPL")
    assert index.search("Microsfot", k=1)[0]["metadata"]["symbol"] == "MSFT"
    with large.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names, symbols = ([row[column] for row in rows] for column in ("Security", "Symbol"))
    found = index.evaluate(names, symbols, (1, 5), by="symbol", unlisted="skip")
    assert found.queries >= 495
    assert found.recall[1] >= 0.96 and found.recall[5] >= 0.99, found
    again = pellucid.Index.open(index.folder).evaluate(names, symbols, (1, 5), by="symbol", unlisted="skip")
    assert (again.recall, again.mrr, again.misses) == (found.recall, found.mrr, found.misses)
