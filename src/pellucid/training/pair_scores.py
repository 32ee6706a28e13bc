"""The similarity scores of pairs of texts in the data."""

import logging
from collections.abc import Sequence

from pellucid.errors import Argument, InputError, Placeholder, shorten
from pellucid.training.data import row_location, value_of
from pellucid.training.objective import Fields

log = logging.getLogger("pellucid")

SCORE, MAX_STS_SCORE = "score", 5.0
"""The column, and the top score in STS data, of two sentences of the same meaning (Agirre et al., 2012, S12-1051)."""


def check_scores_differ(rows: Sequence[Fields], top_score: float, other: Argument) -> None:
    """Raises InputError for pairs that all have one score, for which the loss would have no gradient.

    top_score: the score of two texts of the same meaning.  other: the argument that trains without scores.
    """
    scores = scaled_scores(rows, top_score)
    if len(scores) > 1 and min(scores) == max(scores):
        message = f"every pair has the score {scores[0] * top_score:g}: there is nothing to tell apart; "
        raise InputError(message, "for pairs that mean alike pass ", other)


def infer_top_score(rows: Sequence[Fields]) -> float:
    """The score of two texts of the same meaning: 1 where all scores are at most 1, else 5, which is logged."""
    scores = scaled_scores(rows, 1.0, max_score=MAX_STS_SCORE)
    if max(scores) <= 1.0:
        return 1.0
    log.warning("scores lie in %g to %g: they are divided by %g (top_score)", min(scores), max(scores), MAX_STS_SCORE)
    return MAX_STS_SCORE


def scaled_scores(rows: Sequence[Fields], top_score: float, max_score: float | None = None) -> list[float]:
    """The scores divided by `top_score`.  max_score: the highest allowed score; None for `top_score`.

    Raises InputError, which names the row, for a value that is no number from -top_score to max_score.
    """
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
