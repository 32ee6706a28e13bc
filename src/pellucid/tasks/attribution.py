"""Why a task answered so: a number that was answered, shared out among the tokens that were read for it.

The way is integrated gradients (Sundararajan et al., 2017, arXiv:1703.01365), from the same text with padding in place
of its tokens: the scores sum to what the tokens changed. The gradient at the text alone is nearly nothing where an
answer is saturated; only for what was written is it taken all the same (`reason_of_writing` says why). What no score
shows is how tokens work together; see `pellucid.trace.explain.integrated_gradients`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument
from pellucid.generation.checkpoint_settings import started
from pellucid.machine import inference_mode, no_grad
from pellucid.models import EncoderDecoder, Network, Output, evaluating
from pellucid.tasks.answer import Answer, Answers, Reason
from pellucid.tasks.task import Work
from pellucid.text import Tokenizer, Window, tokens_of
from pellucid.text.spelling import written
from pellucid.trace import Recorder
from pellucid.trace.explain.embedding_function import answered, emptied
from pellucid.trace.explain.integration import Way
from pellucid.trace.gradients import felt

STEPS = 64
"""Places on the way at which the gradient is taken, at most; a way begins with half as many."""


@dataclass(frozen=True)
class Aim:
    """One number that was answered.

    said: in words.  window: the stretch that it is about.  of: the number, from the model's output for that stretch.
    text: what that is a stretch of, where several texts are read apart.
    """

    said: str
    window: Window
    of: Callable[[Output], Tensor]
    text: str = ""


def logit(said: str, window: Window, number: int, place: int | None = None) -> Aim:
    """A logit as an aim.  number: which one.  place: of which token; None where the text has one answer."""
    where = (0, number) if place is None else (0, place, number)
    return Aim(f"logit of {said}", window, lambda output: output["logits"][where])


def explained(work: Work, found: Answer | Answers, aims: Callable[[Answer], Sequence[Aim]]) -> Answer | Answers:
    """The same answer, or answers, each with its reason.  aims: the numbers behind one; one for each text of several
    that were read apart."""
    if isinstance(found, Answer):
        return found.but(why=reason(work, aims(found)))
    return Answers([one.but(why=reason(work, aims(one))) for one in found], **vars(found))


def reason(work: Work, aims: Sequence[Aim]) -> Reason:
    """How much each token of these stretches adds to the numbers that are asked about.

    Raises InputError for a model of 8 or 4 bits.
    """
    tokens: list[str] = []
    scores: list[float] = []
    for aim in aims:
        tokens += aim.window.tokens
        scores += _by_token(_shares(work, aim))
    read = _as_text(work.loaded.words, tokens)
    return Reason(aims[0].said + _where(aims), read, tuple(scores), "integrated gradients")


def reason_of_writing(loaded: Loaded, prompt: Sequence[int], answer: Sequence[int]) -> Reason:
    """How much each token of a prompt matters for the log-probability of everything that was written behind it.

    By the gradient at this prompt times the embedding: the way from padding is too rough through the norms of a deep
    decoder. Where the model is sure of what it writes this shows little, and its signs say little.

    prompt: what the model read, and of an encoder-decoder what its encoder read.  answer: ids, at least one.
    """
    words, ids = loaded.tokenizer, list(answer)

    def of(output: Output) -> Tensor:
        said = output["logits"][0, -len(ids) :].log_softmax(dim=-1)
        return said[torch.arange(len(ids), device="cpu"), torch.tensor(ids, device="cpu")].sum()

    with inference_mode(False):
        batch: dict[str, Any]
        if isinstance(loaded.module, EncoderDecoder):
            name = "encoder.embeddings.output"
            batch = {**as_batch(loaded, [prompt], written=[[started(loaded), *ids[:-1]]])}
        else:
            name = "embeddings.output"
            batch = {**as_batch(loaded, [[*prompt, *ids[:-1]]]), "logits_to_keep": len(ids)}
        points, gradients = felt(_plain(loaded), batch, [name], of)
    scores = (points[name] * gradients[name])[0, : len(prompt)].sum(dim=-1).cpu().double().tolist()
    read = _as_text(words, tokens_of(words, prompt))
    return Reason("log-probability of what was written", read, tuple(scores), "gradient x input")


def _as_text(words: Tokenizer | None, tokens: Iterable[str]) -> tuple[str, ...]:
    """Tokens as they stand in a text, as far as somebody knows how they are written."""
    return tuple(token if words is None else written(token, words.by_bytes) for token in tokens)


def _plain(loaded: Loaded) -> Network:
    return evaluating(loaded.module.real(Argument("explain", True)))


def _shares(work: Work, aim: Aim) -> dict[str, Tensor]:
    """What each token of one text adds to a number, by the side that read it: Float64[Tensor, "seq"]"""
    loaded, words = work.loaded, work.loaded.words
    with inference_mode(False), no_grad():
        module, inputs = _plain(loaded), as_batch(loaded, [aim.window.ids], [aim.window.type_ids])

        def values(points: dict[str, Tensor]) -> Tensor:
            found = answered(loaded, inputs, points)
            rows = len(found["last_hidden_state"])
            return torch.stack([aim.of(Output({k: v[i : i + 1] for k, v in found.items()})) for i in range(rows)])

        ends = Recorder(("*embeddings.output",))
        module(**inputs, watch=ends)
        padding = next((token for token in (words.pad_token_id, words.eos_token_id) if token is not None), 0)
        start = emptied(loaded, inputs, {"input_ids": padding})
        found = Way(values, start, ends.kept).walk(STEPS, work.progress)
    found.tell("read them as a rough hint")
    return dict(zip(ends.kept, found.scores.split([point.shape[1] for point in ends.kept.values()])))


def _by_token(shares: dict[str, Tensor]) -> list[float]:
    """One score a token: a pair's decoder reads the text too, one place to the right behind its start token."""
    first, *others = shares.values()
    for other in others:
        first = first + torch.nn.functional.pad(other[1:], (0, 1))
    return first.tolist()


def _where(aims: Sequence[Aim]) -> str:
    """In which stretches, in words; nothing of a text that was read whole."""
    parts = [
        f"stretch {aim.window.number + 1} of {aim.window.count}{aim.text and f' of {aim.text}'}"
        for aim in aims
        if aim.window.count > 1
    ]
    return f" in {' and '.join(parts)}" if parts else ""
