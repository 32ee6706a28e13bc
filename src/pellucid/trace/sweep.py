"""One edit made at each layer and head, or at each layer and position, with a measurement of each."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor

from pellucid.bars import progress_bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice, require_list
from pellucid.errors import Argument, InputError, did_you_mean, format_count, shorten
from pellucid.machine import no_grad
from pellucid.models import Output, evaluation_copy
from pellucid.trace.edit import PlacedEdit, with_edits
from pellucid.trace.edits import Edit, as_edit, patch, zero
from pellucid.trace.points import points, sides_of
from pellucid.trace.reading import Reading, batch_of, read_texts, warn_if_truncated

Metric = Callable[[Output], Any] | tuple[str, str]
"""A function from one text's `Output` to a number, or two words whose logits are compared as the next token."""

ROWS, POSITIONS = 32, 1_024
"""The most texts of one batch, each with an edit of its own, and the most tokens of them together."""

SWEEP_AXES = {"layers x heads": ("head", "attention.heads"), "layers x positions": ("position", "residual.pre")}
"""What is swept over: the keyword of the edit, and the point that is edited by default."""


@no_grad()
def sweep(
    loaded: Loaded,
    text: str,
    metric: Metric,
    edit: Callable[..., Any] | None = None,
    over: str = "layers x heads",
    *,
    point: str | None = None,
    source: Mapping[str, Tensor] | None = None,
    target: str | None = None,
    pair: str | None = None,
    progress: bool | None = None,
) -> Tensor:
    """One edit at every layer and head or position. See `Model.sweep`.

    Several edits run in one pass, each on its own row of a batch.
    """
    check_choice("over", over, tuple(SWEEP_AXES))
    keyword, default_point = SWEEP_AXES[over]
    if edit is not None and not callable(edit):
        raise InputError(f"edit is {shorten(repr(edit))}, expected a function that makes an edit, such as zero")
    if edit is not None and source is not None:
        raise InputError(
            "an edit and a source were given, and only patching takes a source: leave ", Argument("edit"), " out"
        )
    if point is not None and not isinstance(point, str):
        raise InputError(f"point is {shorten(repr(point))}, expected the name of a point within its layer")
    if point is None and loaded.config.kind == "encoder-decoder":
        advice = f"pass point='decoder.{default_point}', or the same of its encoder"
        raise InputError(f"this model has two stacks of layers: {advice}")
    measure = metric if callable(metric) else _logit_difference(loaded, metric)
    make = edit or (zero if source is None else lambda **where: patch(source, **where))
    if not isinstance(text, str):
        raise InputError(f"a sweep is of one text, and was given a {type(text).__name__}")
    loaded.module.require_no_row_edits()
    (row,) = read_texts(loaded, text, pair, target, None, None)
    warn_if_truncated([row], None)
    names = _point_in_layers(loaded, point or default_point)
    edits = [_make_edit(make, keyword, i) for i in range(_column_count(loaded, names[0], keyword, row))]
    variants = [(name, one) for name in names for one in edits]
    size = max(1, min(ROWS, POSITIONS // (len(row.ids) + len(row.target_ids))))
    with progress_bar(over, total=len(variants), unit=" edits", shown=progress) as line:
        found: list[float] = []
        for start in range(0, len(variants), size):
            found += _metric_values(loaded, row, variants[start : start + size], measure)
            line.update(min(size, len(variants) - start))
    wide = torch.promote_types(loaded.module.dtype, torch.float32)
    return torch.tensor(found, dtype=wide, device="cpu").view(len(names), -1)


def _metric_values(
    loaded: Loaded, row: Reading, variants: list[tuple[str, Edit]], measure: Callable[[Output], Any]
) -> Iterator[float]:
    """The metric under each edit, from one pass over as many copies of the text."""
    edits = [PlacedEdit(name, edit.at_row(i), {name: name}) for i, (name, edit) in enumerate(variants)]
    for placed in edits:
        placed.check_fits(loaded.config)
    module = with_edits(loaded, edits).module
    output = evaluation_copy(module)(**batch_of(loaded, [row] * len(variants)))
    for placed in edits:
        placed.check_fired()
    for i in range(len(variants)):
        yield _number(measure(Output({name: tensor[i : i + 1] for name, tensor in output.items()})))


def _make_edit(make: Callable[..., Any], keyword: str, i: int) -> Edit:
    try:
        return as_edit(make(**{keyword: i}))
    except TypeError as error:
        raise InputError(f"edit could not be called as edit({keyword}={i}): {error}") from error


def _point_in_layers(loaded: Loaded, point: str) -> list[str]:
    """The names of a point in all layers, from first to last."""
    side, _, rest = point.rpartition("layers.*.")
    if not side and point.startswith(("encoder.", "decoder.")):
        side, _, rest = point.partition(".")
        side += "."
    fits = re.compile(re.escape(side) + r"layers\.\d+\." + re.escape(rest))
    names = [name for name in points(loaded.config) if fits.fullmatch(name)]
    if not names:
        layer_points = dict.fromkeys(
            re.sub(r"layers\.\d+\.", "", name) for name in points(loaded.config) if "layers." in name
        )
        raise InputError(
            f"no layer has a point {shorten(repr(point))}{did_you_mean(point, layer_points)}; such points are "
            f"{', '.join(layer_points)}"
        )
    return names


def _column_count(loaded: Loaded, name: str, keyword: str, row: Reading) -> int:
    """The number of heads or positions at a point."""
    all_points = points(loaded.config)
    if keyword == "head":
        sizes = all_points.sizes(name)
        zero(head=0).where.check(name, all_points[name], sizes)
        return sizes.get("heads") or sizes["key_heads"]
    zero(position=0).where.check(name, all_points[name], {})
    return len(row.target_ids if sides_of(name)[0] == "decoder" else row.ids)


def _logit_difference(loaded: Loaded, words: tuple[str, str]) -> Callable[[Output], Tensor]:
    """A metric: the logit of the first word minus that of the second, at the last position."""
    if not loaded.config.writes:
        raise InputError("two words are compared after a text, and this model does not write: give a function")
    if isinstance(words, Set):
        raise InputError("the words of a metric are a set, which has no order: give the right one and then the other")
    words = tuple(require_list("metric", words, "a function or two words"))
    if len(words) != 2:
        raise InputError(
            f"a metric is {format_count(len(words), 'word')}, expected a function or two words, the right one and "
            "another"
        )
    rows = [row.ids for row in loaded.required_target_tokenizer.encode(list(words), add_special_tokens=False)]
    if rows[0] == rows[1]:
        shown = " and ".join(shorten(repr(word)) for word in words)
        raise InputError(f"{shown} are the same to this model: their difference is 0 everywhere")
    for word, ids in zip(words, rows):
        if len(ids) != 1:
            raise InputError(
                f"{shorten(repr(word))} is {len(ids)} tokens, expected one: mind the space before it, "
                "or give a function"
            )
    return lambda output: output["logits"][0, -1, rows[0][0]] - output["logits"][0, -1, rows[1][0]]


def _number(measured: Any) -> float:
    if isinstance(measured, Tensor) and measured.numel() != 1:
        raise InputError(f"the metric returned a tensor of shape {list(measured.shape)}, expected one number")
    try:
        return float(measured)
    except (TypeError, ValueError) as error:
        raise InputError(f"the metric returned {type(measured).__name__}, expected one number") from error
