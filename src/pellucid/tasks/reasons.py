"""Why a task answered so: a number that was answered, shared out among the tokens that were read for it.

The way is the gradient at each token's embedding, times that embedding (Shrikumar et al., 2016, arXiv:1605.01713); what
it does not show stands at `pellucid.trace.explain.gradient_x_input`, which gives the same scores.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.models import EncoderDecoder, Output, evaluating
from pellucid.tasks.answer import Answer, Answers, Reason
from pellucid.text import Window, tokens_of
from pellucid.trace.gradients import felt


@dataclass(frozen=True)
class Aim:
    """One number that was answered.

    said: in words.  window: the stretch that it is about.  of: the number, from the model's output for that stretch.
    """

    said: str
    window: Window
    of: Callable[[Output], Tensor]


def logit(said: str, window: Window, number: int, place: int | None = None) -> Aim:
    """A logit as an aim.  number: which one.  place: of which token; None where the text has one answer."""
    where = (0, number) if place is None else (0, place, number)
    return Aim(f"logit of {said}{within(window)}", window, lambda output: output["logits"][where])


def explained(loaded: Loaded, found: Answer | Answers, aims: Callable[[Answer], Sequence[Aim]]) -> Answer | Answers:
    """The same answer, or answers, each with its reason.  aims: the numbers behind one; one for each text of several
    that were read apart."""
    if isinstance(found, Answer):
        return found.but(why=reason(loaded, aims(found)))
    return Answers([one.but(why=reason(loaded, aims(one))) for one in found], **vars(found))


def reason(loaded: Loaded, aims: Sequence[Aim]) -> Reason:
    """How much each token of these stretches adds to the numbers that are asked about.

    Raises InputError for a model of 8 or 4 bits.
    """
    tokens: list[str] = []
    scores: list[float] = []
    for aim in aims:
        batch = {"input_ids": aim.window.ids, "token_type_ids": aim.window.type_ids}
        here = _slopes(loaded, {name: ids for name, ids in batch.items() if name in loaded.module.reads}, aim.of)
        tokens += aim.window.tokens
        scores += _by_token(here)
    return Reason(aims[0].said, tuple(tokens), tuple(scores))


def reason_of_writing(loaded: Loaded, prompt: Sequence[int], written: Sequence[int]) -> Reason:
    """How much each token of a prompt adds to the log-probability of everything that was written behind it.

    prompt: what the model read, and of an encoder-decoder what its encoder read.  written: ids, at least one.
    """
    words, ids = loaded.tokenizer, list(written)
    if isinstance(loaded.module, EncoderDecoder):
        start = loaded.module.shifted(torch.tensor([ids]))[0].tolist()
        batch = {"input_ids": list(prompt), "decoder_input_ids": start}
    else:
        batch = {"input_ids": [*prompt, *ids[:-1]], "logits_to_keep": len(ids)}

    def of(output: Output) -> Tensor:
        said = output["logits"][0, -len(ids) :].log_softmax(dim=-1)
        return said[torch.arange(len(ids)), torch.tensor(ids)].sum()

    scores = next(iter(_slopes(loaded, batch, of).values()))[: len(prompt)].tolist()
    return Reason("log-probability of what was written", tokens_of(words, prompt), tuple(scores))


def _slopes(loaded: Loaded, batch: dict[str, Any], of: Callable[[Output], Tensor]) -> dict[str, Tensor]:
    """Gradient times embedding for each token of one text, by the side that read it: Float[Tensor, "seq"]"""
    sides = ("encoder.", "decoder.") if isinstance(loaded.module, EncoderDecoder) else ("",)
    device = loaded.module.embeddings.token.like.device
    with torch.inference_mode(False):
        inputs = {k: torch.tensor([ids], device=device) if isinstance(ids, list) else ids for k, ids in batch.items()}
        module = evaluating(loaded.module.real("explain=True"))
        points, gradients = felt(module, inputs, [f"{side}embeddings.output" for side in sides], of)
    return {name: (points[name] * gradients[name])[0].sum(dim=-1).cpu().double() for name in points}


def _by_token(slopes: dict[str, Tensor]) -> list[float]:
    """One score a token: a pair's decoder reads the text too, one place to the right behind its start token."""
    first, *others = slopes.values()
    for other in others:
        first = first + torch.nn.functional.pad(other[1:], (0, 1))
    return first.tolist()


def within(window: Window) -> str:
    """Which stretch, in words; nothing where there is but one."""
    return "" if window.count == 1 else f" in stretch {window.number + 1} of {window.count}"
