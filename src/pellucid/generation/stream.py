"""Streams an answer while it is generated: the implementation of `Model.stream`."""

from collections.abc import Iterator
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count
from pellucid.generation.answers import Messages, Piece, as_alternatives
from pellucid.generation.loop import Step, check_no_beams, write
from pellucid.generation.prompts import GenerationRequest, prompt_request
from pellucid.generation.score import token_scores
from pellucid.generation.stops import AnswerStream
from pellucid.generation.texts import MAX_ALTERNATIVES, require_one_sequence
from pellucid.text import tokens_of


def stream(loaded: Loaded, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Iterator[Piece]:
    """Yields an answer piece by piece. See `Model.stream`.

    Errors of the prompt or the options are raised at once, not when the first piece is requested.
    """
    alternatives = check_count("alternatives", alternatives, maximum=MAX_ALTERNATIVES, minimum=0)
    request = prompt_request(loaded, prompt, require_one_sequence(options))
    reason = "beam search has its answer only at the end: stream with "
    check_no_beams(request.settings, reason, ", or wait for the whole")
    return _pieces(request, alternatives)


def _pieces(request: GenerationRequest, alternatives: int) -> Iterator[Piece]:
    answer = AnswerStream(request.tokenizer, request.settings.stop)

    def judge(row: int, token: int) -> str | None:
        return "stop" if answer.push(token) else None

    steps = write(request.loaded, request.prompts, request.settings, judge=judge, log_probabilities=True)
    try:
        for step in steps:
            yield _piece(request, step, answer, alternatives)
    finally:  # without a statement here, Python 3.12 closes a generator but keeps the objects of its frame
        del steps


def _piece(request: GenerationRequest, step: Step, answer: AnswerStream, alternatives: int) -> Piece:
    assert step.log_probabilities is not None
    (token,), finish_reason = step.tokens, step.finished.get(0)
    (one,) = token_scores(step.log_probabilities, step.tokens, alternatives)
    if finish_reason is not None and answer.finish():
        finish_reason = "stop"
    return Piece(
        text=answer.new_text(),
        id=token,
        token=tokens_of(request.tokenizer, [token])[0],
        log_probability=one.log_probability,
        alternatives=as_alternatives(request.tokenizer, one.top_tokens),
        finish_reason=finish_reason,
    )
