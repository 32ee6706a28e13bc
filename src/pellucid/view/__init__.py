"""Renders a trace as a page that a browser shows offline.

The module is callable, so that `pellucid.view` is both this room and its main function, `pellucid.view(trace)`.
"""

import sys
import types
from typing import Any

from pellucid.view.make import view as view
from pellucid.view.view import View as View


class _Room(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> View:
        return view(*args, **options)


_Room.__call__.__doc__ = view.__doc__
sys.modules[__name__].__class__ = _Room
