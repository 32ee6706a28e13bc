"""Renders a trace as a page that a browser shows offline.

The module is callable, so that `pellucid.view` is both this room and its main function, `pellucid.view(trace)`.
"""

import inspect
import sys
import types

from pellucid.view.make import view as view
from pellucid.view.view import View as View


class _Room(types.ModuleType):
    __call__ = staticmethod(view)
    __signature__ = inspect.signature(view)  # without it, the first argument would be left out


sys.modules[__name__].__class__ = _Room
