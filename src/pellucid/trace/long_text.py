"""Records a long text for a page: the attention of every layer, never holding the weights of two layers at once.

The weights of 2,048 tokens in 30 layers of 9 heads take 4.5 GB. A page needs queries and keys, which are small, a
thumbnail of each head, and some rows of exact weights, to measure the error of recomputing them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from pellucid.bars import progress_bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, Placeholder, ResourceError
from pellucid.machine import free_memory, no_grad
from pellucid.models import evaluation_copy
from pellucid.trace.points import points
from pellucid.trace.reading import Reading, batch_of, read_texts, warn_if_truncated
from pellucid.trace.record import Recorder, kept_names, model_metadata
from pellucid.trace.trace import Trace

SAMPLED_ROWS = 16
PICTURE = 64

MAX_WEIGHT_BYTES = 2**28
"""The size of all attention weights of a pass, in bytes, above which they are not kept."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What is kept of the weights of one attention.

    rows: Int[Tensor, "rows"], the sampled queries.  weights: Float[Tensor, "heads rows source"], their exact weights.
    picture: Float[Tensor, "heads height width"], all weights, max-pooled to at most 64 x 64.
    """

    rows: Tensor
    weights: Tensor
    picture: Tensor


@dataclass(frozen=True, repr=False, eq=False)
class LongTrace(Trace):
    """A trace without weights. samples: what was kept of them, by the path of each attention."""

    samples: dict[str, Sample] = field(default_factory=dict)


class WeightSampler(Recorder):
    """An observer that keeps points whole, but only a sample of attention weights. samples: by the attention's path."""

    def __init__(self, patterns: Iterable[str], on_attention: Callable[[int], object]) -> None:
        """on_attention: called with 1 after each attention."""
        super().__init__(patterns)
        self.samples: dict[str, Sample] = {}
        self.on_attention = on_attention

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if not name.endswith("attention.weights") or not self.wants(name):
            return super().__call__(name, value)
        self.samples[name.removesuffix(".weights")] = sample(value[0].detach())
        self.on_attention(1)
        return value


def sample(weights: Tensor) -> Sample:
    """Samples Float[Tensor, "heads queries source"]: evenly spaced rows, including the first and the last."""
    queries, source = weights.shape[1:]
    rows = torch.linspace(0, queries - 1, min(SAMPLED_ROWS, queries), dtype=torch.float32, device="cpu").round().long()
    size = (min(PICTURE, queries), min(PICTURE, source))
    picture = F.adaptive_max_pool2d(weights[None].float(), size)[0]
    return Sample(rows, weights[:, rows].float().cpu().clone(), picture.cpu())


@no_grad()
def record_long(
    loaded: Loaded,
    text: str,
    pair: str | None = None,
    *,
    target: str | None = None,
    max_length: int | None = None,
    also: tuple[str, ...] = (),
    progress: bool | None = None,
) -> LongTrace:
    """Records one pass for a page: a trace without weights, with a sample of those of each attention.

    The values equal those of `record(..., keep="view")` bit for bit. A text is cut to `max_length` tokens.
    also: names or globs of other points to keep.  progress: show a bar; by default for long work at a terminal.
    Raises ResourceError where the weights of one layer do not fit into memory.
    """
    rows = read_texts(loaded, text, pair, target, None, max_length)
    warn_if_truncated(rows, max_length)
    _check_memory(_layer_weight_bytes(loaded, rows), len(rows[0].tokens))
    names = [*kept_names(loaded.config, "view"), *(kept_names(loaded.config, also) if also else ())]
    with progress_bar("recording", total=_attention_count(loaded), unit=" attentions", shown=progress) as line:
        sampler = WeightSampler(names, line.update)
        evaluation_copy(loaded.module)(**batch_of(loaded, rows), observer=sampler)
    return LongTrace(sampler.recorded, rows=rows, samples=sampler.samples, **model_metadata(loaded))


def is_long(
    loaded: Loaded, text: str, pair: str | None = None, *, target: str | None = None, max_length: int | None = None
) -> bool:
    """Whether all attention weights of a pass over this text would take more than MAX_WEIGHT_BYTES."""
    rows = read_texts(loaded, text, pair, target, None, max_length)
    return _attention_count(loaded) * _layer_weight_bytes(loaded, rows) > MAX_WEIGHT_BYTES


def _attention_count(loaded: Loaded) -> int:
    return sum(name.endswith("attention.weights") for name in points(loaded.config))


def _check_memory(weights: int, tokens: int) -> None:
    needed, free = 4 * weights, free_memory()  # scores, masked scores, weights, and the sum before them
    if free is not None and needed > free:
        raise ResourceError(
            f"{tokens:,} tokens need {needed / 2**30:.1f} GiB for the weights of one layer, and {free / 2**30:.1f} GiB "
            "are free: cut the text with ",
            Argument("max_length", Placeholder("N")),
        )


def _layer_weight_bytes(loaded: Loaded, rows: tuple[Reading, ...]) -> int:
    """An upper bound on the size of the weights of one layer, in bytes."""
    tokens = max(max(len(row.tokens), len(row.target_tokens)) for row in rows)
    return loaded.config.num_attention_heads * tokens**2 * 4
