"""A trace to a page: what happened inside, drawn offline in a browser.

The room is callable, so that `pellucid.view(trace)` is the room itself and the one thing that it does.
"""

import sys
import types
from collections.abc import Iterable

from pellucid.trace import Trace
from pellucid.view.view import View as View


def view(trace: Trace, *, layer: int = 0, heads: Iterable[int] | None = None, precision: str = "auto") -> View:
    """A page of what `trace` recorded: attention by heads and as a matrix, with the exact numbers.

    layer, heads: what is shown first; all heads where None.
    precision: "float32", "float16" (half the bytes), or "auto": float32 up to 5 MB, float16 above.

    >>> pellucid.view(model.trace("time flies"), heads=[8]).save("flies.html")      # doctest: +SKIP
    """
    return View(trace, layer=layer, heads=heads, precision=precision)


class _Room(types.ModuleType):
    def __call__(
        self, trace: Trace, *, layer: int = 0, heads: Iterable[int] | None = None, precision: str = "auto"
    ) -> View:
        return view(trace, layer=layer, heads=heads, precision=precision)


sys.modules[__name__].__class__ = _Room
