"""Curves of a training: every number is drawn at its position, missing ones are gaps, and long runs stay small."""

import base64
import html
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import pellucid
from pellucid.errors import CorruptFileError, InputError, NotFoundError
from pellucid.view.colours import THEMES
from pellucid.view.compared import compared
from pellucid.view.curves import curves
from pellucid.view.line_charts import downsampled, smoothed, step_axis, value_axis
from pellucid.view.plot import LEFT, WIDTH, tick_label
from pellucid.view.svg import width_of

SVG = "{http://www.w3.org/2000/svg}"
Lines = list[dict[str, Any]]


def training_log(steps: int, evaluated_steps: tuple[int, ...] = (), first_step: int = 1) -> Lines:
    """The log of a training whose loss falls and whose accuracy rises."""
    lines: Lines = []
    for step in range(first_step, steps + 1):
        loss = 2 * math.exp(-3 * step / steps) + (0.1 if step % 2 else -0.1)
        lines.append({"step": step, "loss": loss, "learning_rate": 1e-4 * (1 - step / steps), "epoch": 0})
        if step in evaluated_steps:
            scores = {"loss": loss + 0.2, "accuracy": step / steps}
            lines.append({"step": step, "scores": scores, "best": step == evaluated_steps[-1]})
    return lines


def drawn_svg(lines: Lines, theme: str = "light") -> ElementTree.Element:
    return ElementTree.fromstring(curves(lines).text(theme))


