"""Scores of generated texts against references."""

from collections.abc import Sequence

from pellucid.generation.prompts import GenerationRequest
from pellucid.generation.texts import decode_sequence, generate_all
from pellucid.training.metrics import translation_scores

MAX_EXTRA_TOKENS = 50
"""Tokens that a generated text may have beyond its source (Vaswani et al., 2017, arXiv:1706.03762, section 6.1)."""


def generation_scores(request: GenerationRequest, right: Sequence[str]) -> dict[str, float]:
    """Generates one text for each source of a request, and compares them with the references.

    ->  "bleu" and "chrf", from 0 to 100, and "exact_match", the share of texts equal to their reference
    """
    found = [decode_sequence(request, draft)[0].strip() for draft, *_ in generate_all(request, None)]
    same = sum(one == truth.strip() for one, truth in zip(found, right))
    return translation_scores(right, found) | {"exact_match": same / max(len(right), 1)}
