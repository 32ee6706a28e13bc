"""How good texts are that a model writes: it writes them, and they are compared with the right ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.generation.prompts import Order
from pellucid.generation.said import with_ends
from pellucid.generation.words import drafts_of, text_of
from pellucid.tasks.told import settled
from pellucid.training.metrics import translation_scores

BEYOND = 50
"""So many tokens more than its source a text may have (Vaswani et al., 2017, arXiv:1706.03762, section 6.1)."""


@dataclass(frozen=True)
class Writing:
    """How texts are written; None for what the checkpoint says.  names: what it may call the task, the best first."""

    num_beams: int | None = None
    length_penalty: float | None = None
    max_new_tokens: int | None = None
    names: Sequence[str] = ()

    def order(self, loaded: Loaded, sources: Sequence[Sequence[int]]) -> Order:
        """What is to be written, for which sources."""
        asked: dict[str, Any] = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        asked |= {"max_new_tokens": self.max_new_tokens, "do_sample": False, "num_return_sequences": 1}
        most = {"max_new_tokens": max(map(len, sources)) + BEYOND}
        settings = settled(loaded, asked, self.names, most)
        return Order(with_ends(loaded), loaded.target_words, [list(one) for one in sources], settings)


def texts_for(loaded: Loaded, sources: Sequence[Sequence[int]], how: Writing) -> list[str]:
    """The likeliest text for each source, which is given as the encoder reads it."""
    order = how.order(loaded, sources)
    return [text_of(order, draft)[0].strip() for draft, *_ in drafts_of(order, None)]


def written_scores(
    loaded: Loaded, sources: Sequence[Sequence[int]], right: Sequence[str], how: Writing
) -> dict[str, float]:
    """What the model writes for each source, against what is right.

    ->  "bleu" and "chrf", from 0 to 100, and "exact_match", the share of texts that are right letter by letter
    """
    found = texts_for(loaded, sources, how)
    same = sum(one == truth.strip() for one, truth in zip(found, right))
    return translation_scores(right, found) | {"exact_match": same / max(len(right), 1)}
