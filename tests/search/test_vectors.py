"""The nearest vectors: those of an exhaustive search, whatever the metric, the filter, the ties and the method."""

import gc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pellucid
from pellucid.errors import InputError
from pellucid.search import building, hnsw, vectors
from pellucid.search.effort import tuned_ef_search
from pellucid.search.manifest import METRICS, Settings
from pellucid.search.vectors import LazyVectors, Vectors, prepare_vectors


def exact_rows(query: np.ndarray, matrix: np.ndarray, metric: str, alive: np.ndarray | None, k: int) -> list[int]:
    """Compares every row in extended precision; of equal scores, the first row comes first."""
    extended, extended_query = matrix.astype(np.longdouble), query.astype(np.longdouble)
    score = (
        -((extended - extended_query) ** 2).sum(axis=1)
        if metric == "euclidean"
        else (extended * extended_query).sum(axis=1)
    )
    rows = np.arange(len(matrix)) if alive is None else np.flatnonzero(alive)
    return sorted(rows.tolist(), key=lambda row: (-score[row], row))[:k]


def clusters(rows: int, dimension: int = 32, seed: int = 0) -> np.ndarray:
    generator, centre_generator = np.random.default_rng(seed), np.random.default_rng(7)
    centres = centre_generator.standard_normal((20, dimension)) * 0.4
    store = centres[generator.integers(0, 20, rows)] + generator.standard_normal((rows, dimension)) * 0.5
    return store.astype(np.float32)


def nearest_rows(store: Vectors, *arguments: Any) -> list[np.ndarray]:
    """Only the rows."""
    return [rows for rows, _ in store.nearest(*arguments)]


@settings(max_examples=150, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    rows=st.integers(1, 60),
    dimension=st.integers(1, 9),
    k=st.integers(1, 70),
    share=st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_nearest_rows_match_brute_force(
    metric: str, rows: int, dimension: int, k: int, share: float | None, seed: int
) -> None:
    """Integers, so that there are many ties, and no rounding except of lengths."""
    generator = np.random.default_rng(seed)
    matrix = prepare_vectors(generator.integers(-2, 3, (rows, dimension)), metric)
    queries = prepare_vectors(generator.integers(-2, 3, (5, dimension)), metric)
    alive = None if share is None else generator.random(rows) < share
    found = Vectors(matrix, metric).nearest(queries, k, alive, 16)
    for query, (order, score) in zip(queries, found):
        expected = exact_rows(query, matrix, metric, alive, k)
        if metric == "cosine":  # lengths are rounded: equal directions may differ in the last digit
            near = dict(zip(order.tolist(), score.tolist()))
            assert len(near) == len(expected)
            best = np.sort((matrix @ query)[expected])
            assert np.allclose(np.sort(list(near.values())), best, atol=1e-6)
        else:
            assert order.tolist() == expected
        assert score.tolist() == sorted(score.tolist(), reverse=True)


@pytest.mark.parametrize("metric", METRICS)
def test_query_gives_the_same_rows_alone_and_in_a_batch(metric: str) -> None:
    matrix = prepare_vectors(np.repeat(clusters(300), 7, axis=0), metric)
    queries = prepare_vectors(clusters(40, seed=1), metric)
    graph = hnsw.build_graph(matrix, Settings(metric))
    for store in (Vectors(matrix, metric), Vectors(matrix, metric, graph)):
        together = store.nearest(queries, 10, None, 32)
        for query, (rows, score) in zip(queries, together):
            ((alone, own_score),) = store.nearest(query[None], 10, None, 32)
            assert alone.tolist() == rows.tolist()
            assert own_score.tolist() == score.tolist()
    exact = nearest_rows(Vectors(matrix, metric), queries, 10, None, 0)
    assert all(rows[0] % 7 == 0 and rows.tolist()[:7] == list(range(rows[0], rows[0] + 7)) for rows in exact)


@pytest.mark.parametrize("metric", METRICS)
def test_many_equal_rows_are_ordered_by_row_number(metric: str) -> None:
    matrix = np.tile(prepare_vectors(clusters(1), metric), (5_000, 1))
    (rows,) = nearest_rows(Vectors(matrix, metric), matrix[:1], 5, None, 0)
    assert rows.tolist() == [0, 1, 2, 3, 4]


def test_rows_equal_in_float32_are_ordered_exactly() -> None:
    """Coordinates near 1,000 that differ by 0.05: the approximate order, in float32, is noise."""
    generator = np.random.default_rng(0)
    matrix = (1_000 + generator.standard_normal((400, 8)) * 0.05).astype(np.float32)
    query = (1_000 + generator.standard_normal((1, 8)) * 0.05).astype(np.float32)
    (rows,) = nearest_rows(Vectors(matrix, "euclidean"), query, 20, None, 0)
    assert rows.tolist() == exact_rows(query[0], matrix, "euclidean", None, 20)


@pytest.fixture(scope="module")
def graph_vectors() -> Vectors:
    matrix = prepare_vectors(clusters(20_000), "cosine")
    graph = hnsw.build_graph(matrix, Settings("cosine"))
    return Vectors(matrix, "cosine", graph)


@pytest.mark.parametrize("share", [1.0, 0.98, 0.7, 0.4, 0.1, 0.01, 0.0005])
@pytest.mark.parametrize("kind", ["by chance", "near", "far"])
def test_filtered_graph_search_finds_the_nearest_rows(graph_vectors: Vectors, share: float, kind: str) -> None:
    queries = prepare_vectors(clusters(50, seed=3), "cosine")
    if kind == "by chance":
        alive = np.random.default_rng(1).random(20_000) < share
    else:
        similarity = graph_vectors.numbers @ queries[0] * (1 if kind == "near" else -1)
        alive = similarity >= np.sort(similarity)[-max(int(share * 20_000), 1)]
    found = nearest_rows(graph_vectors, queries, 10, alive, 64)
    exact = nearest_rows(Vectors(graph_vectors.numbers, "cosine"), queries, 10, alive, 0)
    assert all(alive[rows].all() and len(set(rows)) == len(rows) for rows in found)
    assert [len(rows) for rows in found] == [len(rows) for rows in exact]
    assert np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, exact)]) >= 0.95


