"""The user-facing view: a page that is built on first use."""

import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pellucid.errors import InputError, did_you_mean
from pellucid.lazy import cached_property
from pellucid.view.data import PageData
from pellucid.view.notebook import mime_bundle
from pellucid.view.page import render
from pellucid.view.picture import draw, render_png
from pellucid.view.saved import save_file

log = logging.getLogger("pellucid")


class View:
    """A page of one trace, of two, or of given weights. `save` writes it; a notebook displays it."""

    def __init__(self, make: Callable[[], PageData], title: str) -> None:
        """make: builds the data of the page on first use.  title: what the page shows."""
        self._make, self.title = make, title

    @cached_property
    def data(self) -> PageData:
        """The contents of the page: a manifest and blocks of numbers."""
        data = self._make()
        for sentence in data.notes:
            log.warning("%s", sentence)
        return data

    @property
    def notes(self) -> list[str]:
        """What was done to keep the page small, in sentences; empty where nothing was."""
        return self.data.notes

    def html(self) -> str:
        """The whole page as text; it is self-contained and makes no requests."""
        return render(self.data.manifest, self.data.blocks)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page atomically. Raises InputError for a suffix other than .html."""
        return save_file(path, ".html", lambda: self.html().encode("utf-8"))

    def svg(self, path: str | os.PathLike[str], **choice: Any) -> Path:
        """Draws one attention as SVG, without a browser. choice: see `pellucid.view.picture.draw`."""
        return save_file(path, ".svg", lambda: self._draw(choice).encode("utf-8"))

    def png(self, path: str | os.PathLike[str], **choice: Any) -> Path:
        """The same drawing as a PNG."""
        return save_file(path, ".png", lambda: render_png(self._draw(choice)))

    def _draw(self, choice: dict[str, Any]) -> str:
        known = inspect.signature(draw).parameters
        for name in choice:
            if name not in known or name == "data":
                raise InputError(f"a drawing has no argument {name!r}{did_you_mean(name, list(known)[1:])}")
        return draw(self.data, **choice)

    def __repr__(self) -> str:
        return f"View({self.title}); save('page.html') writes the page"

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return mime_bundle(self.data, self.html())
