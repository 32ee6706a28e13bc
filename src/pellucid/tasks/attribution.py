"""Attribution of a task's answer: a number of the answer, distributed over the tokens that were read for it.

The method is integrated gradients (Sundararajan et al., 2017, arXiv:1703.01365), from the same text with padding in
place of its tokens: the scores sum to what the tokens changed. The gradient at the text alone vanishes where an answer
is saturated; it is used only for generated text (`attribute_generation` explains why). No score shows how tokens
interact; see `pellucid.trace.explain.integrated_gradients`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument
from pellucid.generation.checkpoint_settings import required_start_token
from pellucid.machine import inference_mode, no_grad
from pellucid.models import EncoderDecoder, Network, Output, evaluation_copy
from pellucid.tasks.answer import Answer, AnswerAttribution, Answers
from pellucid.tasks.task import Work
from pellucid.text import Tokenizer, Window, tokens_of
from pellucid.text.spelling import token_text
from pellucid.trace import Recorder
from pellucid.trace.explain.embedding_function import baseline_embeddings, output_for_embeddings
from pellucid.trace.explain.integration import IntegrationPath
from pellucid.trace.gradients import record_with_gradients

STEPS = 64
"""The maximum number of points on the path at which the gradient is taken; integration starts with half as many."""


@dataclass(frozen=True)
class Target:
    """One number of an answer.

    description: in words.  window: the window that it is about.
    value_of: the number, from the model's output for that window.
    text_name: which text the window belongs to, where several texts are read separately.
    """

    description: str
    window: Window
    value_of: Callable[[Output], Tensor]
    text_name: str = ""


def logit_target(description: str, window: Window, index: int, position: int | None = None) -> Target:
    """A logit as a target.  index: of the label or token.  position: its token's; None where there is one per text."""
    logit_index = (0, index) if position is None else (0, position, index)
    return Target(f"logit of {description}", window, lambda output: output["logits"][logit_index])


def with_attribution(
    work: Work, found: Answer | Answers, targets_of: Callable[[Answer], Sequence[Target]]
) -> Answer | Answers:
    """The same answer, or answers, each with its attribution.

    targets_of: the numbers of one answer; one for each text where several are read separately.
    """
    if isinstance(found, Answer):
        return found.replace(why=attribute_answer(work, targets_of(found)))
    return Answers([one.replace(why=attribute_answer(work, targets_of(one))) for one in found], **vars(found))


def attribute_answer(work: Work, targets: Sequence[Target]) -> AnswerAttribution:
    """How much each token of the targets' windows adds to their numbers.

    Raises InputError for a model of 8 or 4 bits.
    """
    tokens: list[str] = []
    scores: list[float] = []
    for target in targets:
        tokens += target.window.tokens
        scores += _sum_sides(_token_attributions(work, target))
    read = _as_text(work.loaded.required_tokenizer, tokens)
    return AnswerAttribution(
        targets[0].description + _window_description(targets), read, tuple(scores), "integrated gradients"
    )


def attribute_generation(loaded: Loaded, prompt: Sequence[int], answer: Sequence[int]) -> AnswerAttribution:
    """How much each token of a prompt contributes to the log-probability of the whole text generated after it.

    Computed as the gradient at this prompt times the embedding: the path from padding is too rough because of the norms
    of a deep decoder. Where the model is sure of its output this shows little, and its signs mean little.

    prompt: what the model read, and of an encoder-decoder what its encoder read.  answer: ids, at least one.
    """
    tokenizer, ids = loaded.tokenizer, list(answer)

    def of(output: Output) -> Tensor:
        log_probabilities = output["logits"][0, -len(ids) :].log_softmax(dim=-1)
        return log_probabilities[torch.arange(len(ids), device="cpu"), torch.tensor(ids, device="cpu")].sum()

    with inference_mode(False):
        batch: dict[str, Any]
        if isinstance(loaded.module, EncoderDecoder):
            name = "encoder.embeddings.output"
            batch = {**as_batch(loaded, [prompt], decoder_rows=[[required_start_token(loaded), *ids[:-1]]])}
        else:
            name = "embeddings.output"
            batch = {**as_batch(loaded, [[*prompt, *ids[:-1]]]), "logits_to_keep": len(ids)}
        points, gradients = record_with_gradients(_plain_module(loaded), batch, [name], of)
    scores = (points[name] * gradients[name])[0, : len(prompt)].sum(dim=-1).cpu().double().tolist()
    read = _as_text(tokenizer, tokens_of(tokenizer, prompt))
    return AnswerAttribution("log-probability of the generated text", read, tuple(scores), "gradient x input")


def _as_text(tokenizer: Tokenizer | None, tokens: Iterable[str]) -> tuple[str, ...]:
    """The text of each token, as far as the tokenizer is known."""
    return tuple(token if tokenizer is None else token_text(token, tokenizer.by_bytes) for token in tokens)


def _plain_module(loaded: Loaded) -> Network:
    return evaluation_copy(loaded.module.require_float(Argument("explain", True)))


def _token_attributions(work: Work, target: Target) -> dict[str, Tensor]:
    """The attribution of each token of one text to a number, by the embedding that read it: Float64[Tensor, "seq"]"""
    loaded, tokenizer = work.loaded, work.loaded.required_tokenizer
    with inference_mode(False), no_grad():
        module, inputs = _plain_module(loaded), as_batch(loaded, [target.window.ids], [target.window.type_ids])

        def values(points: dict[str, Tensor]) -> Tensor:
            found = output_for_embeddings(loaded, inputs, points)
            rows = len(found["last_hidden_state"])
            return torch.stack(
                [target.value_of(Output({k: v[i : i + 1] for k, v in found.items()})) for i in range(rows)]
            )

        ends = Recorder(("*embeddings.output",))
        module(**inputs, observer=ends)
        padding = next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)
        start = baseline_embeddings(loaded, inputs, {"input_ids": padding})
        found = IntegrationPath(values, start, ends.recorded).integrate(STEPS, work.progress)
    found.warn_if_inaccurate("read them as a rough hint")
    return dict(zip(ends.recorded, found.scores.split([point.shape[1] for point in ends.recorded.values()])))


def _sum_sides(by_side: dict[str, Tensor]) -> list[float]:
    """One score per token: an encoder-decoder's decoder reads the text too, shifted right by its start token."""
    first, *others = by_side.values()
    for other in others:
        first = first + torch.nn.functional.pad(other[1:], (0, 1))
    return first.tolist()


def _window_description(targets: Sequence[Target]) -> str:
    """Which windows, in words; "" for a text that was read whole."""
    parts = [
        f"window {target.window.index + 1} of {target.window.count}{target.text_name and f' of {target.text_name}'}"
        for target in targets
        if target.window.count > 1
    ]
    return f" in {' and '.join(parts)}" if parts else ""
