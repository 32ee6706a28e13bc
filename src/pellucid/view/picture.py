"""Drawings of a page, without a browser: SVG for papers, PNG for everything else.

There is one drawing. The PNG is that SVG rendered by resvg, a separate library that the extra `draw` installs.
"""

import base64
import html
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pellucid.config import checks
from pellucid.errors import InputError, ResourceError, did_you_mean, shorten
from pellucid.view.choice import choose_attention
from pellucid.view.colours import theme_colours
from pellucid.view.data import PageData
from pellucid.view.heads_drawing import draw_heads
from pellucid.view.matrix_drawing import draw_matrix
from pellucid.view.saved import save_file
from pellucid.view.svg import FONT

DRAWABLE_VIEWS = ("heads", "matrix")
PNG_SCALE = 2.0
"""Pixels of a PNG for each unit of the drawing."""


def draw(
    data: PageData,
    *,
    view: str | None = None,
    layer: int | None = None,
    heads: int | Iterable[int] | None = None,
    token: int | None = None,
    side: str | None = None,
    theme: str = "light",
    threshold: float | None = None,
    scale: str = "sqrt",
) -> str:
    """One attention as SVG.

    view: "heads" (lines between tokens) or "matrix" (cells); by default what the page shows first, else "heads".
    layer, heads: by their indices in the model; by default what the page shows first.
    token: only the links of this query, by its index in the text.
    side: of an encoder-decoder, "encoder", "decoder" or "cross".
    threshold: smaller weights are not drawn as lines; by default 0.02, less for over 100 keys, as on the page.
    scale: "sqrt" or "linear", the colour scale of the matrix.

    What is too large for a drawing is cut or pooled, which the drawing notes. Raises InputError for what does not
    exist.
    """
    first = data.manifest["show"]["view"]
    view = (first if first in DRAWABLE_VIEWS else "heads") if view is None else view
    if not checks.is_one_of(view, *DRAWABLE_VIEWS):
        known = f"{' or '.join(map(repr, DRAWABLE_VIEWS))}{did_you_mean(view, DRAWABLE_VIEWS)}"
        raise InputError(f"view is {shorten(repr(view))}, expected {known}; the page draws the others")
    checks.check_one_of("scale", scale, ("sqrt", "linear"))
    if threshold is not None:
        checks.check_range("threshold", threshold, minimum=0, maximum=1)
    theme_colours(theme)
    choice = choose_attention(data, layer, heads, token, side)
    if view == "matrix":
        return draw_matrix(choice, theme, scale)
    return draw_heads(choice, theme, _default_threshold(len(choice.keys)) if threshold is None else threshold)


def _default_threshold(keys: int) -> float:
    """As on the page (`web/state.js`): the largest step that is at most twice the uniform weight of so many keys."""
    return max((step for step in (0.001, 0.002, 0.005, 0.01, 0.02) if step <= 2 / keys), default=0.001)


def can_render() -> bool:
    """Whether the library that renders PNGs is installed."""
    return find_spec("resvg_py") is not None


def check_renderer() -> None:
    """Raises ResourceError where the library that renders PNGs is not installed."""
    if not can_render():
        raise ResourceError("a PNG needs the library resvg-py: pip install 'pellucid[draw]'; an SVG needs nothing")


def render_png(svg: str) -> bytes:
    """An SVG drawing as the bytes of a PNG. Raises ResourceError where the library is missing, or no font is found."""
    check_renderer()
    import resvg_py

    _check_fonts()
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=PNG_SCALE))


class Drawing(ABC):
    """A single drawing: as text, in a file, or in a notebook. theme: "light" or "dark"."""

    @abstractmethod
    def text(self, theme: str = "light") -> str:
        """The drawing as SVG."""

    def svg(self, path: str | os.PathLike[str], theme: str = "light") -> Path:
        """Writes the drawing."""
        return save_file(path, ".svg", lambda: self.text(theme).encode("utf-8"))

    def png(self, path: str | os.PathLike[str], theme: str = "light") -> Path:
        """Writes the drawing as a PNG; requires the extra `draw`."""
        return save_file(path, ".png", lambda: render_png(self.text(theme)))

    def _repr_html_(self) -> str:
        drawing = self.text()
        alt_text = html.unescape(". ".join(re.findall("<(?:title|desc)>(.*?)</", drawing)))
        return image_tag("svg+xml", base64.b64encode(drawing.encode("utf-8")).decode("ascii"), alt_text)


def image_tag(kind: str, encoded: str, alt_text: str, drawing: str = "") -> str:
    """A picture as an HTML image. Unlike inline SVG, of which only the text would remain, it survives sanitizers such
    as those of notebooks that are not trusted.

    kind: of `image/`.  encoded: its bytes as base64.  alt_text: the text for screen readers.
    drawing: the SVG that was rendered, whose width the image takes.
    """
    wide = re.match('<svg [^>]*?(width="[0-9.]+")', drawing)
    size = f"{wide[1]} " if wide else ""
    return f'<img alt="{html.escape(alt_text)}" {size}style="max-width:100%" src="data:image/{kind};base64,{encoded}">'


@cache
def _check_fonts() -> None:
    """Raises ResourceError where the machine has no font: the renderer would leave all text out without an error."""
    import resvg_py

    empty = '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">{}</svg>'
    letter = empty.format(f'<text x="2" y="16" font-family={quoteattr(FONT)} font-size="16">x</text>')
    if resvg_py.svg_to_bytes(svg_string=letter) == resvg_py.svg_to_bytes(svg_string=empty.format("")):
        raise ResourceError("a PNG needs a font, and this machine has none: install one such as DejaVu, or draw an SVG")
