"""Training of text embeddings from pairs: vectors of texts with similar meaning become similar."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_bool, check_choice, check_range
from pellucid.config.pooling import MODES, Pooling
from pellucid.errors import Argument, InputError
from pellucid.machine import no_grad
from pellucid.tasks.embed import pool, pooled_states
from pellucid.tasks.passes import run_in_order
from pellucid.text import Encoded
from pellucid.text.truncation import warn_of_truncation
from pellucid.training.data import column_texts, row_location
from pellucid.training.distributed import Ranks
from pellucid.training.learner import Learner
from pellucid.training.metrics import regression_scores, require_library
from pellucid.training.objective import Example, Fields, MicroBatches, Objective, batch_of
from pellucid.training.pair_scores import SCORE, check_scores_differ, infer_top_score, scaled_scores
from pellucid.training.reading import token_limit
from pellucid.training.vector_losses import cosent, cosine, cosines, multiple_negatives, retrieval_accuracy

log = logging.getLogger("pellucid")

CRITERIA = ("cosent", "cosine", "multiple-negatives")
_MATCHES = Argument("criterion", "multiple-negatives")
SCORED, MATCHED, NEGATIVE = ("sentence1", "sentence2"), ("anchor", "positive"), "negative"


class Pair(NamedTuple):
    """score: similarity, 1 for the same meaning; NaN where the data have none.  texts: ids, equal for equal texts."""

    score: float
    texts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SentenceSimilarity(Objective):
    """Embeddings for comparing texts.

    Rows hold `sentence1`, `sentence2` and `score`; or, for multiple negatives, `anchor` and `positive`, of the same
    meaning, and optionally `negative`, of another (`sentence1` and `sentence2` without scores also serve as the first
    two).
    criterion: "cosent": pairs of higher scores should have higher cosines. "cosine": the cosine should equal the score.
        "multiple-negatives": of all texts of a step, an anchor's own positive should be nearest to it. See
        `training/vector_losses.py` for their formulas.
    scale: factor on cosines, in "cosent" and "multiple-negatives".
    symmetric: for "multiple-negatives": each positive should also be nearest to its own anchor.
    top_score: the score of two texts of the same meaning; None for 1 where all scores are at most 1, else 5.
    pooling: how hidden states become a vector ("mean", "cls", ...); None for the checkpoint's, or the mean.
    max_length: maximum tokens of a text; None for the checkpoint's.

    Except for "cosine", each pair's loss depends on the other pairs of its step. With micro-batches or several
    processes vectors are then computed twice (Gao et al., 2021, arXiv:2101.06983): first all of them without gradients,
    for the loss and its gradient by each vector, then with gradients for each micro-batch. The step is the same.
    """

    criterion: str = "cosent"
    scale: float = 20.0
    symmetric: bool = False
    top_score: float | None = None
    pooling: str | None = None

    name: ClassVar[str] = "sentence-similarity"
    columns: ClassVar[tuple[str, ...]] = (*SCORED, SCORE, *MATCHED, NEGATIVE)
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 5e-5, "epochs": 4, "batch_size": 32}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("criterion", self.criterion, CRITERIA)
        check_range("scale", self.scale, above=0.0, maximum=1e4)
        check_bool("symmetric", self.symmetric)
        if self.criterion == "cosine" and self.scale != SentenceSimilarity.scale:
            others = Argument("criterion", "cosent"), " and ", _MATCHES
            raise InputError("scale is for ", *others, ", and 'cosine' has none")
        if self.top_score is not None:
            check_range("top_score", self.top_score, above=0.0, maximum=1e9)
        if self.pooling is not None:
            check_choice("pooling", self.pooling, MODES)
        if self.symmetric and not self._is_multiple_negatives:
            raise InputError(Argument("symmetric", True), " is for ", _MATCHES, ", which finds texts among others")

    @property
    def _is_multiple_negatives(self) -> bool:
        return self.criterion == "multiple-negatives"

    @property
    def best_metric(self) -> str:  # type: ignore[override]
        """The rank correlation of cosines and scores, or for "multiple-negatives" the retrieval accuracy."""
        return "accuracy" if self._is_multiple_negatives else "spearman"

    def fitted(self, rows: Sequence[Fields]) -> Self:
        require_library("scipy")
        columns = _text_columns(rows)
        if self._is_multiple_negatives:
            scored = next((row for row in rows if SCORE in row), None)
            if scored is not None and columns == SCORED:
                raise InputError(
                    f"{row_location(scored)} has a score, and ",
                    _MATCHES,
                    " takes each pair as one that means alike: keep only those that do, without their scores, or "
                    "choose ",
                    Argument("criterion", "cosent"),
                )
            if scored is not None:
                log.warning("'score' is not read: %r takes each pair as one that means alike", self.criterion)
            return self
        if SCORE not in rows[0]:
            learns = Argument("criterion", self.criterion), " learns from scores: for pairs that mean alike pass "
            raise InputError(f"{row_location(rows[0])} has no 'score', and ", learns, _MATCHES)
        if any(NEGATIVE in row for row in rows):
            log.warning("'negative' is not read: %r learns from scores", self.criterion)
        top = self.top_score or infer_top_score(rows)
        if self.criterion == "cosent":
            check_scores_differ(rows, top, _MATCHES)
        return replace(self, top_score=top)

    def for_scoring(self, rows: Sequence[Fields]) -> Self:
        if not self._is_multiple_negatives:
            return self.fitted(rows)
        return replace(self, top_score=infer_top_score(rows)) if SCORE in rows[0] and not self.top_score else self

    def min_examples(self, examples: Sequence[Example]) -> int:
        return 1 if self.criterion == "cosine" or len(examples[0].ids) > 2 else 2  # the third is a negative

    def head(self, loaded: Loaded) -> None:
        return None

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        return replace(loaded, pooling=self.pooling_for(loaded))

    def pooling_for(self, loaded: Loaded) -> Pooling:
        """The pooling to use with this model."""
        own = loaded.pooling or Pooling()
        length = self.max_length or own.max_length
        return replace(own, modes=(self.pooling,) if self.pooling else own.modes, max_length=length)

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        if not rows:
            return []
        columns = [
            column_texts(rows, name) for name in _text_columns(rows) if self._is_multiple_negatives or name != NEGATIVE
        ]
        numbers: dict[str, int] = {}
        every = [[numbers.setdefault(text, len(numbers)) for text in column] for column in columns]
        alike = self._is_multiple_negatives and SCORE not in rows[0]  # else each row needs a score
        scores = [float("nan")] * len(rows) if alike else scaled_scores(rows, self.top_score or 1.0)
        read = self._tokenize(loaded, list(numbers))
        return [
            Example(tuple(read[n].ids for n in one), tuple(read[n].type_ids for n in one), Pair(score, one))
            for one, score in zip(zip(*every), scores)
        ]

    def _tokenize(self, loaded: Loaded, every: list[str]) -> list[Encoded]:
        limits = [n for n in (token_limit(loaded, self.max_length), self.pooling_for(loaded).max_length) if n]
        max_tokens = min(limits, default=None)
        found = loaded.required_tokenizer.encode(every, max_length=max_tokens)
        warn_of_truncation(sum(one.cut > 0 for one in found), len(found), max_tokens)
        return found

    # -- examples to numbers ------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        """The texts of all pairs as one batch: Int[Tensor, "pairs*texts seq"]"""
        scores = torch.tensor([one.target.score for one in examples], dtype=torch.float32, device="cpu")
        texts = torch.tensor([one.target.texts for one in examples], device="cpu")
        return batch_of(loaded, _single_texts(examples), labels=scores, texts=texts)

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        vectors = self._vectors(learner, batch)
        if "pull" not in batch:
            return self._criterion_loss(vectors, batch["labels"], batch["texts"]) * len(vectors)
        pulled = (vectors * batch["pull"]).sum()  # has the gradients of the whole step's loss
        return pulled + (batch["share"] - pulled).detach()

    def _vectors(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        """Float[Tensor, "pairs texts modes*hidden"]"""
        untruncated = replace(self.pooling_for(learner.loaded), truncate_dim=None)  # as in the reference
        states, mask = pooled_states(learner.training_copy, batch, untruncated)
        vectors = pool(states.float(), mask, untruncated)
        return vectors.unflatten(0, tuple(batch["texts"].shape))

    def _criterion_loss(self, vectors: Tensor, scores: Tensor, numbers: Tensor) -> Tensor:
        match self.criterion:
            case "cosent":
                return cosent(vectors, scores, self.scale)
            case "cosine":
                return cosine(vectors, scores)
            case _:
                return multiple_negatives(vectors, numbers, self.scale, self.symmetric)

    def link_micro_batches(
        self, learner: Learner, ranks: Ranks, step: int, micro_batches: MicroBatches
    ) -> MicroBatches:
        """Adds to each of several micro-batches its share of the step's loss, and its gradient by their vectors."""
        alone = self.criterion == "cosine"  # its pairs are independent
        if alone or (ranks.world_size == 1 and len(micro_batches) < 2):
            return micro_batches
        parts = []
        for number, batch in micro_batches:
            learner.seed_dropout(step, number)
            with no_grad():
                parts.append(self._vectors(learner, batch))
        own = [len(one) for one in parts]
        vectors, before = _gather_rows(ranks, parts)
        scores, _ = _gather_rows(ranks, [batch["labels"] for _, batch in micro_batches])
        numbers, _ = _gather_rows(ranks, [batch["texts"] for _, batch in micro_batches])
        vectors.requires_grad_()
        loss = self._criterion_loss(vectors, scores, numbers)
        (gradient,) = torch.autograd.grad(loss * len(vectors), vectors)
        pulls = gradient[before : before + sum(own)].split(own)
        return [
            (number, batch | {"pull": part, "share": loss.detach() * len(part)})
            for (number, batch), part in zip(micro_batches, pulls)
        ]

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """->  "spearman", "pearson" of cosines and scores where there are scores; for "multiple-negatives" "accuracy",
        the share of anchors whose own positive is nearer than all other texts"""
        vectors = self._embeddings(loaded, examples)
        scores = [one.target.score for one in examples]
        found: dict[str, float] = {}
        if not any(score != score for score in scores):
            found = regression_scores(scores, cosines(vectors).tolist())
            found = {name: found[name] for name in ("spearman", "pearson")}
        if self._is_multiple_negatives:
            found["accuracy"] = retrieval_accuracy(
                vectors, torch.tensor([one.target.texts for one in examples], device="cpu")
            )
        return found

    def _embeddings(self, loaded: Loaded, examples: Sequence[Example]) -> Tensor:
        """The embeddings as of `pellucid.embed`: Float[Tensor, "pairs texts width"]"""
        module, pooling, texts = loaded.module.packed_copy(), self.pooling_for(loaded), _single_texts(examples)

        def vectors_of(group: list[int]) -> Tensor:
            stream, mask = pooled_states(module, batch_of(loaded, [texts[i] for i in group]), pooling)
            return pool(stream.float(), mask, pooling).cpu()

        vectors = run_in_order(module, [one.length for one in texts], vectors_of)
        return torch.stack(vectors).unflatten(0, (len(examples), -1))


