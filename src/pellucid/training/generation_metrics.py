"""How good texts are that a model writes: it writes them, and they are compared with the right ones."""

from collections.abc import Sequence

from pellucid.generation.prompts import GenerationRequest
from pellucid.generation.texts import decode_sequence, generate_all
from pellucid.training.metrics import translation_scores

MAX_EXTRA_TOKENS = 50
"""So many tokens more than its source a text may have (Vaswani et al., 2017, arXiv:1706.03762, section 6.1)."""


def generation_scores(request: GenerationRequest, right: Sequence[str]) -> dict[str, float]:
    """What a model writes as it was ordered, the likeliest text for each source, against what is right.

    ->  "bleu" and "chrf", from 0 to 100, and "exact_match", the share of texts that are right letter by letter
    """
    found = [decode_sequence(request, draft)[0].strip() for draft, *_ in generate_all(request, None)]
    same = sum(one == truth.strip() for one, truth in zip(found, right))
    return translation_scores(right, found) | {"exact_match": same / max(len(right), 1)}
