"""Functions that were written as hooks of TransformerLens: they take the value, and what they are hooked to."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pellucid.errors import InputError, short


@dataclass
class Hook:
    """What a hook of TransformerLens is told beside the value.

    name: that by which the point was asked for.  ctx: a dictionary of its own at every call.
    """

    name: str
    ctx: dict[Any, Any] = field(default_factory=dict)

    def layer(self) -> int:
        """The number of the layer. InputError where the point stands in none."""
        if (found := re.search(r"\.(\d+)\.", f".{self.name}")) is None:
            raise InputError(f"{self.name} is in no layer: ask hook.layer() of a point within one")
        return int(found[1])


def caller(function: Callable[..., Any]) -> Callable[[Tensor, str], Any]:
    """A function of a value, or of a value and a hook, as one of a value and the name of its point.

    Raises InputError for a function that needs more, or less, than these.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of what is written in C, nothing may be known
        return lambda value, name: function(value)
    hook = signature.parameters.get("hook")
    if hook is not None and hook.default in (hook.empty, None) and _binds(signature, None, hook=None):
        return lambda value, name: function(value, hook=Hook(name))
    if _binds(signature, None):
        return lambda value, name: function(value)
    if _binds(signature, None, None):
        return lambda value, name: function(value, Hook(name))
    name = getattr(function, "__name__", type(function).__name__)
    raise InputError(
        f"{name} takes {short(str(signature))}, and is called with the value alone, or with the value and a hook: "
        "bind all else with functools.partial"
    )


def _binds(signature: inspect.Signature, *given: None, **named: None) -> bool:
    try:
        signature.bind(*given, **named)
    except TypeError:
        return False
    return True
