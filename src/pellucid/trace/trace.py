"""A recorded pass: its tensors by name, and the texts that were read."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from pellucid.config.checks import check_choice, check_count, require_integer
from pellucid.errors import InputError, format_count
from pellucid.trace.named import NamedTensors
from pellucid.trace.points import axes_of, points, sides_of
from pellucid.trace.reading import Reading


@dataclass(frozen=True)
class EditRecord:
    """An edit made during a pass, printed as "layers.3.attention.weights: zero(head=5)".

    name: the point, or the glob that was requested.  change: a description of the edit.
    """

    name: str
    change: str

    def __str__(self) -> str:
        return f"{self.name}: {self.change}"


@dataclass(frozen=True, eq=False)
class Trace(NamedTensors):
    """One recorded pass: `trace["layers.0.attention.weights"]` is a tensor, `trace.names()` lists all of them.

    points: the tensors by name.  rows: what was read, one `Reading` for each text of the batch.
    config, model, parameters: the model's facts, name and parameter count.
    gradients: of the result of `gradients_of`, by the same names (aliases too) and of the same shapes; else empty.
    edits: the edits made during the pass.  padding: the side on which shorter texts of a batch are padded.

    Points that a pass carries forward unchanged share their memory: `layers.1.residual.pre` is
    `layers.0.residual.post`. The properties of a single text are on the trace itself, such as `trace.tokens`; of
    several texts, on `trace.row(i)`. Lists are returned as copies, so changing one does not change the trace.
    """

    type_name: ClassVar[str] = "trace"

    rows: tuple[Reading, ...]
    model: str
    parameters: int
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    edits: tuple[EditRecord, ...] = ()
    padding: str = "right"

    def __post_init__(self) -> None:
        named = NamedTensors(dict(self.gradients), self.config)
        object.__setattr__(self, "gradients", named)  # the dataclass is frozen

    # -- what was read ------------------------------------------------------------------------------------------------

    @property
    def texts(self) -> tuple[str, ...]:
        """The text, or the two texts of a pair."""
        return single_row(self).texts

    @property
    def tokens(self) -> list[str]:
        """The tokens that the model read."""
        return list(single_row(self).tokens)

    @property
    def ids(self) -> list[int]:
        """The ids of the tokens that the model read."""
        return list(single_row(self).ids)

    @property
    def segments(self) -> list[int]:
        """For each token, 0 or 1: the text of a pair that it belongs to."""
        return list(single_row(self).segments)

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """The span of each token in its text, as (start, end) in characters."""
        return list(single_row(self).offsets)

    @property
    def special(self) -> list[bool]:
        """For each token, whether it is a special token, which is not part of the text."""
        return list(single_row(self).special)

    @property
    def cut(self) -> int:
        """The number of tokens that were cut off."""
        return single_row(self).cut

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """The tokens that the decoder of an encoder-decoder read."""
        return single_row(self).target_tokens

    @property
    def before(self) -> tuple[str, ...]:
        """The tokens that were already in the cache when this pass began: the first columns of its attention."""
        return single_row(self).before

    # -- one of several -----------------------------------------------------------------------------------------------

    def row(self, i: int) -> "Trace":
        """The trace of one text of the batch without its padding: views of the same tensors, `batch` of size 1."""
        i = self._row_index(i)
        points = {name: self._without_padding(name, tensor, i) for name, tensor in self.points.items()}
        gradients = {name: self._without_padding(name, tensor, i) for name, tensor in self.gradients.items()}
        return replace(self, points=points, gradients=gradients, rows=(self.rows[i],))

    def _row_index(self, i: int) -> int:
        """The index of a text, from 0; negative indices count from the end."""
        i = require_integer("row", i, "the number of a text")
        if not -len(self.rows) <= i < len(self.rows):
            raise InputError(
                f"row {i} is not there: this trace is of {format_count(len(self.rows), 'text')}, from row 0 on"
            )
        return i % len(self.rows)

    def _without_padding(self, name: str, tensor: Tensor, i: int) -> Tensor:
        for dim, axis in enumerate(axes_of(name, self.config)):
            if axis == "batch" and tensor.shape[0] > 1:
                tensor = tensor.narrow(0, i, 1)
            elif axis in ("seq", "source"):
                start, stop = self.span(name, axis, i)
                tensor = tensor.narrow(dim, start, stop - start)
        return tensor

    def span(self, name: str, axis: str, i: int) -> tuple[int, int]:
        """The start and end of the tokens of text `i` along the axis "seq" or "source" of a point. Raises InputError
        for a point, axis or text that does not exist."""
        name, i = self._our_name(str(name)), self._row_index(i)
        check_choice("axis", axis, ("seq", "source"))
        if axis not in (axes := points(self.config)[name]):
            raise InputError(f"{name} has no axis {axis}: its axes are {', '.join(axes)}")
        side = sides_of(name)[axis == "source"]
        if side == "decoder" and self.config.decoder is not None:
            return 0, len(self.rows[i].target_tokens)
        length = len(self.rows[i].tokens)
        start = max(len(row.tokens) for row in self.rows) - length if self.padding == "left" else 0
        if axis == "seq":
            return start, start + length
        remembered = max(len(row.before) for row in self.rows)
        start += remembered - len(self.rows[i].before)
        return start, start + len(self.rows[i].before) + length

    # -- for a person -------------------------------------------------------------------------------------------------

    def strongest(self, layer: int, head: int, most: int = 5) -> list[tuple[int, int, float]]:
        """The largest attention weights between non-special tokens in one head, as (from, to, weight), largest first.

        In an encoder-decoder, those of the encoder. After a cache, those among the tokens of this pass. In a decoder,
        links to tokens that the causal mask or the sliding window hides are left out.
        """
        row = single_row(self)
        side = "encoder." if self.config.kind == "encoder-decoder" else ""
        every = self[f"{side}layers.{layer}.attention.weights"][0, :, :, len(row.before) :]
        most = check_count("most", most)
        head = require_integer("head", head, "the number of a head")
        if not 0 <= head < len(every):
            raise InputError(f"head {head} is not there: this model has heads 0 to {len(every) - 1}")
        weights = every[head].detach().cpu().clone()
        real = torch.tensor([not special for special in row.special], device="cpu")
        allowed = real[:, None] & real[None, :]
        if self.config.kind == "decoder":
            allowed = allowed.tril().triu(1 - (self.config.attention.sliding_window or len(allowed)))
        weights[~allowed | weights.isnan()] = -math.inf  # below any value that an edit can set
        links = zip(*weights.flatten().topk(min(most, weights.numel())))
        return [(*divmod(int(i), len(row.tokens)), float(w)) for w, i in links if w > -math.inf]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the trace to one safetensors file; `pellucid.open_trace` reads it back bit for bit. A process killed
        meanwhile may leave a hidden folder beside the file, `.NAME-` and eight letters, which can be deleted."""
        from pellucid.trace.stored import save_trace

        return save_trace(self, path)

    def __repr__(self) -> str:
        size = sum(t.numel() * t.element_size() for t in self.points.values()) / 2**20
        max_length = max(len(row.tokens) for row in self.rows)
        tokens = format_count(max_length, "token")
        contents = tokens if len(self.rows) == 1 else f"{len(self.rows)} texts of at most {tokens}"
        return f"Trace({contents}, {len(self.points)} tensors, {size:.1f} MiB, of {self.model})"


def single_row(trace: Trace) -> Reading:
    """What was read, where that was one text. Raises InputError for a trace of several."""
    if len(trace.rows) != 1:
        raise InputError(f"this trace is of {len(trace.rows)} texts: choose one, such as trace.row(0)")
    return trace.rows[0]
