"""Direct logit attribution: what each part of a pass contributes to a logit."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks import Embeddings, RMSNorm
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import WRITING
from pellucid.config.checks import check_count
from pellucid.errors import InputError, shorten
from pellucid.machine import no_grad
from pellucid.models import EncoderDecoder
from pellucid.trace import EditRecord, Trace, resolve
from pellucid.trace.edit import edits_of
from pellucid.trace.explain.inputs import as_trace, check_head, checked_position, side_of, token_id, token_of
from pellucid.trace.explain.table import table

ROUNDING = 8
"""The largest accepted error of the sum, in units in the last place of all that is summed; usually it is one or two."""

LATER_POINTS = ("embeddings.output", "attention.output", "norm.output", "logits")
"""Points after those at which the parts are read; those of the residual stream are too."""

log = logging.getLogger("pellucid")


@dataclass(frozen=True, eq=False)
class DirectAttribution:
    """A logit as a sum of parts, in float64.

    target: which logit, in words.  position: its position, counted from 0.
    logit: the model's own logit, or the difference of two.
    heads: Float64[Tensor, "layers heads"], the contribution of each head of self-attention.
    cross_heads: the same for cross-attention; None where there is none.
    feed_forward: Float64[Tensor, "layers"], the contribution of each feed-forward block, its last bias included.
    embeddings, biases: the rest, by name.
    """

    target: str
    position: int
    logit: float
    heads: Tensor
    cross_heads: Tensor | None
    feed_forward: Tensor
    embeddings: dict[str, float]
    biases: dict[str, float]

    @property
    def parts(self) -> dict[str, float]:
        """Every part by its name, in the order of the pass; heads as "layers.3.attention.head_outputs[5]"."""
        found = dict(self.embeddings)
        for i, of_heads in enumerate(self.heads.tolist()):
            found |= {f"layers.{i}.attention.head_outputs[{h}]": value for h, value in enumerate(of_heads)}
            if self.cross_heads is not None:
                across = enumerate(self.cross_heads[i].tolist())
                found |= {f"layers.{i}.cross_attention.head_outputs[{h}]": value for h, value in across}
            found[f"layers.{i}.feed_forward.output"] = float(self.feed_forward[i])
        return found | self.biases

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self.parts.values())

    @property
    def error(self) -> float:
        """The absolute difference between the sum and the model's own logit: rounding only."""
        return abs(self.total - self.logit)

    def strongest(self, most: int = 10) -> list[tuple[str, float]]:
        """The parts with the largest absolute contributions, as (name, contribution)."""
        most = check_count("most", most)
        return sorted(self.parts.items(), key=lambda part: -abs(part[1]))[:most]

    def __repr__(self) -> str:
        rows = [[name, f"{value:+.4f}"] for name, value in self.strongest()]
        more = len(self.parts) - len(rows)
        rest = self.total - sum(value for _, value in self.strongest())
        rows += [[f"{more} others", f"{rest:+.4f}"]] if more > 0 else []
        return f"DirectAttribution: {self.target} at position {self.position} is {self.logit:.4f}\n{table(rows)}"


