"""A plot of a few points, measured in a real browser: marks are where their numbers say, and names do not overlap."""

import pytest

from pellucid.view.plot import Plot, PlotPoint, log_axis, share_axis
from tests.view.conftest import Show

POINTS = tuple(
    PlotPoint(*place, name=f"efSearch {i}", filled=i == 3)
    for i, place in enumerate([(0.03, 0.71), (0.031, 0.78), (0.04, 0.86), (0.05, 0.93), (0.3, 0.978), (0.31, 0.979)])
)
BOXES = """(marks) => marks.map((mark) => {
  const box = mark.getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom];
})"""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "points",
    [
        POINTS,
        (PlotPoint(0.03, 1.0, "every row"),),
        (*POINTS, PlotPoint(40.0, 1.0, "<&>", on_line=False)),
        (PlotPoint(0.01, 0.5, "efSearch 16"), PlotPoint(0.02, 0.6, "efSearch 32"), PlotPoint(0.04, 0.7, "efSearch 64")),
    ],
)
def test_marks_are_drawn_at_their_values(show: Show, points: tuple[PlotPoint, ...], theme: str) -> None:
    plot = Plot("Recall & time", "a < b", "milliseconds", "recall", points)
    page = show(f"<!doctype html><body style='margin:0'>{plot.text(theme)}</body>")
    boxes = page.locator("circle").evaluate_all(BOXES)
    assert len(boxes) == len(points)
    order = [box[0] for box in boxes]
    assert order == sorted(order) and [box[1] for box in boxes] == sorted((box[1] for box in boxes), reverse=True)
    names = page.locator("text").evaluate_all(BOXES)
    paper = page.locator("svg").bounding_box()
    assert paper is not None
    assert all(left >= 0 and top >= 0 and right <= paper["width"] for left, top, right, _ in names)
    assert {plot_point.name for plot_point in points} <= set(page.locator("text").all_text_contents())
    shown = names[-len(points) :]
    for i, one in enumerate(names):
        for other in names[:i] if one in shown else ():
            assert one[0] >= other[2] - 2 or other[0] >= one[2] - 2 or one[1] >= other[3] - 6 or other[1] >= one[3] - 6


@pytest.mark.parametrize("values", [[0.03], [0.02, 0.021], [1e-6, 5.0], [3.0, 900.0]])
def test_logarithmic_axis_has_distinct_ticks(values: list[float]) -> None:
    axis = log_axis(values)
    assert len(axis.ticks) >= 3
    assert all(0 < axis.fraction(value) < 1 for value in values)
    assert axis.fraction(2 * values[0]) - axis.fraction(values[0]) == pytest.approx(axis.fraction(8) - axis.fraction(4))


@pytest.mark.parametrize("values", [[1.0], [0.0, 1.0], [0.95, 0.999], [0.2]])
def test_axis_of_shares_ends_at_one(values: list[float]) -> None:
    axis = share_axis(values)
    assert axis.ticks[-1] == 1.0 and axis.ticks[0] <= min(values)
    assert 3 <= len(axis.ticks) <= 8
    assert all(0 <= axis.fraction(value) < 1 for value in values)
