"""An answer while it is written: what `Model.stream` does."""

from collections.abc import Iterator
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import count
from pellucid.generation.answers import Messages, Piece, named
from pellucid.generation.loop import Step, check_no_search, write
from pellucid.generation.prompts import Order, order_one
from pellucid.generation.score import seen
from pellucid.generation.stops import Growing
from pellucid.generation.texts import MOST_ALTERNATIVES, one_each
from pellucid.text import tokens_of


def stream(loaded: Loaded, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Iterator[Piece]:
    """An answer piece by piece. See `Model.stream`.

    What is wrong with the prompt or the options is said at once, and not when the first piece is asked for.
    """
    count("alternatives", alternatives, most=MOST_ALTERNATIVES, least=0)
    order = order_one(loaded, prompt, one_each(options))
    why = "a search knows its answer only at the end: stream with "
    check_no_search(order.settings, why, ", or wait for the whole")
    return _pieces(order, alternatives)


def _pieces(order: Order, alternatives: int) -> Iterator[Piece]:
    growing = Growing(order.words, order.settings.stop)

    def judge(row: int, token: int) -> str | None:
        return "stop" if growing.take(token) else None

    steps = write(order.loaded, order.prompts, order.settings, judge=judge, log_probabilities=True)
    try:
        for step in steps:
            yield _piece(order, step, growing, alternatives)
    finally:  # with nothing to do there, Python 3.12 closes a generator and keeps what its frame holds
        del steps


def _piece(order: Order, step: Step, growing: Growing, alternatives: int) -> Piece:
    assert step.log_probabilities is not None
    (token,), why = step.tokens, step.finished.get(0)
    (one,) = seen(step.log_probabilities, step.tokens, alternatives)
    if why is not None and growing.end():
        why = "stop"
    return Piece(
        text=growing.fresh(),
        id=token,
        token=tokens_of(order.words, [token])[0],
        log_probability=one.log_probability,
        alternatives=named(order.words, one.likely),
        finish_reason=why,
    )