def _single_texts(examples: Sequence[Example]) -> list[Example]:
    """The texts of all pairs in order, each as an example of its own."""
    return [Example((ids,), (types,)) for one in examples for ids, types in zip(one.ids, one.types)]


def _gather_rows(ranks: Ranks, parts: Sequence[Tensor]) -> tuple[Tensor, int]:
    """The rows of all micro-batches of all processes, and the number of those of earlier processes."""
    shape, dtype = ranks.broadcast((parts[0].shape[1:], parts[0].dtype) if parts else None)  # the first always has some
    found = ranks.all_gather(
        torch.cat(list(parts)) if parts else torch.zeros(0, *shape, dtype=dtype, device=ranks.device)
    )
    return torch.cat(found), sum(map(len, found[: ranks.rank]))


def _text_columns(rows: Sequence[Fields]) -> tuple[str, ...]:
    """The columns that hold the texts: those of the first row, and the negative where any row has one."""
    row = rows[0]
    for names in (SCORED, MATCHED):
        if names[0] in row or names[1] in row:
            negatives = names == MATCHED and any(NEGATIVE in one for one in rows)
            return (*names, NEGATIVE) if negatives else names
    expected = f"{' and '.join(SCORED)}, or {' and '.join(MATCHED)}"
    raise InputError(
        f"{row_location(row)} holds no texts to compare: expected columns {expected}; it has {', '.join(row)}"
    )
