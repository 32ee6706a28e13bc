"""Traced generation: recorded tensors of every pass, and the token chosen from them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.generation.answers import Alternative, Messages, as_alternatives
from pellucid.generation.checkpoint_settings import required_start_token
from pellucid.generation.loop import check_no_beams, write
from pellucid.generation.prompts import prompt_request
from pellucid.generation.score import token_scores
from pellucid.generation.texts import GeneratedSequence, decode_sequence, require_one_sequence, stop_judge
from pellucid.models import EncoderDecoder
from pellucid.text import tokens_of
from pellucid.trace import EditRecord, NamedTensors, Recorder, kept_names
from pellucid.trace.edit import edits_of

ALTERNATIVES = 5


@dataclass(frozen=True, eq=False)
class TracedStep(NamedTensors):
    """One pass and the token chosen after it: `step["layers.0.attention.weights"]`, named as in `Trace`.

    read: the tokens that this pass read: in the first the whole prompt (of an encoder-decoder the start token), in
        others one; the rows of attention, of an encoder-decoder that of its decoder.
    before: all tokens of the text up to then; the columns of attention.
    token, id, log_probability: the chosen token, and its log-probability in the model, before any rule.
    alternatives: the likeliest tokens in its place.
    points: the tensors by name.  config: the config of the model.
    """

    type_name: ClassVar[str] = "step"

    read: tuple[str, ...]
    before: tuple[str, ...]
    token: str
    id: int
    log_probability: float
    alternatives: tuple[Alternative, ...]

    def __repr__(self) -> str:
        return f"TracedStep({self.token!r}, probability {math.exp(self.log_probability):.3f}, {len(self)} tensors)"


@dataclass(frozen=True, eq=False)
class TracedText:
    """A generated text with a record of every pass.

    text: the generated text.  steps: one per pass.  edits: the edits in effect in every pass.
    """

    prompt: str | Messages
    text: str
    steps: tuple[TracedStep, ...]
    edits: tuple[EditRecord, ...] = ()


def trace_writing(
    loaded: Loaded, prompt: str | Messages, *, keep: str | Iterable[str] = "all", **options: Any
) -> TracedText:
    """Returns a generated text with the recorded tensors of every pass. See `Model.trace_writing`."""
    names = kept_names(loaded.config, keep)
    request = prompt_request(loaded, prompt, require_one_sequence(options))
    check_no_beams(request.settings, "one text is traced: pass ")
    recorders: list[Recorder] = []

    def new_recorder() -> Recorder:
        recorders.append(Recorder(names))
        return recorders[-1]

    prompt_ids = [required_start_token(loaded)] if isinstance(loaded.module, EncoderDecoder) else request.prompts[0]
    read_ids, steps, sequence = list(prompt_ids), [], GeneratedSequence()
    judge = stop_judge(request, 1)
    for step in write(
        request.loaded,
        request.prompts,
        request.settings,
        judge=judge,
        log_probabilities=True,
        new_observer=new_recorder,
    ):
        assert step.log_probabilities is not None  # they were requested
        (one,) = token_scores(step.log_probabilities, step.tokens, ALTERNATIVES)
        steps.append(
            TracedStep(
                read=tokens_of(request.tokenizer, read_ids),
                before=tokens_of(request.tokenizer, [*prompt_ids, *sequence.ids]),
                token=tokens_of(request.tokenizer, step.tokens)[0],
                id=step.tokens[0],
                log_probability=one.log_probability,
                alternatives=as_alternatives(request.tokenizer, one.top_tokens),
                points=recorders[-1].recorded,
                config=loaded.config,
            )
        )
        sequence.ids += step.tokens
        sequence.finish_reason = step.finished.get(0, sequence.finish_reason)
        read_ids = list(step.tokens)
    return TracedText(prompt, decode_sequence(request, sequence)[0], tuple(steps), edits_of(request.loaded))
