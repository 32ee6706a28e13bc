"""Functions that were written as hooks of TransformerLens: they take the value, and what they are hooked to."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pellucid.errors import InputError, shorten
from pellucid.trace.selection import PointContext


@dataclass
class Hook:
    """What a hook of TransformerLens is told beside the value.

    name: that by which the point was asked for.  point: ours.  ctx: a dictionary of its own at every call.
    """

    name: str
    point: str
    ctx: dict[Any, Any] = field(default_factory=dict)

    def layer(self) -> int:
        """The number of the layer. InputError where the point stands in none."""
        if (found := re.search(r"\blayers\.(\d+)\.", self.point)) is None:
            raise InputError(f"{self.name} is in no layer: ask hook.layer() of a point within one")
        return int(found[1])


def hook_adapter(function: Callable[..., Any]) -> Callable[[Tensor, PointContext], Any]:
    """A function of a value, or of a value and a hook, as one of a value and where it is told.

    Raises InputError for a function that needs more, or less, than these.
    """
    signatures = [*_signatures(function)]
    if not signatures:  # of what is written in C, nothing may be known
        return lambda value, context: function(value)
    by_name = any(_is_hook(one.parameters.get("hook")) for one in signatures)
    for candidates in (signatures, signatures[:1]):  # what it wraps may have been given the rest by the wrapper
        if by_name and all(_binds(one, None, hook=None) for one in candidates):
            return lambda value, context: function(value, hook=Hook(context.display_name, context.name))
        if all(_binds(one, None) for one in candidates):
            return lambda value, context: function(value)
        if all(_binds(one, None, None) for one in candidates):
            return lambda value, context: function(value, Hook(context.display_name, context.name))
    name = getattr(function, "__name__", type(function).__name__)
    raise InputError(
        f"{name} takes {shorten(str(signatures[0]))}, and is called with the value alone, or with the value and a "
        "hook: bind all else with functools.partial"
    )


def _signatures(function: Callable[..., Any]) -> Iterator[inspect.Signature]:
    """What a function takes and, where it takes anything and hands it on, as `torch.no_grad()` makes them, what the one
    that it wraps takes. Else the wrapped one is not asked: its other arguments are given by the wrapper."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        yield signature
        if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in signature.parameters.values()):
            yield inspect.signature(function)
    except (TypeError, ValueError):
        return


def _is_hook(one: inspect.Parameter | None) -> bool:
    """Whether a parameter called `hook` is for what TransformerLens gives; one with a value of its own is not."""
    if one is None or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
        return False
    return one.default is one.empty or one.default is None


def _binds(signature: inspect.Signature, *positional: None, **keywords: None) -> bool:
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True