def test_filter_far_from_the_query_still_gives_k_rows(graph_vectors: Vectors) -> None:
    """A search of few candidates finds too few matches; then it keeps more, and in the end it compares all rows."""
    query = graph_vectors.numbers[:1]
    alive = graph_vectors.numbers @ query[0] < np.quantile(graph_vectors.numbers @ query[0], 0.6)
    found = hnsw.search_graph(graph_vectors.graph, query, 10, alive, 12)
    assert found.min() < 0, "the walk found enough: this test shows nothing"
    ((rows, score),) = graph_vectors.nearest(query, 10, alive, 12)
    assert rows.tolist() == exact_rows(query[0], graph_vectors.numbers, "cosine", alive, 10)
    assert len(score) == 10


def test_neighbours_are_found_although_the_nearest_are_filtered_out(graph_vectors: Vectors) -> None:
    """FAISS's own filter of rows met matches only on the way, and found 7 of 10."""
    queries = graph_vectors.numbers[np.random.default_rng(2).choice(20_000, 40, replace=False)]
    near = np.argsort(-(queries @ graph_vectors.numbers.T), axis=1)[:, :200]
    alive = np.ones(20_000, bool)
    alive[near] = False
    assert 0.6 < alive.mean() < 0.9
    found = nearest_rows(graph_vectors, queries, 10, alive, 16)
    exact = nearest_rows(Vectors(graph_vectors.numbers, "cosine"), queries, 10, alive, 0)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact)]) >= 0.95


@pytest.mark.parametrize("metric", METRICS)
def test_tuned_effort_is_enough_for_new_queries(metric: str) -> None:
    matrix = prepare_vectors(clusters(8_000), metric)
    graph = hnsw.build_graph(matrix, Settings(metric, M=16, efSearch=4))
    effort = tuned_ef_search(Vectors(matrix, metric, graph), Settings(metric, efSearch=4))
    queries = prepare_vectors(clusters(200, seed=5), metric)
    exact = nearest_rows(Vectors(matrix, metric), queries, 10, None, 0)

    def recall(ef: int) -> float:
        found = hnsw.search_graph(graph, queries, 10, None, ef)
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact)]))

    assert recall(effort) >= 0.94
    assert recall(4) < 0.9, "the least effort was enough: this test shows nothing"
    assert 30 * effort < len(matrix), "every row was compared: this test shows nothing"


