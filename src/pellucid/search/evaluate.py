"""Search quality, measured on queries with known right answers."""

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pellucid.config.checks import (
    check_choice,
    check_count,
    is_list_like,
    is_one_of,
    require_integers,
    require_list,
    unwrap_arrow,
)
from pellucid.errors import Argument, InputError, Item, format_count, join_names, normalize_nfc
from pellucid.search.condition_checks import unknown_column_message
from pellucid.search.conditions import Condition, as_json, canonical_number, truth_of
from pellucid.search.corpus import column_named
from pellucid.search.dates import canonical_date
from pellucid.search.ids import id_of
from pellucid.search.metadata import to_json_value
from pellucid.search.opened_generation import OpenSegment
from pellucid.search.retrieval import SearchRequest
from pellucid.search.vectors import min_candidates
from pellucid.text.rows import base_value, is_missing, matching_name
from pellucid.text.truncation import replace_surrogates

if TYPE_CHECKING:
    from pellucid.search.index import Index

QUERIES_PER_SEARCH, VALUES_PER_CONDITION = 256, 400
"""Queries searched at a time, and values looked up at a time, of which an SQL statement takes only so many."""

_NUMBERS = (int, float, np.integer, np.floating)

Grades = dict[str, float]
"""The right answers of one query, each with its grade."""


@dataclass(frozen=True)
class Miss:
    """A query whose first hit is not a right answer.

    expected: the right answers.  rank: the rank of the first one among the hits, from 1; None where none was found.
    instead: the first hit; None where nothing was found.
    """

    query: str
    expected: tuple[str, ...]
    rank: int | None
    instead: str | None


@dataclass(frozen=True)
class Evaluation:
    """The quality of a search; each number is a mean over the queries, from 0 to 1, by k.

    recall: the share of the right answers among the first k.
    mrr: one divided by the rank of the first right answer, 0 where the first k have none (Voorhees, 1999).
    ndcg: the grades found, each divided by log2(1 + rank), relative to the best possible order (Järvelin and
        Kekäläinen, 2002, doi:10.1145/582415.582418); grades are used as they are.
    queries: number of queries searched.  unlisted: number of those skipped, since no right answer is in the index.
    misses: the queries that missed, in order.  seconds: for all queries, after a warm-up search.
    """

    recall: dict[int, float]
    mrr: dict[int, float]
    ndcg: dict[int, float]
    queries: int
    unlisted: int
    seconds: float
    misses: tuple[Miss, ...]

    def data(self) -> dict[str, Any]:
        """All of it, as JSON-compatible values."""
        return asdict(self)

    def __repr__(self) -> str:
        at_k = (
            f"recall@{k} {self.recall[k]:.4f}, MRR@{k} {self.mrr[k]:.4f}, nDCG@{k} {self.ndcg[k]:.4f}"
            for k in self.recall
        )
        return f"Evaluation({format_count(self.queries, 'query', 'queries')}: {'; '.join(at_k)})"


def evaluate_search(
    index: "Index",
    queries: Iterable[str],
    answers: Iterable[Any],
    depths: int | Sequence[int],
    by: str | None,
    unlisted: str,
    options: Mapping[str, Any],
) -> Evaluation:
    """See `Index.evaluate`."""
    check_choice("unlisted", unlisted, ("error", "skip"))
    by = column_named("by", by)
    ks = _sorted_ks(depths)
    query_list, grades_by_query = _queries_and_answers(index, queries, answers, by)
    answerable = _answerable_queries(index, query_list, grades_by_query, by, unlisted)
    searched, grades = [query_list[i] for i in answerable], [grades_by_query[i] for i in answerable]
    if not is_one_of(options.get("mode"), "words"):
        _ = index.loaded  # loading the model is not part of a search
    index.search("a", k=ks[0], **options)  # nor is what the first search prepares
    started = time.perf_counter()
    found = _search_all(index, searched, ks, by, options)
    seconds = time.perf_counter() - started
    scores_by_k = {k: [score_query(names, right, k) for names, right in zip(found[k], grades)] for k in ks}
    recall, mrr, ndcg = (
        {k: math.fsum(one[part] for one in scores_by_k[k]) / len(searched) for k in ks} for part in range(3)
    )
    misses = tuple(filter(None, map(_miss, searched, grades, found[ks[-1]])))
    return Evaluation(recall, mrr, ndcg, len(searched), len(query_list) - len(searched), seconds, misses)


