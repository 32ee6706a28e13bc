"""A scatter plot of a few named points as SVG."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pellucid.view.colours import head_colour, theme_colours
from pellucid.view.svg import MARGIN, document, heading, rectangle, text_element, width_of

LEFT, TOP, WIDTH, HEIGHT = 70.0, 100.0, 580.0, 320.0
"""The position and the size of the picture, in pixels."""

SIZE = 11


@dataclass(frozen=True)
class PlotPoint:
    """One point. name: its label.  filled: whether it is filled.  on_line: whether the line passes through it."""

    x: float
    y: float
    name: str
    filled: bool = False
    on_line: bool = True


@dataclass(frozen=True)
class Axis:
    """Maps values to positions. lowest, highest: the ends.  ticks: values that are labelled.  linear: whether the scale
    is linear; otherwise it is logarithmic."""

    lowest: float
    highest: float
    ticks: tuple[float, ...]
    linear: bool

    def fraction(self, value: float) -> float:
        """The position of a value, from 0 to 1."""
        if self.linear:
            return (value - self.lowest) / (self.highest - self.lowest)
        return math.log(value / self.lowest) / math.log(self.highest / self.lowest)


def tick_label(tick: float) -> str:
    """The label of a tick; small values as 0.00005, so that all labels of an axis have one format."""
    return f"{tick:.9f}".rstrip("0") if 1e-9 <= abs(tick) < 1e-4 else f"{tick:.6g}"


@dataclass(frozen=True)
class Plot:
    """A plot of some points: times horizontally, on a logarithmic scale, and shares vertically.

    title, subtitle: above the picture.  x_label, y_label: the labels of the axes.
    """

    title: str
    subtitle: str
    x_label: str
    y_label: str
    points: tuple[PlotPoint, ...]

    def text(self, theme: str = "light") -> str:
        """The drawing as SVG, in the colours of "light" or "dark"."""
        colours = theme_colours(theme)
        across, upwards = log_axis([point.x for point in self.points]), share_axis([point.y for point in self.points])
        marks = [
            *heading(self.title, self.subtitle, colours),
            *_axis_marks(across, upwards, colours),
            text_element(
                LEFT + WIDTH, TOP + HEIGHT + 42, self.x_label, colours["ink"], font_size=12, text_anchor="end"
            ),
            text_element(MARGIN, TOP - 14, self.y_label, colours["ink"], font_size=12),
        ]
        places = [
            (LEFT + WIDTH * across.fraction(s.x), TOP + HEIGHT * (1 - upwards.fraction(s.y))) for s in self.points
        ]
        marks += _point_marks(self.points, places, colours, head_colour(0, theme))
        description = "; ".join(f"{s.name}: {s.y:.4f} at {s.x:.3g}" for s in self.points)
        return document(LEFT + WIDTH + 110, TOP + HEIGHT + 62, marks, colours["paper"], self.title, description)


def log_axis(values: list[float]) -> Axis:
    """A logarithmic axis over a factor of at least four."""
    room = max(1.25, math.sqrt(4 * min(values) / max(values)))
    lowest, highest = min(values) / room, max(values) * room
    powers = range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)
    for steps in ((1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = tuple(
            step * 10.0**power for power in powers for step in steps if lowest <= step * 10.0**power <= highest
        )
        if len(ticks) > 3:
            break
    return Axis(lowest, highest, ticks, linear=False)


def share_axis(values: list[float]) -> Axis:
    """An axis up to 1 that spans at least a tenth, with room for the lowest share and its name."""
    span = max(1 - min(values), 0.1)
    step = next(size for size in (0.02, 0.05, 0.1, 0.2) if span / size <= 6)
    many = math.ceil(span / step - 1e-9)
    ticks = tuple(round(1 - step * i, 4) for i in range(many, -1, -1))
    return Axis(min(ticks[0], min(values) - 0.06 * span), 1 + 0.06 * span, ticks, linear=True)


def _axis_marks(across: Axis, upwards: Axis, colours: dict[str, str]) -> list[str]:
    """Rules at the ticks, and their labels."""
    marks = [*horizontal_rules(upwards, TOP, HEIGHT, colours)]
    for tick in across.ticks:
        x = LEFT + WIDTH * across.fraction(tick)
        marks.append(rectangle(x - 0.5, TOP, 1, HEIGHT, colours["line"]))
        marks.append(
            text_element(x, TOP + HEIGHT + 16, tick_label(tick), colours["quiet"], font_size=SIZE, text_anchor="middle")
        )
    return marks


def horizontal_rules(upwards: Axis, top: float, height: float, colours: dict[str, str]) -> Iterator[str]:
    """A rule across the picture at each tick of the vertical axis, and its label on the left."""
    for tick in upwards.ticks:
        y = top + height * (1 - upwards.fraction(tick))
        yield rectangle(LEFT, y - 0.5, WIDTH, 1, colours["line"])
        yield text_element(LEFT - 8, y + 4, tick_label(tick), colours["quiet"], font_size=SIZE, text_anchor="end")


def _point_marks(
    points: tuple[PlotPoint, ...], positions: list[tuple[float, float]], colours: dict[str, str], hue: str
) -> list[str]:
    """The line, the points, and their names, placed so that none overlap."""
    path = " ".join(f"{x:.1f},{y:.1f}" for point, (x, y) in zip(points, positions) if point.on_line)
    marks = [f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="1.5"/>'] if " " in path else []
    taken: list[tuple[float, float, float]] = []
    for point, (x, y) in zip(points, positions):
        fill = hue if point.filled else colours["paper"]
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{hue}" stroke-width="1.5"/>')
        below = _free_height(x + 9, y + 16, width_of(point.name, SIZE), taken)
        weight = {"font_weight": "600"} if point.filled else {}
        marks.append(text_element(x + 9, below, point.name, colours["ink"], font_size=SIZE, **weight))
    return marks


def _free_height(x: float, y: float, width: float, taken: list[tuple[float, float, float]]) -> float:
    """The height at which a name overlaps no other; further down if necessary."""
    while any(abs(y - other) < 13 and x < right and left < x + width for left, right, other in taken):
        y += 13
    taken.append((x, x + width, y))
    return y