def polylines(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of each polyline."""
    points_of_lines = []
    for line in svg.iter(f"{SVG}polyline"):
        points_of_lines.append([tuple(map(float, point.split(","))) for point in line.attrib["points"].split()])
    return points_of_lines  # type: ignore[return-value]


def text_elements(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_are_drawn_at_their_steps(theme: str) -> None:
    svg = drawn_svg(training_log(10, (5, 10)), theme)
    raw, smoothed_line, validation_line, _accuracy, rates = polylines(svg)
    assert [x for x, _ in raw] == pytest.approx([LEFT + WIDTH * step / 10 for step in range(1, 11)], abs=0.1)
    assert raw == smoothed_line  # too few steps to be smoothed
    assert [x for x, _ in validation_line] == pytest.approx([LEFT + WIDTH * 0.5, LEFT + WIDTH], abs=0.1)
    heights = [y for _, y in rates]
    assert heights == sorted(heights) and heights[0] < heights[-1]  # y grows downwards
    assert {"loss", "held-out score", "learning rate", "training", "held out", "accuracy", "step"} <= set(
        text_elements(svg)
    )
    assert {text.attrib["fill"] for text in svg.iter(f"{SVG}text")} == {
        THEMES[theme][name] for name in ("ink", "quiet")
    }
    assert "10 steps; the best weights are those of step 10" in text_elements(svg)
    rules = [mark for mark in svg.iter(f"{SVG}rect") if mark.attrib["fill"] == THEMES[theme]["quiet"]]
    assert [float(rule.attrib["x"]) + 0.5 for rule in rules] == [LEFT + WIDTH] * 3  # at step 10, in every panel
    dots = [*svg.iter(f"{SVG}circle")]
    assert len(dots) == 4 and not any("fill-opacity" in dot.attrib for dot in dots)  # two evaluations, two lines


def test_heights_follow_the_losses() -> None:
    lines = [{"step": i, "loss": loss} for i, loss in enumerate((1.0, 3.0, 2.0), 1)]
    (first, second, third) = (y for _, y in polylines(drawn_svg(lines))[0])
    assert first - second == pytest.approx(2 * (first - third), abs=0.2)


def test_downsampling_keeps_extremes() -> None:
    lines = training_log(20_000)
    lines[777]["loss"] = 9.0
    points = [(line["step"], line["loss"]) for line in lines]
    few = downsampled(points)
    assert len(few) <= 2 * WIDTH + 2 and (778, 9.0) in few and min(v for _, v in few) == min(v for _, v in points)
    assert [step for step, _ in few] == sorted(step for step, _ in few)
    assert len(curves(lines).text()) < 120_000


def test_loss_that_is_not_finite_is_a_gap() -> None:
    lines = training_log(12)
    for i in (4, 5, 11):
        lines[i]["loss"] = None
    lines[8]["loss"] = math.nan
    svg = drawn_svg(lines)
    raw = polylines(svg)[: len(polylines(svg)) // 2]
    assert [len(polyline) for polyline in raw] == [4, 2, 2]  # steps 1-4, 7-8, 10-11
    assert any("4 without a finite loss" in text for text in text_elements(svg))
    assert "nan" not in curves(lines).text().lower()


def test_repeated_step_is_drawn_once() -> None:
    before = training_log(20)
    after = [line | {"loss": 5.0} for line in training_log(20) if line["step"] > 10]
    found = curves([*before, *after])
    assert [step for step, *_ in found.steps] == list(range(1, 21))
    assert [loss for _, loss, _ in found.steps][10:] == [5.0] * 10


@pytest.mark.parametrize(
    "lines", [training_log(1), training_log(1, (1,)), training_log(3, (3,)), [{"step": 0, "scores": {"accuracy": 0.5}}]]
)
def test_short_logs_are_drawn(lines: Lines) -> None:
    svg = drawn_svg(lines)
    assert polylines(svg) or list(svg.iter(f"{SVG}circle"))


def test_long_title_widens_the_drawing() -> None:
    title = "text-classification of many rows " * 4
    svg = ElementTree.fromstring(curves(training_log(5), title).text())
    assert float(svg.attrib["width"]) > 7 * len(title) and drawn_svg(training_log(5)).attrib["width"] == "760"


def test_invalid_characters_in_titles_and_scores_are_replaced() -> None:
    """Characters that XML or UTF-8 forbids are replaced by visible signs."""
    lines = [*training_log(3), {"step": 3, "scores": {"f1 \x01<é": 0.5, "f1 \ud800": 0.6}}]
    picture = ElementTree.fromstring(curves(lines, "My tagger · \x1b[1m\ud83d").text())
    assert picture.find(f"{SVG}title").text == "My tagger · ␛[1m�"
    assert {"f1 ␁<é", "f1 �"} <= set(text_elements(picture))


def test_scores_of_another_scale_are_omitted() -> None:
    lines = [{"step": i, "scores": {"bleu": 30.0 + i, "exact_match": 0.1, "perplexity": 8.0}} for i in (1, 2)]
    assert {"bleu", "perplexity"} == {"bleu", "perplexity", "exact_match"} & set(text_elements(drawn_svg(lines)))
    mixed = [{"step": i, "scores": {"f1": 0.5, "mse": 40.0, "precision": 0.4}} for i in (1, 2)]
    assert {"f1"} == {"f1", "mse", "precision"} & set(text_elements(drawn_svg(mixed)))


def test_labels_do_not_overlap() -> None:
    scores = {"accuracy": 0.9, "f1": 0.9, "matthews": 0.899, "exact_match": 0.8995}
    svg = drawn_svg([{"step": i, "scores": scores} for i in (1, 2)])
    heights = sorted(float(text.attrib["y"]) for text in svg.iter(f"{SVG}text") if text.text in scores)
    assert len(heights) == 4 and all(later - earlier >= 12.9 for earlier, later in itertools.pairwise(heights))


def test_lines_of_many_trainings_are_distinct() -> None:
    """There are eight hues: lines of the same hue differ by their dashes, and the longest name fits."""
    name = "a-run-with-a-long-name-and-its-seed-42"
    svg = ElementTree.fromstring(
        compared({name: training_log(9), **{f"run {i}": training_log(5) for i in range(11)}}).text()
    )
    strokes = [(polyline.attrib["stroke"], polyline.get("stroke-dasharray")) for polyline in svg.iter(f"{SVG}polyline")]
    assert len(set(strokes)) == len(strokes) == 12
    pieces = [(piece.attrib["stroke"], piece.get("stroke-dasharray")) for piece in svg.iter(f"{SVG}path")]
    assert sorted(pieces, key=str) == sorted(strokes, key=str)
    (found,) = (text for text in svg.iter(f"{SVG}text") if text.text == name)
    assert float(found.attrib["x"]) + width_of(name, 11) < float(svg.attrib["width"])


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_smoothing_is_a_weighted_mean() -> None:
    values = [4.0, 2.0, None, 1.0]
    found = [value for _, value in smoothed(list(enumerate(values)), 2)]
    weights = {0: [1], 1: [1, 2], 3: [1, 2, 4]}
    finite = [4.0, 2.0, 1.0]
    for index, w in weights.items():
        assert found[index] == pytest.approx(sum(a * b for a, b in zip(w, finite)) / sum(w))
    assert found[2] is None


@pytest.mark.parametrize("values", [[0.0], [0.5, 0.6], [-1.0, 1.0], [1e-7, 3e-7], [0.01, 90.0], [7.0, 7.0]])
def test_axis_contains_its_values(values: list[float]) -> None:
    axis = value_axis(values)
    assert all(0 <= axis.fraction(value) <= 1 for value in values)
    assert 2 <= len(axis.ticks) <= 12 and all(-1e-9 <= axis.fraction(tick) <= 1 + 1e-9 for tick in axis.ticks)


def test_tick_labels_are_formatted_consistently() -> None:
    ticks = (0.0, 0.00005, 0.0001, 2.5e-6, 0.3, 1200.0, 1e-12, 1e30)
    assert [tick_label(tick) for tick in ticks] == [
        "0",
        "0.00005",
        "0.0001",
        "0.0000025",
        "0.3",
        "1200",
        "1e-12",
        "1e+30",
    ]


@pytest.mark.parametrize("last", [0, 1, 2, 7, 99, 5000, 123_456])
def test_ticks_of_steps_are_integers(last: int) -> None:
    ticks = step_axis(last).ticks
    assert ticks[0] == 0 and all(tick == round(tick) <= last for tick in ticks) and len(ticks) <= 9


def test_title_is_escaped() -> None:
    root = ElementTree.fromstring(curves(training_log(5, ()), title="a <b>\x00 \x1b").text())
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert root.findtext(f"{SVG}title") == texts[0] == "a <b>\u2400 \u241b"


def test_notebook_output_is_an_image_with_a_description() -> None:
    """Where SVG tags are removed, as by JupyterLab in untrusted notebooks, inline SVG would leave its bare words."""
    drawing = curves(training_log(5, (5,)), title='the "first" <b>')
    cell = re.fullmatch(
        r'<img alt="([^"]*)" style="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">', drawing._repr_html_()
    )
    assert cell and base64.b64decode(cell[2]).decode() == drawing.text()
    assert html.unescape(cell[1]).startswith('the "first" <b>. 5 steps') and "held out" in cell[1]


# -- files -------------------------------------------------------------------------------------------------------------


def test_log_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps(line) + "\n" for line in training_log(5, (5,))) + '{"step": 6, "lo', encoding="utf-8"
    )
    assert curves(path).steps == curves(tmp_path).steps == curves(training_log(5, (5,))).steps
    path_of_svg = pellucid.curves(path).svg(tmp_path / "curves.svg")
    assert ElementTree.parse(str(path_of_svg)).getroot().tag == f"{SVG}svg"
    assert pellucid.curves(path).png(tmp_path / "curves.png", "dark").read_bytes().startswith(b"\x89PNG")


def test_invalid_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no log"):
        curves(tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 1}\nno\n{"step": 2, "loss": 1}\n', encoding="utf-8")
    with pytest.raises(CorruptFileError, match=r"log.jsonl, line 2: not JSON"):
        curves(path)
    path.write_text("[1]\n{}\n", encoding="utf-8")
    with pytest.raises(CorruptFileError, match="line 1: list, expected an object"):
        curves(path)
    with pytest.raises(CorruptFileError, match="line 1 of the log names no step"):
        curves([{"loss": 1.0}])
    with pytest.raises(InputError, match="holds no steps"):
        curves([])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": -5, "loss": 1}', "step is -5, expected a whole number from 0 on"),
        (f'{{"step": 1{"0" * 400}, "loss": 1}}', "step has more digits than a number can have here"),
        (f'{{"step": 1, "loss": -1{"0" * 400}}}', "loss has more digits than a number can have here"),
        ('{"step": 1, "loss": -1e999}', "loss has more digits than a number can have here"),
        ('{"step": 1, "scores": {"f1": 1e999}}', "f1 has more digits than a number can have here"),
        (f'{{"step": 1, "loss": 1, "learning_rate": 1{"0" * 400}}}', "learning_rate has more digits"),
        (f'{{"step": 1, "scores": {{"f1": 1{"0" * 400}}}}}', "f1 has more digits than a number can have here"),
    ],
)
def test_invalid_numbers_are_named_by_file_line_and_field(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1, "loss": 1}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(CorruptFileError, match=rf"log\.jsonl, line 3: {message}"):
        curves(path)
    path.write_text('{"step": 1, "loss": Infinity}\n', encoding="utf-8")  # a loss that was not finite
    assert curves(path).steps == ((1, None, None),)


@pytest.mark.parametrize(
    "values", list(itertools.permutations([1e308, -1e308, 1e149, -1e150, 5e-324, 1e-151, 0.0, 3.0], 3))
)
def test_extreme_numbers_are_drawn_or_omitted(values: tuple[float, ...]) -> None:
    lines = [{"step": i, "loss": value, "learning_rate": value} for i, value in enumerate(values)]
    found = curves([*lines, *({"step": i, "scores": {"f1": value}} for i, value in enumerate(values))])
    assert [loss for _, loss, _ in found.steps] == [
        None if abs(value) > 1e150 else 0.0 if abs(value) < 1e-150 else value for value in values
    ]
    assert "nan" not in (text := found.text()) and "inf" not in text.replace("infinite", "").replace("finite", "")


def test_steps_may_be_very_large() -> None:
    assert "nan" not in curves([{"step": 0, "loss": 2.0}, {"step": 10**308, "loss": 1.0}]).text()
