"""Text in, text out: the implementation of `Model.generate`, `complete` and `chat`."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pellucid.bars import progress_bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count
from pellucid.errors import InputError, shorten
from pellucid.generation.answers import Completion, Messages, as_alternatives
from pellucid.generation.beam import beam_search
from pellucid.generation.loop import Judge, deadline, write
from pellucid.generation.prompts import GenerationRequest, chat_request, prompt_request, text_request
from pellucid.generation.score import TokenScore, score_tokens, token_scores
from pellucid.generation.stops import AnswerStream, cut_at_stop, special_stop_ids
from pellucid.integers import as_integer
from pellucid.text import tokens_of

MAX_ALTERNATIVES = 1_000


@dataclass
class GeneratedSequence:
    """One generated text: its tokens, why it ends, and the scores of each token."""

    ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    token_scores: list[TokenScore] = field(default_factory=list)
    score: float | None = None


def generate(
    loaded: Loaded, prompt: str | Sequence[str], *, progress: bool | None = None, **options: Any
) -> str | list[str]:
    """Returns the text generated after each prompt. See `Model.generate`."""
    request = text_request(loaded, [prompt] if isinstance(prompt, str) else prompt, require_one_sequence(options))
    texts = [decode_sequence(request, sequence)[0] for sequence, *_ in generate_all(request, progress)]
    return texts[0] if isinstance(prompt, str) else texts


def chat(loaded: Loaded, messages: str | Messages, **options: Any) -> str:
    """Returns the next answer of a conversation. See `Model.chat`."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    request = chat_request(loaded, turns, require_one_sequence(options))
    ((sequence, *_),) = generate_all(request, False)
    return decode_sequence(request, sequence)[0]


def complete(loaded: Loaded, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Completion:
    """Returns an answer with its tokens and probabilities. See `Model.complete`."""
    return _completions(prompt_request(loaded, prompt, options), alternatives, False)[0]


def completions(
    loaded: Loaded, prompts: Sequence[str], *, alternatives: int = 0, progress: bool | None = None, **options: Any
) -> list[Completion]:
    """Returns the `complete` answers to several raw prompts, side by side."""
    return _completions(text_request(loaded, prompts, options), alternatives, progress)


def _completions(request: GenerationRequest, alternatives: int, progress: bool | None) -> list[Completion]:
    alternatives = check_count("alternatives", alternatives, maximum=MAX_ALTERNATIVES, minimum=0)
    found = []
    for generated in generate_all(request, progress, look=True, alternatives=alternatives):
        sequences = tuple(_completion(request, sequence) for sequence in generated)
        found.append(dataclasses.replace(sequences[0], sequences=sequences))
    return found


def generate_all(request: GenerationRequest, progress: bool | None, **options: Any) -> list[list[GeneratedSequence]]:
    """The texts for every prompt, in the order of the prompts."""
    found: dict[int, list[GeneratedSequence]] = {}
    deadline_time = deadline(request.settings)
    with progress_bar("writing", total=len(request.prompts), unit=" texts", shown=progress) as line:
        for group in request.groups():
            found |= zip(group, generate_group(request, group, deadline_time=deadline_time, **options))
            line.update(len(group))
    return [found[i] for i in range(len(found))]


def generate_group(
    request: GenerationRequest,
    group: list[int],
    *,
    deadline_time: float | None = None,
    look: bool = False,
    alternatives: int = 0,
) -> list[list[GeneratedSequence]]:
    """The texts for each prompt of a group.

    deadline_time: the deadline, as for `write`.  look: whether to keep the scores of each token.
    """
    if request.settings.num_beams > 1:
        return _beam_search_group(request, group, deadline_time, look, alternatives)
    copies = request.settings.num_return_sequences
    sequences = [GeneratedSequence() for _ in range(len(group) * copies)]
    prompts, judge = [request.prompts[i] for i in group], stop_judge(request, len(sequences))
    for step in write(
        request.loaded, prompts, request.settings, judge=judge, log_probabilities=look, deadline_time=deadline_time
    ):
        for row, token in zip(step.rows, step.tokens):
            sequences[row].ids.append(token)
        if step.log_probabilities is not None:
            for row, one in zip(step.rows, token_scores(step.log_probabilities, step.tokens, alternatives)):
                sequences[row].token_scores.append(one)
        for row, reason in step.finished.items():
            sequences[row].finish_reason = reason
    return [sequences[i * copies : (i + 1) * copies] for i in range(len(group))]


def decode_sequence(request: GenerationRequest, sequence: GeneratedSequence) -> tuple[str, str]:
    """The generated text, and why it ends."""
    ids = sequence.ids[:-1] if sequence.finish_reason == "end" else sequence.ids
    text, stopped = cut_at_stop(request.tokenizer.decode(ids, skip_special_tokens=True), request.settings.stop)
    return text, "stop" if stopped else sequence.finish_reason


def require_one_sequence(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a function that returns one text per prompt, whatever the checkpoint says."""
    num_sequences = options.get("num_return_sequences")
    if num_sequences is not None and as_integer(num_sequences) != 1:
        raise InputError(
            f"num_return_sequences is {shorten(repr(num_sequences))}, and this gives one text for each prompt: "
            "complete(...).sequences holds several"
        )
    return options | {"num_return_sequences": 1}


def stop_judge(request: GenerationRequest, texts: int) -> Judge | None:
    """Returns a judge that finds the stops in several texts; None if there are no stops."""
    if not request.settings.stop:
        return None
    answers = [AnswerStream(request.tokenizer, request.settings.stop) for _ in range(texts)]
    return lambda row, token: "stop" if answers[row].push(token) else None


def _beam_search_group(
    request: GenerationRequest, group: list[int], deadline_time: float | None, look: bool, alternatives: int
) -> list[list[GeneratedSequence]]:
    """`generate_group` by beam search. Token scores are computed afterwards: beams have those after the rules."""
    prompts, stop = [request.prompts[i] for i in group], request.settings.stop
    ends = special_stop_ids(request.tokenizer, stop)

    def judge(prompt: int, ids: list[int]) -> str | None:
        text = request.tokenizer.decode(ids, skip_special_tokens=True)
        return "stop" if ids[-1] in ends or any(one in text for one in stop) else None

    found = beam_search(
        request.loaded, prompts, request.settings, judge=judge if stop else None, deadline_time=deadline_time
    )
    sequences = [
        [GeneratedSequence(list(one.ids), one.finish_reason, score=one.score) for one in texts] for texts in found
    ]
    for i, prompt, texts in zip(group, prompts, sequences):
        if not texts:
            raise InputError(f"the rules exclude every text for prompt {i}: loosen them, or search more beams")
        if look:
            scores = score_tokens(
                request.loaded, [prompt] * len(texts), [sequence.ids for sequence in texts], alternatives
            )
            for sequence, one in zip(texts, scores):
                sequence.token_scores = one
    return sequences


def _completion(request: GenerationRequest, sequence: GeneratedSequence) -> Completion:
    text, finish_reason = decode_sequence(request, sequence)
    return Completion(
        text=text,
        ids=tuple(sequence.ids),
        tokens=tokens_of(request.tokenizer, sequence.ids),
        log_probabilities=tuple(one.log_probability for one in sequence.token_scores),
        finish_reason=finish_reason,
        alternatives=tuple(as_alternatives(request.tokenizer, one.top_tokens) for one in sequence.token_scores)
        if sequence.token_scores[0].top_tokens
        else (),
        score=sequence.score,
    )
