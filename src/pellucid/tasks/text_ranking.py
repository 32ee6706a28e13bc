"""Text ranking: documents by how well they answer a query."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice, check_count, is_list_like, unwrap_arrow
from pellucid.errors import Argument, InputError, Item, format_count, join_names, shorten
from pellucid.models import Network
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.attribution import Target, logit_target
from pellucid.tasks.reader import WindowOutput, mean_output, outputs_by_text, text_coverage
from pellucid.tasks.task import Work
from pellucid.tasks.vectors import BODY_HEADS, VectorTask
from pellucid.text import Window

FUNCTIONS = ("sigmoid", "none")
CROSS_ENCODER_HEAD = "sequence-classification"
_ACTIVATIONS = {"Sigmoid": "sigmoid", "Identity": "none"}


@dataclass(frozen=True)
class RankingQuery:
    """A query and its candidate documents."""

    query: str
    documents: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TextRanking(VectorTask):
    """The documents, best first, as `{"corpus_id", "score", "text"}`; `corpus_id` is the document's index in the input.

    A model with a head of one label reads the query and each document together (a cross-encoder); any other compares
    their vectors. A document read in windows gets its best window's score (MaxP: Dai and Callan, 2019,
    arXiv:1905.09217).

    top_k: how many documents, at most; None for all of them.
    return_documents: whether answers hold the document's "text".
    function_to_apply: to a cross-encoder's logit, "sigmoid" or "none"; by default the checkpoint's, else sigmoid.
    similarity: of vectors; by default the checkpoint's, or cosine where it sets none.
    """

    top_k: int | None = None
    return_documents: bool = True
    function_to_apply: str | None = None

    name: ClassVar[str] = "text-ranking"
    heads: ClassVar[tuple[str | None, ...]] = (*BODY_HEADS, CROSS_ENCODER_HEAD)
    inputs: ClassVar[tuple[str, ...]] = ("query", "documents")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        if self.function_to_apply is not None:
            check_choice("function_to_apply", self.function_to_apply, FUNCTIONS)

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        super().check(loaded)
        if _is_cross_encoder(loaded) and loaded.config.num_labels != 1:
            raise InputError(
                f"this model has {loaded.config.num_labels} labels, and text-ranking needs one, a document's score: "
                "choose another model"
            )

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        other = "similarity" if _is_cross_encoder(loaded) else "function_to_apply"
        if options.get(other) is not None:
            kind = "reads query and document together" if _is_cross_encoder(loaded) else "compares vectors"
            raise InputError(f"{other} was given, and this model {kind}: leave it out")
        return super().resolve_options(loaded, options)

    @classmethod
    def items_from_arguments(cls, arguments: Mapping[str, Any]) -> Any:
        """One query with its documents, or several queries, each with the same documents or with its own."""
        if len(arguments) == 1:
            return next(iter(arguments.values()))
        queries, documents = arguments["query"], arguments["documents"]
        if not is_list_like(queries) or not is_list_like(documents):
            return dict(arguments)
        queries, documents = list(unwrap_arrow(queries)), list(unwrap_arrow(documents))
        same = all(isinstance(one, str) for one in documents)
        if not same and len(documents) != len(queries):
            number = format_count(len(queries), "query", "queries")
            raise InputError(f"{number} and {format_count(len(documents), 'list')} of documents were given")
        return [{"query": one, "documents": documents if same else documents[i]} for i, one in enumerate(queries)]

    def check_item(self, item: Any, index: int) -> RankingQuery:
        if isinstance(item, Mapping):
            if set(item) != {"query", "documents"}:
                raise InputError(
                    Item(index), f" has the keys {join_names(map(str, item))}, expected query and documents"
                )
            item = item["query"], item["documents"]
        if not isinstance(item, tuple) or len(item) != 2:
            raise InputError(Item(index), f" is {type(item).__name__}, expected a query and its documents as a tuple")
        query, documents = item
        if not is_list_like(documents):
            raise InputError(Item(index), f" has documents of {type(documents).__name__}, expected a list of texts")
        documents = tuple(unwrap_arrow(documents))
        for text in (query, *documents):
            if not isinstance(text, str):
                raise InputError(Item(index), f" holds {type(text).__name__}, expected a query and texts")
        if not documents:
            raise InputError(Item(index), " has no documents: there is nothing to rank")
        return RankingQuery(query, documents)

    def item_windows(self, work: Work, item: RankingQuery, index: int) -> list[Window]:
        named = [(f"document {i} of item {index}", text) for i, text in enumerate(item.documents)]
        if _is_cross_encoder(work.loaded):
            rows = [self.text_windows(work, name, item.query, text, side=1) for name, text in named]
        else:
            query = (f"the query of item {index}", item.query)
            rows = [self.text_windows(work, name, text) for name, text in (query, *named)]
        return [window for windows in rows for window in windows]

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        return module.logits(**batch) if _is_cross_encoder(work.loaded) else super().forward_batch(work, module, batch)

    def window_output(self, work: Work, output: Tensor, window: Window) -> Tensor:
        return output if _is_cross_encoder(work.loaded) else super().window_output(work, output, window)

    def answer(self, work: Work, item: RankingQuery, outputs: list[WindowOutput]) -> Answers:
        query, documents = self._split_query(work, outputs)
        side, found = 1 if _is_cross_encoder(work.loaded) else 0, []
        query_vector = mean_output(query) if query else None
        for i, (text, document) in enumerate(zip(item.documents, documents)):
            scores = [self._score(work, query_vector, output) for output in document]
            best = scores.index(max(scores))
            keys = {"corpus_id": i, "score": scores[best]} | ({"text": text} if self.return_documents else {})
            found.append(Answer(keys, read=text_coverage(text, document, side), window=best))
        found.sort(key=lambda one: -one["score"])
        return Answers(found[: self.top_k])

    def attribution_targets(
        self, work: Work, item: RankingQuery, outputs: list[WindowOutput], one: Answer
    ) -> list[Target]:
        query, documents = self._split_query(work, outputs)
        best = documents[one["corpus_id"]][one.window or 0]
        if _is_cross_encoder(work.loaded):
            return [logit_target("the document", best.window, 0)]
        return [
            self.similarity_target(work, query, best.output, "the query"),
            self.similarity_target(work, [best], mean_output(query), "the document"),
        ]

    def _split_query(
        self, work: Work, outputs: list[WindowOutput]
    ) -> tuple[list[WindowOutput], list[list[WindowOutput]]]:
        """The windows of the query, unless it is read with each document, and those of each document."""
        texts = outputs_by_text(outputs)
        return ([], texts) if _is_cross_encoder(work.loaded) else (texts[0], texts[1:])

    def _score(self, work: Work, query: Tensor | None, document: WindowOutput) -> float:
        if query is not None:
            return float(self.text_similarity(work, query, document.output))
        score = document.output[0]
        return float(
            score.sigmoid() if (self.function_to_apply or _checkpoint_activation(work.loaded)) == "sigmoid" else score
        )


def _is_cross_encoder(loaded: Loaded) -> bool:
    return loaded.config.head is not None and loaded.config.head.name == CROSS_ENCODER_HEAD


def _checkpoint_activation(loaded: Loaded) -> str:
    """The activation of a cross-encoder's logit, from either of the two keys that a checkpoint may have."""
    stated = loaded.config.inert.get("sentence_transformers")
    path = stated.get("activation_fn") if isinstance(stated, Mapping) else None
    path = path or loaded.config.inert.get("sbert_ce_default_activation_function") or "Sigmoid"
    name = str(path).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise InputError(
            f"config.json names the function {shorten(str(path))!r}: pass ",
            Argument("function_to_apply", "sigmoid"),
            " or ",
            Argument("function_to_apply", "none"),
        )
    return _ACTIVATIONS[name]