def score_query(found: Sequence[str], grades: Mapping[str, float], k: int) -> tuple[float, float, float]:
    """Recall, reciprocal rank and nDCG of one query at k.

    found: the hits, best first; of duplicates among the first k only the first counts.
    grades: the grade of each answer; 0 is wrong.
    """
    names = list(dict.fromkeys(found[:k]))
    right = {name for name, grade in grades.items() if grade > 0}
    first = next((rank for rank, name in enumerate(names, 1) if name in right), None)
    best = sorted(grades.values(), reverse=True)[:k]
    gain = _dcg([grades.get(name, 0.0) for name in names]) / _dcg(best)
    return len(right.intersection(names)) / len(right), 0.0 if first is None else 1 / first, gain


def _dcg(grades: Sequence[float]) -> float:
    return math.fsum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades, 1))


def _sorted_ks(depths: int | Sequence[int]) -> list[int]:
    """The values of k, sorted."""
    ks = require_integers("k", depths, "whole numbers") if is_list_like(depths) else [depths]
    if not ks:
        raise InputError("k names no number: give one or several, such as k=(1, 5)")
    return sorted({check_count("k", k) for k in ks})


def _queries_and_answers(
    index: "Index", queries: Iterable[str], answers: Iterable[Any], by: str | None
) -> tuple[list[str], list[Grades]]:
    """The queries and the grades of their answers."""
    if isinstance(queries, str) or isinstance(answers, str):
        raise InputError("queries and answers are lists, one right answer or several for each query")
    for name, one in (("queries", queries), ("answers", answers)):
        if hasattr(type(one), "columns"):
            raise InputError(Argument(name), f" is {type(one).__name__}, expected a list: give one of its columns")
    queries = queries.keys() if isinstance(queries, Mapping) else queries
    query_list = require_list("queries", queries, "a list of texts")
    answer_list = require_list("answers", answers, "a list")
    if len(query_list) != len(answer_list):
        counts = f"{format_count(len(query_list), 'query', 'queries')} and {format_count(len(answer_list), 'answer')}"
        raise InputError(f"{counts} were given: give each query its own")
    if not query_list:
        raise InputError("there are no queries to evaluate with")
    for i, one in enumerate(query_list):
        if isinstance(one, str) and not one.strip():
            raise InputError(Item(i, "query"), " holds nothing to look for")
    return [*map(base_value, query_list)], [_grades(index, one, i, by) for i, one in enumerate(answer_list)]


def _grades(index: "Index", answer: Any, number: int, by: str | None) -> Grades:
    """The grades of an id, several, or ids with grades; or of values of a column. Missing values are ignored."""
    has_id = index.segments.has_id
    pairs = answer.items() if isinstance(answer, Mapping) else [(one, 1.0) for one in _all_of(answer)]
    known = [(name, grade) for name, grade in pairs if not (is_missing(name) or is_one_of(name, ""))]
    grades: Grades = {}
    for value, grade in known:
        name = _answer_key(id_of(value, has_id) if by is None else value, by)
        if isinstance(grade, bool) or not isinstance(grade, _NUMBERS) or not 0 <= grade <= 1e30:
            wrong = f": the answer {name!r} has the grade {grade!r}, expected a number from 0 to 1e30"
            raise InputError(Item(number, "query"), wrong)
        if grades.setdefault(name, float(grade)) != grade:  # 1 and "1" are the same id
            both = f": the answer {name!r} is graded {grades[name]:g} and {grade:g}: leave one of them out"
            raise InputError(Item(number, "query"), both)
    if not any(grades.values()):
        raise InputError(Item(number, "query"), " has no right answer: name one id at least")
    return grades


def _all_of(value: Any) -> Iterable[Any]:
    return unwrap_arrow(value) if is_list_like(value) else [value]


def _answer_key(value: Any, by: str | None) -> str:
    """An id; or the value of a column, in one spelling for all values that a condition treats as equal; true and false
    differ from 1 and 0."""
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":  # NumPy converts nanoseconds to a number
        value = to_json_value(value)
    with contextlib.suppress(TypeError, ValueError, RecursionError):  # of what JSON cannot hold, which no row has
        value = as_json(value) if isinstance(value, list | tuple | dict) else value
    text = replace_surrogates(str(value := base_value(value)))
    if by is None:
        return text
    return truth_of(value) or canonical_number(value) or canonical_date(value) or normalize_nfc(text)