@no_grad()
def direct_logit_attribution(
    loaded: Loaded,
    text: str | Trace,
    token: str | int,
    against: str | int | None = None,
    *,
    position: int = -1,
    decoder_text: str | None = None,
) -> DirectAttribution:
    """The direct contribution of each head, each feed-forward block, the embeddings and the biases to a logit, through
    the final norm with its scale held fixed (Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits").

    text: or a trace with everything kept, of these very weights; logs a warning where the sum shows otherwise.
    token: as it appears in a text (" Paris"), as the vocabulary spells it, or an id.
    against: explains the difference to the logit of this token instead. A logit alone says little: all may share a
        part.
    position: whose next token; -1 is the last.  decoder_text: what the decoder of an encoder-decoder reads.

    The parts sum to the logit. In an edited pass, heads count with their edited outputs, and what edits of other points
    after these parts added is a part of its own, "edits". What it does not show: indirect effects through later parts.
    A head that only enables another contributes nothing here; and without a part, the norm would have another scale.
    Raises InputError for a model that norms the stream itself (BERT, BART): there every layer rescales the parts, so
    they do not add up.
    """
    check_head(loaded, "direct logit attribution", *WRITING)
    if loaded.config.residual != "pre":
        raise InputError(
            f"direct logit attribution needs a stream that is a sum, and {loaded.config.family} norms it in every layer"
        )
    module = loaded.module.require_float("direct logit attribution")
    stack = module.decoder if isinstance(module, EncoderDecoder) else module
    side = side_of(loaded, None, "decoder")
    chosen = token_id(loaded, token), None if against is None else token_id(loaded, against, "against")
    if chosen[0] == chosen[1]:
        raise InputError(f"token and against are both {shorten(repr(token))}: their difference is 0 everywhere")
    edits = text.edits if isinstance(text, Trace) else edits_of(loaded)
    edited = bool(edits)
    trace = as_trace(loaded, text, _needed_points(side, stack.depth, edited), decoder_text)
    index = checked_position(position, len(trace.target_tokens if side else trace.tokens))

    def at(name: str) -> Tensor:
        return _as_float64(trace[f"{side}{name}"][0, ..., index, :])

    last = at(f"layers.{stack.depth - 1}.residual.post")
    direction, biases = _logit_direction(module.head, stack.norm, last, *chosen)
    heads, across, forward = [], [], []
    for i, layer in enumerate(stack.in_order()):
        for name, contributions in (("attention", heads), ("cross_attention", across)):
            attention = getattr(layer, name)
            if attention is not None:
                if edited:
                    contributions.append(at(f"layers.{i}.{name}.head_outputs") @ direction)
                else:
                    contributions.append(
                        _head_contributions(attention.output, at(f"layers.{i}.{name}.heads"), direction)
                    )
                if attention.output.bias is not None:
                    biases[f"layers.{i}.{name}.output.bias"] = float(_as_float64(attention.output.bias) @ direction)
        forward.append(at(f"layers.{i}.feed_forward.output") @ direction)
    logits = _as_float64(trace["logits"][0, index])
    tokens = [token_of(loaded, i) for i in chosen if i is not None]
    shares = DirectAttribution(
        target=f"logit of {tokens[0]!r}" + (f" minus that of {tokens[1]!r}" if len(tokens) > 1 else ""),
        position=index,
        logit=float(logits[chosen[0]] - (0 if chosen[1] is None else logits[chosen[1]])),
        heads=torch.stack(heads),
        cross_heads=torch.stack(across) if across else None,
        feed_forward=torch.stack(forward),
        embeddings={name: float(at(name) @ direction) for name in _embedding_parts(stack.embeddings, trace, side)},
        biases=biases,
    )
    if any(_bypasses_parts(loaded, one) for one in edits):
        return replace(shares, biases=biases | {"edits": shares.logit - shares.total})
    kinds = trace["logits"].dtype, stack.embeddings.token.like.dtype
    unit = max(torch.finfo(kind).eps for kind in kinds) * float(last.abs() @ direction.abs() + abs(shares.logit))
    if not shares.error <= ROUNDING * unit:  # `not <=` also catches NaN
        log.warning("the parts miss the logit by %.2g: is the trace of a model with other weights?", shares.error)
    return shares


def _bypasses_parts(loaded: Loaded, edit: EditRecord) -> bool:
    """Whether an edit may change the logit other than through the outputs of the parts."""
    return any(name.endswith(LATER_POINTS) or ".residual." in name for name in resolve(edit.name, loaded.config))


def _as_float64(numbers: Tensor) -> Tensor:
    return numbers.detach().cpu().double()


def _needed_points(side: str, depth: int, edited: bool) -> tuple[str, ...]:
    of_heads = "head_outputs" if edited else "heads"
    across = (f"cross_attention.{of_heads}",) if side else ()
    inner = (f"attention.{of_heads}", "feed_forward.output", *across)
    last = f"{side}layers.{depth - 1}.residual.post"
    return (*(f"{side}layers.*.{name}" for name in inner), f"{side}embeddings.*", last, "logits")


def _logit_direction(
    head: Any, norm: Any, stream: Tensor, chosen: int, against: int | None
) -> tuple[Tensor, dict[str, float]]:
    """The vector whose product with the stream gives the logit, Float64[Tensor, "hidden"], and the biases added on the
    way."""
    weight, bias = _as_float64(head.decoder.weight), head.bias
    unembedding = (weight[chosen] - (0 if against is None else weight[against])) * head.scale
    added = {}
    if bias is not None:
        added["head.bias"] = float(bias[chosen] - (0 if against is None else bias[against]))
    direction = unembedding * _as_float64(norm.weight)
    match norm:
        case nn.LayerNorm():
            added["norm.bias"] = float(_as_float64(norm.bias) @ unembedding)
            direction = direction - direction.mean()  # the norm subtracts the mean; so does this, once for all parts
            return direction * torch.rsqrt(stream.var(correction=0) + norm.eps), added
        case RMSNorm():
            return direction * torch.rsqrt(stream.pow(2).mean() + norm.eps), added
    raise TypeError(f"direct logit attribution does not support the norm {type(norm).__name__}")


def _head_contributions(output: nn.Linear, heads: Tensor, direction: Tensor) -> Tensor:
    """Float64[Tensor, "heads width"] through the output projection of attention, along the direction: [heads]"""
    return (heads * (direction @ _as_float64(output.weight)).view_as(heads)).sum(dim=-1)


def _embedding_parts(embeddings: Embeddings, trace: Trace, side: str) -> list[str]:
    """Token, type and position separately where the embeddings are their sum; else the embeddings' output."""
    if not (isinstance(embeddings.norm, nn.Identity) and isinstance(embeddings.projection, nn.Identity)):
        return ["embeddings.output"]
    names = [f"embeddings.{part}" for part in ("token", "type", "position")]
    return [name for name in names if f"{side}{name}" in trace]