@pytest.mark.parametrize("metric", METRICS)
def test_read_graph_is_aligned_to_cache_lines_and_finds_the_same(metric: str, tmp_path: Path) -> None:
    matrix, queries = prepare_vectors(clusters(2_000), metric), prepare_vectors(clusters(40, seed=5), metric)
    graph, path = hnsw.build_graph(matrix, Settings(metric)), tmp_path / "graph"
    hnsw.write_graph(graph, path)
    again, store = hnsw.read_graph(path, *matrix.shape, metric)
    assert store.ctypes.data % hnsw.CACHE_LINE == 0
    assert np.array_equal(store, matrix)
    del store
    path.unlink()
    gc.collect()
    _others = [np.full(matrix.nbytes, 255, np.uint8) for _ in range(8)]  # overwrites freed memory
    assert np.array_equal(
        hnsw.search_graph(again, queries, 10, None, 32), hnsw.search_graph(graph, queries, 10, None, 32)
    )


@pytest.mark.parametrize("metric", METRICS)
def test_vectors_of_a_graph_outlive_it(metric: str) -> None:
    matrix = prepare_vectors(clusters(2_000), metric)
    graph = hnsw.build_graph(matrix, Settings(metric))
    store = hnsw.graph_vectors(graph)
    del graph
    gc.collect()
    _others = [np.full(matrix.nbytes, 255, np.uint8) for _ in range(8)]  # overwrites freed memory
    assert np.array_equal(store, matrix) and store.flags.c_contiguous


@pytest.mark.parametrize("first", [0, 16, 4095])
@pytest.mark.parametrize("size", [1, hnsw.LARGE_PAGE - 1, hnsw.LARGE_PAGE, hnsw.LARGE_PAGE + 8191])
def test_large_pages_are_zeroed_and_neighbouring_memory_is_unchanged(first: int, size: int) -> None:
    memory = np.full((6 << 20,), 7, np.uint8)
    memory[first : first + size] = 0
    hnsw._on_large_pages(memory.ctypes.data + first, size)
    assert not memory[first : first + size].any()
    assert (memory[:first] == 7).all() and (memory[first + size :] == 7).all()


def test_equal_vectors_do_not_raise_the_effort() -> None:
    matrix = np.tile(prepare_vectors(clusters(1), "cosine"), (500, 1))
    for store in (matrix, matrix[:1]):
        assert tuned_ef_search(Vectors(store, "cosine", hnsw.build_graph(store, Settings())), Settings()) == 16


def test_repeated_rows_do_not_hide_others() -> None:
    """Nine of ten rows repeat some of four hundred; the others are nevertheless found by themselves."""
    generator, low_effort = np.random.default_rng(7), Settings(efSearch=4)
    texts = generator.standard_normal((2_400, 64)).astype(np.float32)
    rows = np.concatenate([np.arange(2_000), 2_000 + generator.integers(0, 400, 18_000)])
    generator.shuffle(rows)
    matrix = prepare_vectors(texts[rows], "cosine")
    store = Vectors(matrix, "cosine", hnsw.build_graph(matrix, low_effort))
    found = store.nearest(prepare_vectors(texts[:300], "cosine"), 10, None, tuned_ef_search(store, low_effort))
    assert sum(score[0] > 0.9999 for _, score in found) >= 285


def test_vectors_that_could_not_be_opened_again_are_refused(tmp_path: Path) -> None:
    wrong: dict[str, object] = {
        "holds a number that is not finite": np.array([[np.inf, 1], [1, 2]], np.float16),
        "dimension is 0": np.zeros((3, 0)),
        "dimension is 70000": np.zeros((2, 70_000), np.float32),
        "not a table of numbers": torch.zeros(3, 3, requires_grad=True),
    }
    for fragment, matrix in wrong.items():
        with pytest.raises(InputError, match=fragment):
            pellucid.Index.build(None, matrix, tmp_path / "index")
        assert not (tmp_path / "index").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pellucid.Index.build(None, np.ones((2, 3), np.float16), tmp_path / "index")) == 2


@pytest.mark.parametrize("metric", ["dot", "euclidean"])
def test_products_that_underflow_in_float32_are_ordered_exactly(metric: str) -> None:
    generator = np.random.default_rng(3)
    matrix = (generator.standard_normal((3_000, 64)) * 1e-23).astype(np.float32)
    queries = (generator.standard_normal((20, 64)) * 1e-23).astype(np.float32)
    for query, rows in zip(queries, nearest_rows(Vectors(matrix, metric), queries, 5, None, 0)):
        assert rows.tolist() == exact_rows(query, matrix, metric, None, 5)


