"""Adapters for functions written as TransformerLens hooks, which take a value and a hook."""

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
    """The second argument of a TransformerLens hook, beside the value.

    name: by which the point was requested.  point: our name of it.  ctx: a new dictionary for every call.
    """

    name: str
    point: str
    ctx: dict[Any, Any] = field(default_factory=dict)

    def layer(self) -> int:
        """The index of the layer. Raises InputError for a point outside the layers."""
        if (found := re.search(r"\blayers\.(\d+)\.", self.point)) is None:
            raise InputError(f"{self.name} is in no layer: ask hook.layer() of a point within one")
        return int(found[1])


def hook_adapter(function: Callable[..., Any]) -> Callable[[Tensor, PointContext], Any]:
    """Adapts a function of a value, or of a value and a hook, to a function of a value and its context.

    Raises InputError for a function with other required arguments.
    """
    signatures = [*_signatures(function)]
    if not signatures:  # functions written in C may have no signature
        return lambda value, context: function(value)
    by_name = any(_is_hook(one.parameters.get("hook")) for one in signatures)
    for candidates in (signatures, signatures[:1]):  # a wrapper may itself supply further arguments to what it wraps
        if by_name and all(_binds(one, None, hook=None) for one in candidates):
            return lambda value, context: function(value, hook=Hook(context.requested, context.name))
        if all(_binds(one, None) for one in candidates):
            return lambda value, context: function(value)
        if all(_binds(one, None, None) for one in candidates):
            return lambda value, context: function(value, Hook(context.requested, context.name))
    name = getattr(function, "__name__", type(function).__name__)
    raise InputError(
        f"{name} takes {shorten(str(signatures[0]))}, and is called with the value alone, or with the value and a "
        "hook: bind all else with functools.partial"
    )


def _signatures(function: Callable[..., Any]) -> Iterator[inspect.Signature]:
    """The signature of a function and, if it passes arbitrary arguments on (as `torch.no_grad()` wrappers do), that of
    the function it wraps. Otherwise the wrapper supplies the wrapped function's arguments itself."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        yield signature
        if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in signature.parameters.values()):
            yield inspect.signature(function)
    except (TypeError, ValueError):
        return


def _is_hook(one: inspect.Parameter | None) -> bool:
    """Whether a parameter called `hook` is for TransformerLens's hook: not if it has a default other than None."""
    if one is None or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
        return False
    return one.default is one.empty or one.default is None


def _binds(signature: inspect.Signature, *positional: None, **keywords: None) -> bool:
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True
