"""The logit lens: what the model would predict if it stopped at a layer."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import OF_TOKENS
from pellucid.config.checks import check_count
from pellucid.machine import no_grad
from pellucid.models import EncoderDecoder, check_finite
from pellucid.text import tokens_of
from pellucid.trace import Trace
from pellucid.trace.explain.inputs import as_trace, check_head, side_of
from pellucid.trace.explain.table import format_token, table

log = logging.getLogger("pellucid")

POSITIONS_PER_CHUNK = 256
"""The positions whose logits are computed at a time: a vocabulary has up to a quarter of a million tokens."""
MAX_SHOWN = 8
LOGITS_TOLERANCE = 0.05
"""A distance relative to the logits: a larger one means other model weights; rounding is far smaller."""


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The likeliest tokens at every layer, for every position.

    kind: "next token" (what follows the position) or "masked token" (what belongs at it).
    points: the points where the residual stream was read, from the embeddings to the last layer.
    tokens: the tokens at the positions.
    ids: Int[Tensor, "points positions k"], the likeliest first.
    log_probabilities: Float[Tensor, "points positions k"], natural logarithms.
    tokens_by_id: the tokens of these ids, as the vocabulary spells them.
    by_bytes: whether their characters stand for bytes.
    """

    kind: str
    points: tuple[str, ...]
    tokens: tuple[str, ...]
    ids: Tensor
    log_probabilities: Tensor
    tokens_by_id: dict[int, str]
    by_bytes: bool = False

    def __repr__(self) -> str:
        first = max(len(self.tokens) - MAX_SHOWN, 0)
        note = f", the last {MAX_SHOWN} of {len(self.tokens)} positions" if first else ""
        rows = [["", *map(self._cell, self.tokens[first:])]]
        for name, ids, logs in zip(self.points, self.ids[:, first:, 0].tolist(), self.log_probabilities[:, first:, 0]):
            rows.append(
                [name, *(f"{self._cell(self.tokens_by_id[i])} {p:.2f}" for i, p in zip(ids, logs.exp().tolist()))]
            )
        return f"LogitLens: the likeliest {self.kind} and its probability{note}\n{table(rows)}"

    def _cell(self, token: str) -> str:
        return format_token(token, self.by_bytes)


@no_grad()
def logit_lens(loaded: Loaded, text: str | Trace, *, k: int = 5, decoder_text: str | None = None) -> LogitLens:
    """The residual stream after every layer, through the model's own final norm and head (nostalgebraist, 2020,
    "interpreting GPT: the logit lens").

    text: or a trace that holds `embeddings.output` and every `residual.post` (of an encoder-decoder, its decoder's).
    k: how many tokens for each layer and position.
    decoder_text: what the decoder of an encoder-decoder reads; by default the text itself.

    The last layer gives the model's own output, unless later points (`norm.output`, `logits`) are edited or the head
    has 8 bits, whose rounding depends on the number of positions at once. What it does not show: the meaning of
    intermediate layers in their own terms. They were not trained to be read by this head and may use another basis, so
    the answer may be present where the lens shows nonsense (Belrose et al., 2023, arXiv:2303.08112, who train a linear
    map for each layer). In models that norm the stream itself (BERT, BART) each layer's output is already normed.
    Logs a warning where a trace holds other logits at its last position, as that of a model with other weights does;
    not for edited traces, nor in 8 and 4 bits.
    Raises InputError for a model without a head over the vocabulary, or with one that alone is untrained.
    """
    check_head(loaded, "the logit lens", *OF_TOKENS)
    k = check_count("k", k, maximum=loaded.config.vocab_size)
    side = side_of(loaded, None, "decoder")
    stack = loaded.module.decoder if isinstance(loaded.module, EncoderDecoder) else loaded.module
    points = (f"{side}embeddings.output", *(f"{side}layers.{i}.residual.post" for i in range(stack.depth)))
    trace = as_trace(loaded, text, points, decoder_text)
    if text is trace:
        _warn_of_other_logits(loaded, stack.norm, trace, points[-1])
    top_tokens = [_top_tokens(loaded, stack.norm, trace[point][0], k) for point in points]
    ids = torch.stack([ids for ids, _ in top_tokens])
    shown_ids = ids.unique().tolist()
    tokenizer = None if loaded.tokenizer is None else loaded.required_target_tokenizer
    return LogitLens(
        kind="masked token" if loaded.config.kind == "encoder" else "next token",
        points=points,
        tokens=tuple(trace.target_tokens if side else trace.tokens),
        ids=ids,
        log_probabilities=torch.stack([logs for _, logs in top_tokens]),
        tokens_by_id=dict(zip(shown_ids, tokens_of(tokenizer, shown_ids))),
        by_bytes=tokenizer is not None and tokenizer.by_bytes,
    )


def _warn_of_other_logits(loaded: Loaded, norm: nn.Module, trace: Trace, last: str) -> None:
    """Warns where the last layer's logits differ from those in the trace."""
    if "logits" not in trace or trace.edits or loaded.module.bits:
        return
    (lens_logits,) = _logits(loaded, norm, trace[last][0, -1:])
    traced = trace["logits"][0, -1:].to(lens_logits)
    distance = float((lens_logits - traced).norm())
    if not distance <= LOGITS_TOLERANCE * float(traced.norm()):  # `not <=` also catches NaN
        log.warning("the lens misses the logits by %.2g: is the trace of a model with other weights?", distance)


def _top_tokens(loaded: Loaded, norm: nn.Module, stream: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Float[Tensor, "positions hidden"]  ->  ids and log-probabilities of the likeliest, [positions, k] each"""
    found = [logits.log_softmax(dim=-1).topk(k, dim=-1) for logits in _logits(loaded, norm, stream)]
    return torch.cat([top.indices for top in found]).cpu(), torch.cat([top.values for top in found]).cpu()


def _logits(loaded: Loaded, norm: nn.Module, stream: Tensor) -> Iterator[Tensor]:
    """Yields the logits of some positions at a time, in float32 at least: Float[Tensor, "positions vocab"]."""
    head, like = loaded.module.head, loaded.module.embeddings.token.like
    assert head is not None  # checked by `check_head`
    for part in stream.to(like).split(POSITIONS_PER_CHUNK):
        logits = head(norm(part))
        yield check_finite(logits.to(torch.promote_types(logits.dtype, torch.float32)), loaded.module)