def test_graph_index_finds_the_rows_of_a_flat_one() -> None:
    matrix = clusters(3_000)
    queries = clusters(30, seed=2)
    for metric in METRICS:
        flat = pellucid.Index.build(None, matrix, kind="flat", metric=metric).search(queries, k=5)
        walked = pellucid.Index.build(None, matrix, kind="hnsw", metric=metric, efSearch=128).search(queries, k=5)
        same = [one["id"] == other["id"] for a, b in zip(flat, walked) for one, other in zip(a, b)]
        assert np.mean(same) >= 0.95


def test_vectors_are_prepared_in_blocks_and_invalid_rows_are_named() -> None:
    source = clusters(2_500).astype(np.float64) * 1e-30
    whole = prepare_vectors(source, "cosine")
    assert whole.dtype == np.float32
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    assert np.array_equal(whole[1_020:1_030], LazyVectors(source, "cosine")[1_020:1_030])
    assert (
        prepare_vectors(np.zeros((1, 3)), "cosine").tolist()
        == [[0, 0, 0]]
        == prepare_vectors([[0, 1e-160, 0]], "cosine").tolist()
    )
    for bad, fragment in ((np.nan, "not finite"), (-np.inf, "not finite"), (1e16, r"beyond 1e\+15")):
        source[2_200, 3] = bad
        with pytest.raises(InputError, match=f"row 2200 holds a number.*{fragment}"):
            prepare_vectors(source, "dot")
    for metric in ("dot", "euclidean", "cosine"):  # the smallest integer, whose absolute value its dtype cannot hold
        with pytest.raises(InputError, match=r"row 0 holds a number beyond 1e\+15"):
            prepare_vectors(np.full((2, 3), -(2**63), np.int64), metric)
    for small in (np.full((1, 2), -128, np.int8), np.full((1, 2), 255, np.uint8), np.full((1, 2), True)):
        assert prepare_vectors(small, "dot").tolist() == small.tolist()
    for wrong in (np.ones(3), np.ones((1, 2, 3))):
        with pytest.raises(InputError, match=r"have the shape"):
            prepare_vectors(wrong, "dot")
    with pytest.raises(InputError, match="expected numbers"):
        prepare_vectors(np.array([["a"]]), "dot")
    with pytest.raises(InputError, match="not a table of numbers"):
        prepare_vectors([[1.0, 2.0], [3.0]], "dot")


def test_query_is_scaled_like_the_rows() -> None:
    """Even where its numbers are 0 in float32."""
    rows = np.random.default_rng(0).standard_normal((5, 8)) * 1e-50
    found = pellucid.Index.build(None, rows, progress=False).search(rows[2], k=1)
    assert (found[0]["id"], found[0]["score"]) == ("3", pytest.approx(1.0, abs=1e-6))


def test_scores_do_not_depend_on_the_number_of_rows() -> None:
    matrix = clusters(vectors.BLOCK + 5)
    query = clusters(1, seed=9)[0]
    for metric in METRICS:
        together = vectors.scores(query, matrix, metric)
        alone = [float(vectors.scores(query, row[None], metric)[0]) for row in matrix[-9:]]
        assert together[-9:].tolist() == alone


def test_kind_of_each_segment_follows_the_requested_kind_and_its_size(
    minilm: pellucid.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "FLAT_UP_TO", 30)
    kinds = {}
    for kind in ("flat", "auto", "hnsw"):
        index = pellucid.Index.build(minilm, [f"text number {i}" for i in range(20)], kind=kind, progress=False)
        index.add([f"another text {i}" for i in range(35)], progress=False)
        index.add(["a text alone"], progress=False)
        kinds[kind] = [segment["kind"] for segment in index.info()["segments"]]
        index.compact(progress=False)
        kinds[kind].append(index.manifest.segments[0].kind)
        assert index.manifest.settings.kind == index.info()["settings"]["kind"] == kind
    assert kinds == {
        "flat": ["flat", "flat", "flat", "flat"],
        "auto": ["flat", "hnsw", "flat", "hnsw"],
        "hnsw": ["hnsw", "hnsw", "flat", "hnsw"],
    }


def test_tuned_effort_is_stored_when_a_graph_is_added(minilm: pellucid.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "FLAT_UP_TO", 30)
    monkeypatch.setattr(vectors, "ROWS_PER_CANDIDATE", 0)
    options = {"M": 2, "efConstruction": 1, "efSearch": 1}
    index = pellucid.Index.build(minilm, ["a text alone"], **options, progress=False)
    index.add([f"text {i} of {7 * i % 100} other ones" for i in range(200)], progress=False)
    graph = index.segments[1].vectors
    assert index.manifest.settings.efSearch == tuned_ef_search(graph, Settings(**options)) > 1
