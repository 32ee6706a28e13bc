"""Two runs on one page: what they must have in common, and where they differ most. The page: `web/diffweights.js`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.view.subject import AttentionData, Subject


def check_comparable(first: Subject, second: Subject) -> None:
    """Raises InputError unless every number of one trace has a counterpart in the other."""
    for one, two in zip(first.sequences, second.sequences):
        if len(one["tokens"]) != len(two["tokens"]):
            side = f" of the {one['name']}" if one["name"] else ""
            raise InputError(
                f"the traces have {len(one['tokens'])} and {len(two['tokens'])} tokens{side}: differences need the "
                "same number"
            )
    names = [attention.name for attention in first.attentions], [attention.name for attention in second.attentions]
    if names[0] != names[1]:
        unmatched = min(set(names[0]) ^ set(names[1]), default=names[0][0])
        alike = first.model == second.model
        advice = "record both with the same keep" if alike else "they come from two models of different shapes"
        raise InputError(f"only one of the traces has {unmatched!r}: {advice}")
    for one, two in zip(first.attentions, second.attentions):
        if one.heads != two.heads:
            raise InputError(f"{one.name} has {one.heads} heads in one trace and {two.heads} in the other")


def most_different_head(
    first: Subject, second: Subject, layer: int | None, heads: Sequence[int] | None
) -> tuple[AttentionData, int] | None:
    """The attention and the head with the largest difference of any weight; None where no weight differs.

    layer, heads: only these; None for all. Of long texts, whose weights are not kept, the sampled rows are compared.
    """
    largest, found = 0.0, None
    for one, two in zip(first.attentions, second.attentions):
        first_weights, second_weights = _recorded_weights(one), _recorded_weights(two)
        if (
            first_weights is None
            or second_weights is None
            or first_weights.shape != second_weights.shape
            or layer not in (None, one.layer)
        ):
            continue
        none = first_weights.isnan() != second_weights.isnan()  # infinitely different
        differences = (
            (first_weights - second_weights).abs().nan_to_num().masked_fill(none, torch.inf).amax((1, 2)).tolist()
        )
        for head in [head for head in range(one.heads) if heads is None or head in heads]:
            if differences[head] > largest:
                largest, found = differences[head], (one, head)
    return found


def _recorded_weights(attention: AttentionData) -> Tensor | None:
    if attention.weights is not None:
        return attention.weights
    return None if attention.sample is None else attention.sample.weights
