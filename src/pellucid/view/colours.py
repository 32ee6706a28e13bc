"""The page's colours in Python; ramps and hues are read from colour.js, so that drawing and page always agree."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.config.checks import check_one_of

_FILE = Path(__file__).with_name("web") / "colour.js"
THEMES = {
    "light": {"paper": "#fdfcf9", "ink": "#1d2025", "quiet": "#656a73", "line": "#e4e1d8"},
    "dark": {"paper": "#15181d", "ink": "#e8e6e0", "quiet": "#989da7", "line": "#2b3038"},
}
"""Paper, ink, small print and rules, as in page.css; a test compares them."""


def theme_colours(name: str) -> dict[str, str]:
    """The plain colours of "light" or "dark"."""
    check_one_of("theme", name, tuple(THEMES))
    return THEMES[name]


@functools.cache
def _constant_of_script(name: str) -> Any:
    """A constant of colour.js: lists and names of colours, as plain values."""
    found = re.search(rf"^const {name} = (.*?);$", _FILE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{_FILE.name} has no table {name}")
    named = re.sub(r"(\w+):", r'"\1":', found[1])
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", named))


@functools.cache
def ramp(theme: str) -> np.ndarray:
    """UInt8[ndarray, "256 3"]: red, green and blue from weight 0 to the largest."""
    return _blend(_constant_of_script("RAMPS")[theme])


@functools.cache
def signed_ramp(theme: str) -> np.ndarray:
    """UInt8[ndarray, "256 3"]: red, green and blue from the most negative value through 0 to the most positive."""
    return _blend(_constant_of_script("SIGNED")[theme])


def _blend(colours: list[str]) -> np.ndarray:
    """Interpolates some colours in 256 even steps."""
    stops = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours])
    positions = np.arange(256) / 255 * (len(stops) - 1)
    mixed = np.stack([np.interp(positions, np.arange(len(stops)), stops[:, part]) for part in range(3)], axis=1)
    return np.rint(mixed).astype(np.uint8)  # a browser's clamped array rounds in the same way


def ramp_steps(weights: np.ndarray, largest: float, scale: str = "sqrt") -> np.ndarray:
    """The indices of weights on the ramp: Int[ndarray, "..."] from 0 to 255; "sqrt" makes small weights visible."""
    fraction = np.clip(weights / largest, 0, 1) if largest > 0 else np.zeros_like(weights)
    return np.floor(255 * (np.sqrt(fraction) if scale == "sqrt" else fraction) + 0.5).astype(int)


def head_colour(head: int, theme: str) -> str:
    """One of eight hues that colour-blind readers can distinguish."""
    return _constant_of_script("HUES")[theme][head % 8]


def mean_colour(theme: str) -> str:
    """The colour of the mean over many heads."""
    return _constant_of_script("MEAN")[theme]


def head_dash(head: int, shown: list[int]) -> str:
    """The dash pattern of a head's line: none, unless another head with the same hue is shown."""
    alone = not any(other != head and other % 8 == head % 8 for other in shown)
    dashes = _constant_of_script("DASHES")
    return "" if alone else " ".join(map(str, dashes[head // 8 % len(dashes)]))