def _row_key(id_: str, metadata: Mapping[str, Any], by: str | None) -> str:
    """The id of a row, or its value of a column; "", which is no answer, where it has none."""
    value = id_ if by is None else metadata.get(matching_name(by, metadata))
    return "" if value is None else _answer_key(value, by)


def _answerable_queries(
    index: "Index", query_list: list[str], grades_by_query: list[Grades], by: str | None, unlisted: str
) -> list[int]:
    """The queries with a right answer in the index. Raises InputError where some have none, if that is an error."""
    if not len(index):
        raise InputError(f"{index.folder} holds no texts: add some first")
    known_answers = _known_answers(index, {answer for grades in grades_by_query for answer in grades}, by)
    right = [{name for name, grade in grades.items() if grade > 0} for grades in grades_by_query]
    answerable = [i for i, names in enumerate(right) if names & known_answers]
    if len(answerable) < len(query_list) and unlisted == "error":
        missing_answers = join_names([name for names in right if not names & known_answers for name in sorted(names)])
        raise InputError(
            f"the index has no {by or 'id'} {missing_answers}, the right answers of "
            f"{len(query_list) - len(answerable):,} of {len(query_list):,} queries: add these texts, "
            "or leave the queries out with ",
            Argument("unlisted", "skip"),
        )
    if not answerable:
        raise InputError("no query has a right answer that is in the index")
    return answerable


def _known_answers(index: "Index", names: set[str], by: str | None) -> set[str]:
    """Those of these ids, or values of a column, that are in the index."""
    found: set[str] = set()
    columns: set[str] = set()
    for segment in index.segments:
        rows = segment.rows_with_ids(names) if by is None else _with_values(segment, by, sorted(names))
        found |= {_row_key(entry.id, entry.metadata, by) for entry in segment.entries.get(rows)}
        columns |= set() if by is None or found else segment.entries.columns
    if by is not None and not found and matching_name(by, columns) not in columns:
        raise InputError(unknown_column_message(by, columns))
    return found & names


def _with_values(segment: OpenSegment, by: str, names: list[str]) -> list[int]:
    """The live rows whose column has one of these values."""
    found: set[int] = set()
    for start in range(0, len(names), VALUES_PER_CONDITION):
        condition = Condition(by, "=", tuple(names[start : start + VALUES_PER_CONDITION]))
        found |= set(np.flatnonzero(segment.entries.condition_mask([condition]) & ~segment.deleted).tolist())
    return sorted(found)


def _search_all(
    index: "Index", queries: list[str], ks: list[int], by: str | None, options: Mapping[str, Any]
) -> dict[int, list[list[str]]]:
    """The hits of each query at each k, as ids or values of a column, best first, as a search for that k returns them;
    values of k that share a search are searched once."""
    found: dict[int, list[list[str]]] = {}
    for _, group in itertools.groupby(ks, lambda k: _search_depth(index, k, options)):
        same = list(group)
        names = [
            [_row_key(hit["id"], hit["metadata"], by) for hit in hits]
            for start in range(0, len(queries), QUERIES_PER_SEARCH)
            for hits in index.search(queries[start : start + QUERIES_PER_SEARCH], k=same[-1], **options)
        ]
        found |= dict.fromkeys(same, names)
    return found


def _search_depth(index: "Index", k: int, options: Mapping[str, Any]) -> tuple[int, int]:
    """What the first hits of a search for k depend on: how many rows are retrieved, and k itself where so many passages
    may be of one text that more are retrieved."""
    request = SearchRequest(k, options["mode"], (), options["rerank"])
    if request.rerank is not None:
        return request.num_candidates, 0  # of which the first k are returned
    graphs = [] if request.mode == "words" else [one for one in index.segments if one.vectors.graph is not None]
    if not graphs and request.mode != "hybrid":
        return 0, 0  # all rows are compared, whatever k
    depth = request.depth(request.mode != "dense")
    max_passages = max((one.entries.max_passages for one in index.segments), default=1)
    return min_candidates(depth, index.manifest.settings.efSearch), k if max_passages * k > depth else 0


def _miss(query: str, grades: Grades, found: list[str]) -> Miss | None:
    right = [name for name, grade in grades.items() if grade > 0]
    found = list(dict.fromkeys(found))
    if found and found[0] in right:
        return None
    rank = next((rank for rank, name in enumerate(found, 1) if name in right), None)
    return Miss(query, tuple(right), rank, found[0] if found else None)
