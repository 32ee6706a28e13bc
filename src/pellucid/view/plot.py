"""A plot of a few points as SVG: one number to the right, one upwards, and every point with its name."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pellucid.view.colours import head_colour, theme_of
from pellucid.view.svg import EDGE, document, heading, rectangle, width_of, words

LEFT, TOP, WIDTH, HEIGHT = 70.0, 100.0, 580.0, 320.0
"""Where the picture begins, and how large it is, in pixels."""

SIZE = 11


@dataclass(frozen=True)
class Spot:
    """One point. name: what is written beside it.  strong: is it filled?  joined: does the line run through it?"""

    right: float
    up: float
    name: str
    strong: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Axis:
    """From a number to its place. lowest, highest: the ends.  ticks: numbers that are written.  even: are equal steps
    equal differences? Else they are equal ratios."""

    lowest: float
    highest: float
    ticks: tuple[float, ...]
    even: bool

    def share(self, value: float) -> float:
        """Where a value stands, from 0 to 1."""
        if self.even:
            return (value - self.lowest) / (self.highest - self.lowest)
        return math.log(value / self.lowest) / math.log(self.highest / self.lowest)


def spelled(tick: float) -> str:
    """A number beside an axis; small ones as 0.00005, so that all of an axis are written alike."""
    return f"{tick:.9f}".rstrip("0") if 1e-9 <= abs(tick) < 1e-4 else f"{tick:.6g}"


@dataclass(frozen=True)
class Plot:
    """A drawing of some points; to the right times, on a scale of ratios, and upwards shares.

    title, said: above the picture.  right, up: what the axes are.
    """

    title: str
    said: str
    right: str
    up: str
    spots: tuple[Spot, ...]

    def text(self, theme: str = "light") -> str:
        """The drawing as SVG, in the colours of "light" or "dark"."""
        colours = theme_of(theme)
        across, upwards = ratios([spot.right for spot in self.spots]), shares([spot.up for spot in self.spots])
        marks = [
            *heading(self.title, self.said, colours),
            *_frame(across, upwards, colours),
            words(LEFT + WIDTH, TOP + HEIGHT + 42, self.right, colours["ink"], font_size=12, text_anchor="end"),
            words(EDGE, TOP - 14, self.up, colours["ink"], font_size=12),
        ]
        places = [(LEFT + WIDTH * across.share(s.right), TOP + HEIGHT * (1 - upwards.share(s.up))) for s in self.spots]
        marks += _drawn(self.spots, places, colours, head_colour(0, theme))
        told = "; ".join(f"{s.name}: {s.up:.4f} at {s.right:.3g}" for s in self.spots)
        return document(LEFT + WIDTH + 110, TOP + HEIGHT + 62, marks, colours["paper"], self.title, told)


def ratios(values: list[float]) -> Axis:
    """An axis on which equal steps are equal ratios, over a factor of four at least."""
    room = max(1.25, math.sqrt(4 * min(values) / max(values)))
    lowest, highest = min(values) / room, max(values) * room
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = tuple(
            step * 10.0**power for power in powers for step in steps if lowest <= step * 10.0**power <= highest
        )
        if len(ticks) > 3:
            break
    return Axis(lowest, highest, ticks, even=False)


def shares(values: list[float]) -> Axis:
    """An axis up to 1, with room for the lowest share and its name, and for a tenth at least."""
    span = max(1 - min(values), 0.1)
    step = next(size for size in (0.02, 0.05, 0.1, 0.2) if span / size <= 6)
    many = math.ceil(span / step - 1e-9)
    ticks = tuple(round(1 - step * i, 4) for i in range(many, -1, -1))
    return Axis(min(ticks[0], min(values) - 0.06 * span), 1 + 0.06 * span, ticks, even=True)


def _frame(across: Axis, upwards: Axis, colours: dict[str, str]) -> list[str]:
    """Rules at the ticks, and their numbers."""
    marks = [*levels(upwards, TOP, HEIGHT, colours)]
    for tick in across.ticks:
        x = LEFT + WIDTH * across.share(tick)
        marks.append(rectangle(x - 0.5, TOP, 1, HEIGHT, colours["line"]))
        marks.append(words(x, TOP + HEIGHT + 16, spelled(tick), colours["quiet"], font_size=SIZE, text_anchor="middle"))
    return marks


def levels(upwards: Axis, top: float, height: float, colours: dict[str, str]) -> Iterator[str]:
    """A rule across the picture at each tick of its axis upwards, and its number on the left."""
    for tick in upwards.ticks:
        y = top + height * (1 - upwards.share(tick))
        yield rectangle(LEFT, y - 0.5, WIDTH, 1, colours["line"])
        yield words(LEFT - 8, y + 4, spelled(tick), colours["quiet"], font_size=SIZE, text_anchor="end")


def _drawn(spots: tuple[Spot, ...], places: list[tuple[float, float]], colours: dict[str, str], hue: str) -> list[str]:
    """The line, the points, and their names, each where no other name stands."""
    way = " ".join(f"{x:.1f},{y:.1f}" for spot, (x, y) in zip(spots, places) if spot.joined)
    marks = [f'<polyline points="{way}" fill="none" stroke="{hue}" stroke-width="1.5"/>'] if " " in way else []
    taken: list[tuple[float, float, float]] = []
    for spot, (x, y) in zip(spots, places):
        fill = hue if spot.strong else colours["paper"]
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{hue}" stroke-width="1.5"/>')
        below = _free(x + 9, y + 16, width_of(spot.name, SIZE), taken)
        weight = {"font_weight": "600"} if spot.strong else {}
        marks.append(words(x + 9, below, spot.name, colours["ink"], font_size=SIZE, **weight))
    return marks


def _free(x: float, y: float, width: float, taken: list[tuple[float, float, float]]) -> float:
    """The height at which a name stands on no other one; further down, where it must be."""
    while any(abs(y - other) < 13 and x < right and left < x + width for left, right, other in taken):
        y += 13
    taken.append((x, x + width, y))
    return y
