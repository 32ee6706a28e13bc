"""Reranks hits, by a model that reads query and text together (Nogueira and Cho, 2019, arXiv:1901.04085), or by the
vectors of a model other than the index's; see `TextRanking`."""

from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.model_or_name import resolve_model
from pellucid.search.hits import Hit
from pellucid.tasks.task import Work
from pellucid.tasks.text_ranking import TextRanking


def rerank_hits(loaded: Loaded, query: str, hits: list[Hit]) -> list[Hit]:
    """The hits ordered by the model's scores, which become theirs."""
    if not hits:
        return hits
    task = TextRanking(long="windows")
    item = task.check_item({"query": query, "documents": [hit["text"] for hit in hits]}, 0)
    (order,) = task.answer_items(work := Work(loaded), [item], 0)
    task.warn_about_items(work)
    ranking: list[Any] = list(order)
    return [hits[one["corpus_id"]].scored(one["score"]) for one in ranking]


def load_reranker(model: Any) -> Loaded:
    """The model passed or named. Raises InputError for one that cannot rank."""
    loaded = resolve_model(model, "rerank")
    TextRanking.check(loaded)
    return loaded
