"""Records one pass: every intermediate tensor, by the name of the point at which it arises."""

import contextlib
import fnmatch
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.config.checks import check_one_of, is_one_of, require_names
from pellucid.errors import Argument, InputError, shorten
from pellucid.machine import inference_mode, no_grad
from pellucid.models import Decoder, Network, Output, count, evaluation_copy
from pellucid.trace.aliases import resolve, warn_of_omitted
from pellucid.trace.edit import edits_of
from pellucid.trace.gradients import record_with_gradients
from pellucid.trace.points import VIEW_POINTS, points
from pellucid.trace.reading import Reading, Texts, batch_of, read_texts, warn_if_truncated
from pellucid.trace.trace import Trace


class Recorder:
    """An observer that keeps the requested points and changes nothing.

    patterns: names of points, or globs.  with_graph: keep the tensors with the autograd graph that leads to them.
    recorded: the tensors by name.
    """

    def __init__(self, patterns: Iterable[str], *, with_graph: bool = False) -> None:
        patterns = tuple(patterns)
        self.with_graph = with_graph
        self.names = frozenset(patterns)
        self.globs = tuple(pattern for pattern in patterns if any(sign in pattern for sign in "*?["))
        self.recorded: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if self.wants(name):
            self.recorded[name] = value if self.with_graph else detach_compact(value)
        return value

    def wants(self, name: str) -> bool:
        return name in self.names or any(fnmatch.fnmatchcase(name, glob) for glob in self.globs)


class AllRecorded(Exception):  # noqa: N818 - it is no error
    """Raised to end a pass once every requested point is recorded: the rest of the computation would not be used."""


class EarlyStopRecorder(Recorder):
    """An observer that ends the pass as soon as every requested point is recorded."""

    def __call__(self, name: str, value: Tensor) -> Tensor:
        value = super().__call__(name, value)
        if len(self.recorded) == len(self.names):
            raise AllRecorded
        return value


def detach_compact(value: Tensor) -> Tensor:
    """The tensor detached from the graph, and copied where it is a view into a larger tensor that it would keep alive.

    Blocks never write to a tensor that they have passed to an observer, so nothing else needs a copy.
    """
    value = value.detach()
    is_compact = value.untyped_storage().nbytes() <= value.numel() * value.element_size()
    return value if is_compact else value.clone()


@inference_mode(False)  # whatever the caller has set: gradients need tensors that are not in inference mode
def record(
    loaded: Loaded,
    text: Texts,
    pair: Texts | None = None,
    *,
    target: Texts | None = None,
    after: Texts | None = None,
    keep: str | Iterable[str] = "all",
    max_length: int | None = None,
    padding: str = "right",
    gradients_of: Callable[[Output], Tensor] | None = None,
) -> Trace:
    """Records one pass over a text or over several texts at once. See `Model.trace`."""
    names = kept_names(loaded.config, keep)
    pad_left = _is_left_padded(loaded, padding, after)
    rows = read_texts(loaded, text, pair, target, after, max_length)
    warn_if_truncated(rows, max_length)
    module = evaluation_copy(loaded.module)
    batch = batch_of(loaded, rows, pad_left=pad_left) | _prefilled_cache(loaded, module, rows)
    if gradients_of is not None and not callable(gradients_of):
        raise InputError(
            f"gradients_of is {shorten(repr(gradients_of))}, expected a function of the output, such as "
            "lambda output: output.logits[0, -1, 42]"
        )
    if gradients_of is None:
        stops_early = module.observer is None  # an edit may apply to a later point
        recorder = EarlyStopRecorder(names) if stops_early else Recorder(names)
        with no_grad(), contextlib.suppress(AllRecorded):
            module(**batch, observer=recorder)
        recorded, gradients = recorder.recorded, {}
    else:
        recorded, gradients = record_with_gradients(module, batch, names, gradients_of)
    return Trace(recorded, rows=rows, gradients=gradients, padding=padding, **model_metadata(loaded))


def model_metadata(loaded: Loaded) -> dict[str, Any]:
    """The fields of a trace that describe its model."""
    fallback_name = "an untrained model" if loaded.untrained else "a model trained here"
    return {
        "config": loaded.config,
        "model": loaded.source.name if loaded.source else fallback_name,
        "parameters": count(loaded.module),
        "edits": edits_of(loaded),
    }


def kept_names(config: Config, keep: str | Iterable[str]) -> list[str]:
    """The points of a model to keep, in the order of a pass.

    keep: "all"; "view" for what a page of attention needs; or one or more names or globs, aliases included.
    Raises InputError for a name that matches no point.
    """
    all_points, patterns = points(config), require_names("keep", keep, "'all', 'view', or names of points")
    if is_one_of(keep, "all"):
        return list(all_points)
    if is_one_of(keep, "view"):
        return [name for name in all_points if name.endswith(VIEW_POINTS)]
    matching = {name for pattern in patterns for name in resolve(pattern, config)}
    for pattern in patterns:
        warn_of_omitted(pattern, config, matching)
    if not matching:
        raise InputError("keep is empty: expected 'all', 'view', or names of points")
    return [name for name in all_points if name in matching]


def _is_left_padded(loaded: Loaded, padding: str, after: Texts | None) -> bool:
    check_one_of("padding", padding, ("right", "left"))
    if padding == "left" and (loaded.config.kind != "decoder" or after is not None):
        raise InputError(
            "padding on the left is for decoders that read from the beginning: pass ", Argument("padding", "right")
        )
    return padding == "left"


@no_grad()
def _prefilled_cache(loaded: Loaded, module: Network, rows: tuple[Reading, ...]) -> dict[str, object]:
    """A cache filled with the tokens read earlier, if any, padded on the left so that the next pass continues directly
    after every text."""
    if not rows[0].before_ids or not isinstance(module, Decoder):
        return {}
    capacity = max(len(row.before_ids) for row in rows) + max(len(row.ids) for row in rows)
    cache = module.new_cache(capacity)
    module(**as_batch(loaded, [row.before_ids for row in rows], pad_left=True), cache=cache)
    return {"cache": cache}
