"""Losses over text embeddings; `cosine` and `multiple_negatives` are means over the pairs of a batch.

cosines of pairs with scores:     1.0 -> .93   0.2 -> .41   0.6 -> .35
cosent                                         ^------------^ in the wrong order
cosine                            (.93 - 1.0)^2 ...
multiple negatives                an anchor's own positive among the texts of all pairs
"""

import torch
from torch import Tensor
from torch.nn import functional

from pellucid.machine import no_grad

ROWS = 1_024
"""Anchors that are compared with all candidates at once."""


def cosines(vectors: Tensor) -> Tensor:
    """The cosine of the first two texts of each pair: Float[Tensor, "pairs texts width"]  ->  Float[Tensor, "pairs"]"""
    return functional.cosine_similarity(vectors[:, 0], vectors[:, 1], dim=-1)


def cosent(vectors: Tensor, scores: Tensor, scale: float) -> Tensor:
    """The loss of pairs whose cosines are not in the order of their scores; pairs of equal scores are not compared.

        log(1 + sum of exp(scale * (cosine of the lower score - cosine of the higher score)))

    (Su, 2022, CoSENT; Huang et al., 2024, doi:10.1109/TASLP.2024.3402087.)
    vectors: Float[Tensor, "pairs 2 width"]; scores: Float[Tensor, "pairs"]
    """
    alike = scale * cosines(vectors)
    wrong = (alike[:, None] - alike[None, :])[scores[:, None] < scores[None, :]]
    return torch.cat((wrong.new_zeros(1), wrong)).logsumexp(dim=0)


def cosine(vectors: Tensor, scores: Tensor) -> Tensor:
    """The mean squared difference of cosines and scores (Reimers and Gurevych, 2019, arXiv:1908.10084, section 3).

    vectors: Float[Tensor, "pairs 2 width"]; scores: Float[Tensor, "pairs"]
    """
    return functional.mse_loss(cosines(vectors), scores)


def multiple_negatives(vectors: Tensor, texts: Tensor, scale: float, symmetric: bool = False) -> Tensor:
    """The cross-entropy of each anchor's own positive among the positives and negatives of all pairs.

    (Henderson et al., 2017, arXiv:1705.00652, section 4.4.)
    vectors: Float[Tensor, "pairs 2|3 width"], of each pair the anchor, its positive and optionally a negative.
    texts: Int[Tensor, "pairs 2|3"], an id for each text, equal for equal texts. A text equal to the anchor or its
        positive, or a positive of the same anchor in another pair, is not used as a negative.
    symmetric: the mean of this and of the cross-entropy of each positive's own anchor among all anchors.
    """
    targets = torch.arange(len(vectors), device=vectors.device)
    alike = scale * _candidate_cosines(vectors, vectors)
    open_ = alike.masked_fill(_false_negatives(texts, texts), -torch.inf)
    loss = functional.cross_entropy(open_, targets)
    if not symmetric:
        return loss
    back = open_[:, : len(vectors)].T
    return (loss + functional.cross_entropy(back, targets)) / 2


@no_grad()
def retrieval_accuracy(vectors: Tensor, texts: Tensor) -> float:
    """The share of anchors that are nearer to their own positive than to all their negatives."""
    right = 0
    for rows in torch.arange(len(vectors), device="cpu").split(ROWS):
        alike = _candidate_cosines(vectors[rows], vectors)
        alike = alike.masked_fill(_false_negatives(texts[rows], texts, int(rows[0])), -torch.inf)
        right += int((alike.argmax(dim=1) == rows).sum())
    return right / max(len(vectors), 1)


def _candidate_cosines(some: Tensor, every: Tensor) -> Tensor:
    """Cosines of the anchors of some pairs with first the positives, then the negatives, of all pairs.

    ->  Float[Tensor, "some (texts-1)*pairs"]
    """
    anchors = functional.normalize(some[:, 0], dim=-1)
    return anchors @ functional.normalize(_candidates(every), dim=-1).T


def _candidates(every: Tensor) -> Tensor:
    return every[:, 1:].transpose(0, 1).flatten(0, 1)


def _false_negatives(some: Tensor, every: Tensor, first: int = 0) -> Tensor:
    """Whether a candidate is neither a negative of an anchor nor its own positive: Bool[Tensor, "some candidates"]

    first: the index of the first of `some` in `every`.
    """
    candidates, many = _candidates(every), len(every)
    same = (some[:, :1] == candidates) | (some[:, 1:2] == candidates)
    same[:, :many] |= some[:, :1] == every[:, 0]
    own = torch.arange(len(some), device=same.device)
    same[own, own + first] = False
    return same
