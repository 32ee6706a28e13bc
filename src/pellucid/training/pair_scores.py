"""How alike two texts are, as data say it: the scores of pairs."""

import logging
from collections.abc import Sequence

from pellucid.errors import Argument, InputError, Placeholder, shorten
from pellucid.training.data import row_location, value_of
from pellucid.training.objective import Fields

log = logging.getLogger("pellucid")

SCORE, FIVE = "score", 5.0
"""The column, and the score of two sentences that mean the same in the data of STS (Agirre et al., 2012, S12-1051)."""


def check_scores_differ(rows: Sequence[Fields], top_score: float, other: Argument) -> None:
    """Refuses pairs of one score, of which none should be nearer than another: nothing would be learned.

    top_score: the score of two texts that mean the same.  other: by which pairs that mean alike teach something.
    """
    scores = scaled_scores(rows, top_score)
    if len(scores) > 1 and min(scores) == max(scores):
        message = f"every pair has the score {scores[0] * top_score:g}: there is nothing to tell apart; "
        raise InputError(message, "for pairs that mean alike pass ", other)


def infer_top_score(rows: Sequence[Fields]) -> float:
    """The score of two texts that mean the same."""
    scores = scaled_scores(rows, 1.0, max_score=FIVE)
    if max(scores) <= 1.0:
        return 1.0
    log.warning("scores lie in %g to %g: they are divided by %g (top_score)", min(scores), max(scores), FIVE)
    return FIVE


def scaled_scores(rows: Sequence[Fields], top_score: float, max_score: float | None = None) -> list[float]:
    """The scores, of the same texts 1. max_score: the greatest that there may be."""
    max_score = top_score if max_score is None else max_score
    found = []
    for row in rows:
        value = value_of(row, SCORE)
        try:
            score = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{row_location(row)}: score is {shorten(repr(value), 60)}, expected a number") from error
        if not -top_score <= score <= max_score:
            raise InputError(
                f"{row_location(row)}: score is {score:g}, expected one from 0 to {max_score:g}: pass ",
                Argument("top_score", Placeholder("N")),
                ", the score of two texts that mean the same",
            )
        found.append(score / top_score)
    return found
