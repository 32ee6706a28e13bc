"""Builds a view from a trace, from two traces, or from attention weights of any source."""

import functools
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from pellucid.config.checks import check_choice, check_range, require_integer, require_integers
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.generation.observed import TracedStep, TracedText
from pellucid.trace import Trace
from pellucid.view.data import PRECISIONS, build_data, initial_view
from pellucid.view.extras import with_extras
from pellucid.view.given_weights import GivenWeights, subject_of_weights
from pellucid.view.page import scaffold_size
from pellucid.view.recipe import subject_of
from pellucid.view.two_runs import check_comparable, most_different_head
from pellucid.view.view import View


def view(
    trace: Trace | None = None,
    other: Trace | None = None,
    *,
    layer: int | None = None,
    heads: Iterable[int] | None = None,
    include_layers: Iterable[int] | None = None,
    precision: str = "auto",
    tensors: str | Sequence[str] = (),
    lens: Any = None,
    budget_mb: float | None = None,
    show: str | None = None,
    theme: str | None = None,
    **given: Any,
) -> View:
    """A page of what `trace` recorded: attention by head and as a matrix, with the exact numbers.

    trace: of one text; `trace.row(i)` is one of several.  other: a second trace of the same shape, to show differences.
    layer, heads: what is shown first, by the indices in the model; by default the first layer and all heads, or with
        `other` the head that differs most.
    include_layers: only these layers, under their indices in the model.
    precision: "float32", "int16" (half the bytes), "auto" (float32 up to 5 MB, int16 above) or "compact" (weights in
        one byte each, where that is smaller than queries and keys).
    tensors: names or globs of recorded tensors for the tensor view, aliases included (axes are ours), or "auto": what
        fits 2 MB; from `trace` only.
    lens: what the model would predict after each layer, from `model.explain.logit_lens`; with `other` a pair of them.
    budget_mb: the most megabytes of the page: first numbers are stored less exactly, then whole layers are left out;
        `View.notes` lists what was done.
    show: the view that opens first, one of heads, matrix, grid, neuron, lens, tensor and diff; by default diff with
        `other`, else heads; a view without data on this page falls back to the first that has some.
    theme: "light" or "dark"; by default the reader's preference.
    given: in place of a trace, attention weights of any source, tensors or arrays: `attention` (one entry for each
        layer, [1, heads, tokens, tokens]) with `tokens`; or `encoder_attention`, `decoder_attention` and
        `cross_attention` with `encoder_tokens` and `decoder_tokens`; `sentence_b_start`, the first token of a second
        text; `model`, a name for the page.

    Raises InputError for anything that cannot be shown.

    >>> pellucid.view(model.trace("time flies"), heads=[8]).save("flies.html")      # doctest: +SKIP
    """
    _check_names(given)
    layers = None if include_layers is None else require_integers("include_layers", include_layers, "numbers of layers")
    if trace is None:
        subject = subject_of_weights(GivenWeights(**given), layers)
        if other is not None:
            raise InputError(
                "weights of attention were given together with 'other': a page of two runs needs two traces"
            )
        second = others = None
    else:
        if given:
            raise InputError(f"a trace was given together with {next(iter(given))!r}: a page shows one or the other")
        subject = subject_of(_require_trace(trace), layers)
        lens, others = lens if isinstance(lens, tuple | list) and len(lens) == 2 else (lens, None)
        if others is not None and other is None:
            raise InputError("lens is a pair, but there is one trace: pass the other trace too, or one lens")
        second = None if other is None else subject_of(_require_trace(other), layers)
    shown = None if heads is None else require_integers("heads", heads, "the numbers of heads")
    first, name = None if layer is None else require_integer("layer", layer, "the number of a layer"), None
    if second is not None:
        check_comparable(subject, second)
        found = most_different_head(subject, second, first, shown)
        if found is not None:
            first, name, shown = found[0].layer, found[0].name, [found[1]] if shown is None else shown
    first = subject.attentions[0].layer if first is None else first
    show = show if show is not None else "heads" if second is None else "diff"
    opens = initial_view(subject, show, first, shown, theme, name)
    check_choice("precision", precision, PRECISIONS)
    max_bytes = None if budget_mb is None else _data_budget(budget_mb)
    second = None if second is None else with_extras(second, other, (), others)
    subject = with_extras(subject, trace, tensors, lens)
    make = functools.partial(build_data, subject, second, opens, precision, max_bytes)
    return View(make, repr(shorten(subject.label)))


def _require_trace(trace: Any) -> Trace:
    if isinstance(trace, TracedText | TracedStep):
        raise InputError(
            f"a page shows one trace of a whole text, not {type(trace).__name__}: view(model.trace(prompt + text))"
        )
    if not isinstance(trace, Trace):
        raise InputError(
            f"a page shows a trace, not {type(trace).__name__}: pass weights of attention by name, "
            "view(attention=..., tokens=...)"
        )
    return trace


def _check_names(arguments: dict[str, Any]) -> None:
    """Raises InputError for a name that `GivenWeights` does not have."""
    for name in arguments:
        if name not in GivenWeights.__dataclass_fields__:
            known = [*inspect.signature(view).parameters, *GivenWeights.__dataclass_fields__]
            raise InputError(f"view has no argument {name!r}{did_you_mean(name, known)}")


def _data_budget(budget_mb: float) -> int:
    check_range("budget_mb", budget_mb, above=0)
    left = int(budget_mb * 1e6) - scaffold_size()
    if left <= 0:
        raise InputError(
            f"budget_mb is {budget_mb}: the page itself, without any numbers, takes {scaffold_size() / 1e6:.2f}"
        )
    return left
