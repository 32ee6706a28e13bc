"""Line charts over steps as SVG: panels one below another, each with its own vertical axis, over one axis of steps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pellucid.errors import shorten
from pellucid.view.colours import head_colour, head_dash, theme_colours
from pellucid.view.plot import LEFT, SIZE, WIDTH, Axis, horizontal_rules, log_axis
from pellucid.view.svg import MARGIN, document, heading, rectangle, text_element, width_of

HEADROOM, PANEL_GAP = 102.0, 44.0
"""Pixels above the first panel, and between panels."""

RIGHT = 110.0
"""The least room right of the panels for the names of lines, in pixels."""

MAX_NAME_CHARACTERS, LEGEND_WIDTH = 40, 28.0
"""The most characters of a name, and the pixels before it, for a sample of its line."""

LOG_SCALE_RATIO = 20.0
"""The ratio of largest to smallest value above which an axis is logarithmic."""

Points = Sequence[tuple[float, float | None]]
"""(step, value) in the order of steps; None for a missing value, which leaves a gap in the line."""


@dataclass(frozen=True)
class Line:
    """One line. hue: the index of its colour.  faint: is it in the background?  dots: are its points marked?"""

    name: str
    points: Points
    hue: int
    faint: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """Some lines over the same steps. name: what the vertical axis shows.  height: of the panel, in pixels.

    linear: whether the vertical axis is linear, however wide the range of values is.
    """

    name: str
    lines: tuple[Line, ...]
    height: float
    linear: bool = False


def draw_panels(
    title: str, subtitle: str, panels: Sequence[Panel], last: float, theme: str, marked_step: float | None = None
) -> str:
    """The whole drawing. last: the last step.  marked_step: a step marked by a thin vertical line in every panel."""
    colours, across = theme_colours(theme), step_axis(last)
    marks = heading(title, subtitle, colours)
    top = HEADROOM
    for panel in panels:
        marks += _panel_marks(panel, top, across, colours, theme, marked_step)
        top += panel.height + PANEL_GAP
    bottom = top - PANEL_GAP
    for tick in across.ticks:
        x = LEFT + WIDTH * across.fraction(tick)
        marks.append(
            text_element(x, bottom + 16, f"{tick:,.0f}", colours["quiet"], font_size=SIZE, text_anchor="middle")
        )
    marks.append(text_element(LEFT + WIDTH, bottom + 36, "step", colours["ink"], font_size=12, text_anchor="end"))
    descriptions = "; ".join(f"{panel.name}: {_description(panel)}" for panel in panels)
    names = [
        1.05 * width_of(shorten(line.name, MAX_NAME_CHARACTERS), SIZE) + LEGEND_WIDTH
        for panel in panels
        for line in panel.lines
    ]
    width = LEFT + WIDTH + max([RIGHT, *(name + 14 for name in names)])
    width = max(width, *(2 * MARGIN + width_of(text, size) for text, size in ((title, 16), (subtitle, SIZE))))
    return document(width, bottom + 54, marks, colours["paper"], title, f"{subtitle}. {descriptions}")


def step_axis(last: float) -> Axis:
    """An axis from 0 to the last step, with whole numbers as ticks."""
    step = max(round(_tick_step(last or 1, 7)), 1)
    return Axis(0.0, max(last, 1.0), tuple(float(i) for i in range(0, int(last) + 1, step)), linear=True)


def value_axis(values: Sequence[float], *, linear: bool = False) -> Axis:
    """An axis with a little room around all values, with round ticks; logarithmic for a wide range."""
    low, high = min(values), max(values)
    if low > 0 and high / low > LOG_SCALE_RATIO and not linear:
        axis = log_axis(list(values))
        tens = tuple(tick for tick in axis.ticks if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9))
        return replace(axis, ticks=tens) if len(axis.ticks) > 8 and len(tens) > 1 else axis
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    low, high = (low if low == 0 else low - room), high + room
    step = _tick_step(high - low, 5)
    ticks = tuple(i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))
    return Axis(low, high, ticks, linear=True)


def smoothed(points: Points, span: int) -> Points:
    """An exponential moving average over about `span` points, with bias correction, so that the first is itself (Kingma
    and Ba, 2014, section 3: an average that starts at 0 is divided by the weight it has so far)."""
    keep, mean, weight = 1.0 - 1.0 / span, 0.0, 0.0
    found: list[tuple[float, float | None]] = []
    for step, value in points:
        if value is not None:
            mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        found.append((step, None if value is None else mean / weight))
    return found


def downsampled(points: Points) -> Points:
    """For about each pixel, at most the lowest and the highest point; gaps stay gaps."""
    size = math.ceil(len(points) / WIDTH)
    if size < 3:
        return points
    found: list[tuple[float, float | None]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        real = [(value, step) for step, value in part if value is not None]
        ends = {min(real)[::-1], max(real)[::-1]} if real else set()
        gap = next((step for step, value in part if value is None), None)
        found += sorted([*ends, *([(gap, None)] if gap is not None else [])], key=lambda one: one[0])
    return found


def _tick_step(span: float, max_ticks: int) -> float:
    """The smallest step of 1, 2 or 5 times a power of ten of which at most `max_ticks` fit into a span."""
    power = 10.0 ** math.floor(math.log10(span / max_ticks))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= max_ticks + 1e-9)


def _panel_marks(
    panel: Panel, top: float, across: Axis, colours: dict[str, str], theme: str, marked: float | None
) -> Iterator[str]:
    upwards = value_axis(_axis_values(panel), linear=panel.linear)
    height = panel.height
    yield from horizontal_rules(upwards, top, height, colours)
    for tick in across.ticks:
        yield rectangle(LEFT + WIDTH * across.fraction(tick) - 0.5, top, 1, height, colours["line"])
    if marked is not None:
        yield rectangle(LEFT + WIDTH * across.fraction(marked) - 0.5, top, 1, height, colours["quiet"])
    yield text_element(MARGIN, top - 12, panel.name, colours["ink"], font_size=12)
    ends: list[tuple[float, Line]] = []
    for line in panel.lines:
        positions = [_point_position(step, value, top, height, across, upwards) for step, value in line.points]
        yield from _line_marks(line, positions, head_colour(line.hue, theme), _dash(line, panel))
        last = next((position for position in reversed(positions) if position is not None), None)
        if line.name and last is not None:
            ends.append((last[1], line))
    yield from _name_marks(ends, panel, top, theme)


def _dash(line: Line, panel: Panel) -> str:
    """Of several lines in one colour all but the first are dashed, as heads are."""
    return head_dash(line.hue, [other.hue for other in panel.lines])


def _axis_values(panel: Panel) -> list[float]:
    """The values that the axis must cover; of a faint line without the most extreme hundredth at either end."""
    found: list[float] = []
    for line in panel.lines:
        values = sorted(value for _, value in line.points if value is not None)
        cut = len(values) // 100 if line.faint else 0
        found += values[cut : len(values) - cut]
    return found


def _point_position(
    step: float, value: float | None, top: float, height: float, across: Axis, upwards: Axis
) -> tuple[float, float] | None:
    """The position of a point; one outside the axis is at its edge."""
    if value is None:
        return None
    fraction = 0.0 if not upwards.linear and value <= 0 else upwards.fraction(value)
    return LEFT + WIDTH * across.fraction(step), top + height * (1 - min(max(fraction, 0.0), 1.0))


def _line_marks(line: Line, positions: Sequence[tuple[float, float] | None], hue: str, dash: str) -> Iterator[str]:
    """Its segments, and its points where they are marked; a single point between gaps is always marked."""
    style = {"stroke-opacity": "0.3", "stroke-width": "1"} if line.faint else {"stroke-width": "1.8"}
    style |= {"stroke-dasharray": dash} if dash else {}
    attributes = " ".join(f'{name}="{value}"' for name, value in style.items())
    segment: list[tuple[float, float]] = []
    for position in [*positions, None]:
        if position is not None:
            segment.append(position)
            continue
        if len(segment) > 1:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in segment)
            yield f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-linejoin="round" {attributes}/>'
        if line.dots or len(segment) == 1:
            opacity = ' fill-opacity="0.4"' if line.faint else ""
            size = 3.0 if len(positions) <= 60 else 1.5
            yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{hue}"{opacity}/>' for x, y in segment)
        segment = []


def _name_marks(ends: list[tuple[float, Line]], panel: Panel, top: float, theme: str) -> Iterator[str]:
    """The names of lines at their ends, without overlaps, each after a sample of its line, since some hues are too
    light to read; a faint line has none, as its heavy one has it."""
    bottom = top + panel.height
    shown = sorted(((y, line) for y, line in ends if not line.faint), key=lambda one: one[0])
    heights = [min(max(y + 4, top + 8), bottom) for y, _ in shown]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + 13)
    over = max(heights[-1] - bottom, 0.0) if heights else 0.0
    for (_, line), y in zip(shown, heights):
        x, y = LEFT + WIDTH + 8, y - over
        style = f'stroke="{head_colour(line.hue, theme)}" stroke-width="1.8"'
        if dash := _dash(line, panel):
            style += f' stroke-dasharray="{dash}"'
        yield f'<path d="M{x:.1f} {y - 4:.1f}h{LEGEND_WIDTH - 6}" {style}/>'
        yield text_element(
            x + LEGEND_WIDTH, y, shorten(line.name, MAX_NAME_CHARACTERS), theme_colours(theme)["ink"], font_size=SIZE
        )


def _description(panel: Panel) -> str:
    """The ends of each line in words."""
    parts = []
    for line in panel.lines:
        values = [(step, value) for step, value in line.points if value is not None]
        (first, start), (last, end) = values[0], values[-1]
        if not line.faint:
            parts.append(f"{line.name} {start:.4g} at step {first:,.0f}, {end:.4g} at step {last:,.0f}".strip())
    return ", ".join(parts)
