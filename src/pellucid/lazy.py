"""Values and modules that are computed or imported once, on first use."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801 - as the library's own, whose place it takes
    """Without Python 3.11's lock for all objects of a class: if a fork copies it while another thread holds it, the
    child never releases it. Two threads may compute the same value, as in later versions."""

    def __init__(self, func: Any) -> None:
        super().__init__(func)
        self.lock = contextlib.nullcontext()


def lazy_attributes(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are imported on first use, and its modules, too.

    modules: the module of each name, within the package.
    """

    def get_attribute(name: str) -> object:
        home = f"{package}.{modules.get(name, name)}"
        is_private = name.startswith("_") or "." in name
        if name not in modules and (is_private or importlib.util.find_spec(home) is None):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_without_gc(home) if name not in modules else getattr(import_without_gc(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return get_attribute, lambda: sorted(modules)


def import_without_gc(module: str) -> ModuleType:
    """Imports a module of ours with the garbage collector paused: it would walk once over all objects that torch has
    created, which takes more than half as long as our modules themselves."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
