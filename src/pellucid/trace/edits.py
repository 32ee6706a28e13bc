"""Edits of a point's value: replace it by zero, by a given value, by a mean or by that of another pass; add; scale.

Every edit takes keywords that select the part it applies to:

    head      of `heads`; key and value heads at points that have those (`key`, `value`)
    position  of the tokens that are read, counted from 0 over the text's own tokens; negative from its last token
    source    of the tokens that are attended to, in `scores` and `weights`
    neuron    of the inner width in `feed_forward`, of the residual stream elsewhere
    row       of the texts of a batch

each one index, several, or a slice. A text that is generated grows: position 3 is its fourth token, whichever pass
reads it, and position -1 is the last token of every pass, so each new one. Padding is never a source.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.blocks.hooks import is_differentiated
from pellucid.errors import InputError
from pellucid.trace.fitting import (
    align_tokens,
    as_number,
    as_tensor_or_number,
    check_has_point,
    check_patchable,
    describe,
    expand_like,
    tokens_before,
    traces_by_text,
)
from pellucid.trace.points import Axes
from pellucid.trace.selection import OptionalIndices, PointContext, Selection, clone_unless_trainable, kind
from pellucid.trace.transformer_lens_hooks import hook_adapter

Change = Callable[[Tensor, PointContext], Tensor]
"""(the value, its point and token positions)  ->  a value of the same shape, or one that broadcasts to it"""


@dataclass(frozen=True)
class Edit:
    """One change of the value at a point. Made by `zero`, `fixed`, `add`, `scale`, `patch`, `mean` and `change`.

    description: of the change.  change: its arithmetic.  where: the part that it applies to.
    fits: raises InputError for a point that it cannot change, before anything runs.
    """

    description: str
    change: Change
    where: Selection
    fits: Callable[[str, Axes], None] | None = None

    def check(self, name: str, requested: str, axes: Axes, sizes: dict[str, int]) -> None:
        """Raises InputError for a point that this does not fit.  requested: the name to which `axes` belong."""
        self.where.check(requested, axes, sizes)
        if self.fits is not None:
            self.fits(name, axes)

    def __call__(self, value: Tensor, context: PointContext) -> Tensor:
        """The value to continue with: `value` itself where no number changes and no gradient is recorded."""
        new, mask = self.change(value, context), self.where.mask(value, context)
        new = new if mask is None else torch.where(mask, new, value)
        return new if is_differentiated(new, value) or not torch.equal(new, value) else value

    def at_row(self, row: int) -> Self:
        """The same edit for one text of a batch."""
        return replace(self, where=Selection.from_keywords(self.where.chosen | {"row": row}))

    def __str__(self) -> str:
        inner, places = self.description.partition("(")[2].removesuffix(")"), str(self.where)
        return f"{self.description.partition('(')[0]}({', '.join(part for part in (inner, places) if part)})"

    __repr__ = __str__

    def __copy__(self) -> Self:
        return self  # it is immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError(f"{self} is a function and cannot be pickled: make the edit where it is used")


def zero(**where: OptionalIndices) -> Edit:
    """Replaces the value by zeros. Scores of 0 still receive attention: to prevent it, zero `weights`, or fix scores at
    -inf. What a mask hides, padding and a decoder's later tokens, stays hidden whatever its scores become.

    Rows of edited `weights` are used as they are: they need not sum to 1.
    where: `head`, `position`, `source`, `neuron`, `row`.

    >>> str(zero(head=5))
    'zero(head=5)'
    """
    return Edit("zero()", lambda value, context: torch.zeros_like(value), Selection.from_keywords(where))


def fixed(value: Tensor | float, **where: OptionalIndices) -> Edit:
    """Replaces the value by a given one.

    value: a number, or a tensor of the point's dtype and of a shape that broadcasts to the point's:
        Float[Tensor, "hidden"] fits the residual stream, Float[Tensor, "seq source"] the weights of all heads.  where:
        as for `zero`.
    """
    value = as_tensor_or_number(value, "fixed takes")
    return Edit(
        f"fixed({describe(value)})",
        lambda now, context: expand_like(value, now, context, "the value"),
        Selection.from_keywords(where),
    )


def add(vector: Tensor | float, factor: float = 1.0, **where: OptionalIndices) -> Edit:
    """Adds `factor` times a vector to the value: steering (Turner et al., 2023, arXiv:2308.10248).

    vector: a number, or a tensor of the point's dtype that broadcasts to its shape.  where: as for `zero`.
    """
    vector, factor = as_tensor_or_number(vector, "add takes"), as_number(factor, "the factor of add")
    description = f"add({describe(vector)})" if factor == 1.0 else f"add({describe(vector)}, factor={factor})"
    return Edit(
        description,
        lambda now, context: now + expand_like(vector, now, context, "the vector") * factor,
        Selection.from_keywords(where),
    )


def scale(factor: float, **where: OptionalIndices) -> Edit:
    """Multiplies the value by a number.  where: as for `zero`."""
    factor = as_number(factor, "the factor of scale")
    return Edit(f"scale({factor})", lambda now, context: now * factor, Selection.from_keywords(where))


def change(function: Callable[..., Tensor], **where: OptionalIndices) -> Edit:
    """Replaces the value by the result of a function, a tensor of the same shape and dtype. A plain function in place
    of an edit does the same.  where: the part of the result that is used; as for `zero`.

    function: of the whole value, padding included, on the axes of the name by which the point was requested; a second
        parameter, or one called `hook`, receives what a TransformerLens hook has: its `name`, its `layer()`, a `ctx`.
    """
    if not callable(function):
        raise InputError(f"change takes a function, and was given a {type(function).__name__}")
    name, call = getattr(function, "__name__", type(function).__name__), hook_adapter(function)

    def changed(now: Tensor, context: PointContext) -> Tensor:
        try:
            answer = call(now.clone(), context)  # a copy, so that the function may modify it
        except RecursionError as error:
            raise InputError(
                f"{name} at {context.requested} calls itself without end: compute what it needs of the edited "
                "model before the edit"
            ) from error
        if not isinstance(answer, Tensor):
            raise InputError(
                f"{name} at {context.requested} returned {type(answer).__name__}, expected {context.describe(now)}"
            )
        if (answer := answer.to_dense()).shape != now.shape or context.match_dtype(answer, now).dtype != now.dtype:
            raise InputError(f"{name} at {context.requested} returned {kind(answer)}, expected {context.describe(now)}")
        return context.match_dtype(answer, now).to(
            now.device, copy=True
        )  # a copy: the function may keep its result and modify it later

    return Edit(f"change({name})", changed, Selection.from_keywords(where))


def mean(*traces: Mapping[str, Tensor], **where: OptionalIndices) -> Edit:
    """Replaces the value by the mean of the same point over all tokens of these traces: for a head, its average output
    (mean ablation; Wang et al., 2022, arXiv:2211.00593).  where: as for `zero`."""
    if not traces or not all(isinstance(trace, Mapping) for trace in traces):
        raise InputError("mean needs a trace, or several, to take the mean of")

    def fits(name: str, axes: Axes) -> None:
        if "source" in axes:
            raise InputError(f"{name} has no mean: its sources are other tokens in every text; take attention.heads")
        for trace in traces:
            check_has_point(trace, name)

    def changed(now: Tensor, context: PointContext) -> Tensor:
        tokens = context.axes.index("seq") if "seq" in context.axes else 0
        each = (context.value_in(text) for trace in traces for text in traces_by_text(trace))
        rows = [value.movedim(tokens, 0).flatten(0, min(1, tokens)) for value in each]
        return expand_like(torch.cat(rows).mean(dim=0).unsqueeze(max(tokens - 1, 0)), now, context, "the mean")

    return Edit(f"mean({len(traces)} trace{'s' * (len(traces) > 1)})", changed, Selection.from_keywords(where), fits)


def patch(source_of: Mapping[str, Tensor] | Tensor, **where: OptionalIndices) -> Edit:
    """Takes the value of the same point in another pass (activation patching; Meng et al., 2022, arXiv:2202.05262).

    source_of: a `Trace` that holds the point, of one text or of as many as the batch; or the tensor itself, of the
        point's dtype and axes.  where: as for `zero`.

    Positions correspond as they are selected: position 3 to position 3, -1 to -1; without a selection, or with a slice,
    both texts need equally many tokens. Tokens generated after those of the trace are left unchanged.
    """
    chosen = Selection.from_keywords(where)
    if not isinstance(source_of, Mapping | Tensor):
        raise InputError(f"patch takes a trace or a tensor, and was given a {type(source_of).__name__}")
    source_of = clone_unless_trainable(source_of)
    if len({(len(row.before), len(row.ids), len(row.target_ids)) for row in getattr(source_of, "rows", ())}) > 1:
        raise InputError("patch takes the trace of one text, or of texts of one length: choose one with trace.row(0)")

    def fits(name: str, axes: Axes) -> None:
        if not isinstance(source_of, Tensor):
            check_has_point(source_of, name)

    def changed(now: Tensor, context: PointContext) -> Tensor:
        patched = source_of if isinstance(source_of, Tensor) else context.value_in(source_of)
        check_patchable(patched, now, context)
        patched = context.match_dtype(patched, now).to(now.device)
        mask = torch.ones((), dtype=torch.bool, device=now.device)
        for axis in ("seq", "source"):
            if axis in context.axes:
                first_position = tokens_before(source_of) if axis == "seq" else 0
                patched, is_patched = align_tokens(patched, now, context, axis, chosen, first_position)
                mask = mask & is_patched
        return torch.where(mask, patched, now)

    return Edit(f"patch({describe(source_of)})", changed, chosen, fits)


def as_edit(value: Any) -> Edit:
    """An edit unchanged; a plain function as `change`, a tensor or a number as `fixed`."""
    if isinstance(value, Edit):
        return value
    if isinstance(value, Tensor) or (isinstance(value, Real) and not isinstance(value, bool)):
        return fixed(value if isinstance(value, Tensor) else as_number(value, "the number"))
    for maker in (zero, fixed, add, scale, mean, patch, change):
        if value is maker:
            raise InputError(f"{maker.__name__} is called to make an edit: {maker.__name__}(...)")
    if callable(value):
        return change(value)
    raise InputError(f"an edit is {type(value).__name__}, expected one of pellucid.edits, a function or a tensor")
