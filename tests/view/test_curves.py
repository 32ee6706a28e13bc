"""Curves of a training: every number stands where it should, gaps are gaps, and long runs stay small."""

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
from pellucid.view.lines import downsampled, smoothed, step_axis, value_axis
from pellucid.view.plot import LEFT, WIDTH, tick_label
from pellucid.view.svg import width_of

SVG = "{http://www.w3.org/2000/svg}"
Lines = list[dict[str, Any]]


def log(steps: int, looks: tuple[int, ...] = (), begin: int = 1) -> Lines:
    """The lines of a training whose loss falls and whose accuracy rises."""
    found: Lines = []
    for step in range(begin, steps + 1):
        loss = 2 * math.exp(-3 * step / steps) + (0.1 if step % 2 else -0.1)
        found.append({"step": step, "loss": loss, "learning_rate": 1e-4 * (1 - step / steps), "epoch": 0})
        if step in looks:
            scores = {"loss": loss + 0.2, "accuracy": step / steps}
            found.append({"step": step, "scores": scores, "best": step == looks[-1]})
    return found


def drawn(lines: Lines, theme: str = "light") -> ElementTree.Element:
    return ElementTree.fromstring(curves(lines).text(theme))


def ways(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of every line."""
    found = []
    for line in svg.iter(f"{SVG}polyline"):
        found.append([tuple(map(float, point.split(","))) for point in line.attrib["points"].split()])
    return found  # type: ignore[return-value]


def texts(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_stand_over_their_steps(theme: str) -> None:
    svg = drawn(log(10, (5, 10)), theme)
    raw, heavy, held, _accuracy, rates = ways(svg)
    assert [x for x, _ in raw] == pytest.approx([LEFT + WIDTH * step / 10 for step in range(1, 11)], abs=0.1)
    assert raw == heavy  # so few steps are not smoothed
    assert [x for x, _ in held] == pytest.approx([LEFT + WIDTH * 0.5, LEFT + WIDTH], abs=0.1)
    heights = [y for _, y in rates]
    assert heights == sorted(heights) and heights[0] < heights[-1]  # downwards on paper
    assert {"loss", "held-out score", "learning rate", "training", "held out", "accuracy", "step"} <= set(texts(svg))
    assert {text.attrib["fill"] for text in svg.iter(f"{SVG}text")} == {
        THEMES[theme][name] for name in ("ink", "quiet")
    }
    assert "10 steps; the best numbers are from step 10" in texts(svg)


def test_heights_are_numbers() -> None:
    lines = [{"step": i, "loss": loss} for i, loss in enumerate((1.0, 3.0, 2.0), 1)]
    (first, second, third) = (y for _, y in ways(drawn(lines))[0])
    assert first - second == pytest.approx(2 * (first - third), abs=0.2)


def test_many_points_are_thinned_and_extremes_stay() -> None:
    lines = log(20_000)
    lines[777]["loss"] = 9.0
    points = [(line["step"], line["loss"]) for line in lines]
    few = downsampled(points)
    assert len(few) <= 2 * WIDTH + 2 and (778, 9.0) in few and min(v for _, v in few) == min(v for _, v in points)
    assert [step for step, _ in few] == sorted(step for step, _ in few)
    assert len(curves(lines).text()) < 120_000


def test_a_loss_that_is_none_is_a_gap() -> None:
    lines = log(12)
    for i in (4, 5, 11):
        lines[i]["loss"] = None
    lines[8]["loss"] = math.nan
    svg = drawn(lines)
    raw = ways(svg)[: len(ways(svg)) // 2]
    assert [len(way) for way in raw] == [4, 2, 2]  # steps 1-4, 7-8, 10-11
    assert any("4 without a finite loss" in text for text in texts(svg))
    assert "nan" not in curves(lines).text().lower()


def test_a_step_that_stands_there_twice_counts_once() -> None:
    before = log(20)
    after = [line | {"loss": 5.0} for line in log(20) if line["step"] > 10]
    found = curves([*before, *after])
    assert [step for step, *_ in found.steps] == list(range(1, 21))
    assert [loss for _, loss, _ in found.steps][10:] == [5.0] * 10


@pytest.mark.parametrize("lines", [log(1), log(1, (1,)), log(3, (3,)), [{"step": 0, "scores": {"accuracy": 0.5}}]])
def test_few_numbers_are_drawn_too(lines: Lines) -> None:
    svg = drawn(lines)
    assert ways(svg) or list(svg.iter(f"{SVG}circle"))


def test_a_long_title_has_room() -> None:
    title = "text-classification of many rows " * 4
    svg = ElementTree.fromstring(curves(log(5), title).text())
    assert float(svg.attrib["width"]) > 7 * len(title) and drawn(log(5)).attrib["width"] == "760"


def test_a_title_and_names_of_scores_may_hold_anything() -> None:
    """What XML forbids, and what no file holds, is written by a sign."""
    lines = [*log(3), {"step": 3, "scores": {"f1 \x01<é": 0.5, "f1 \ud800": 0.6}}]
    picture = ElementTree.fromstring(curves(lines, "My tagger · \x1b[1m\ud83d").text())
    assert picture.find(f"{SVG}title").text == "My tagger · ␛[1m�"
    assert {"f1 ␁<é", "f1 �"} <= set(texts(picture))


def test_scores_of_another_size_are_left_out() -> None:
    lines = [{"step": i, "scores": {"bleu": 30.0 + i, "exact_match": 0.1, "perplexity": 8.0}} for i in (1, 2)]
    assert {"bleu", "perplexity"} == {"bleu", "perplexity", "exact_match"} & set(texts(drawn(lines)))
    mixed = [{"step": i, "scores": {"f1": 0.5, "mse": 40.0, "precision": 0.4}} for i in (1, 2)]
    assert {"f1"} == {"f1", "mse", "precision"} & set(texts(drawn(mixed)))


def test_names_stand_on_no_other() -> None:
    scores = {"accuracy": 0.9, "f1": 0.9, "matthews": 0.899, "exact_match": 0.8995}
    svg = drawn([{"step": i, "scores": scores} for i in (1, 2)])
    heights = sorted(float(text.attrib["y"]) for text in svg.iter(f"{SVG}text") if text.text in scores)
    assert len(heights) == 4 and all(later - earlier >= 12.9 for earlier, later in itertools.pairwise(heights))


def test_each_of_many_trainings_is_told_from_the_others() -> None:
    """There are eight hues: lines of the same one differ by their dashes, and a name has room for all of it."""
    name = "a-run-with-a-long-name-and-its-seed-42"
    svg = ElementTree.fromstring(compared({name: log(9), **{f"run {i}": log(5) for i in range(11)}}).text())
    looks = [(way.attrib["stroke"], way.get("stroke-dasharray")) for way in svg.iter(f"{SVG}polyline")]
    assert len(set(looks)) == len(looks) == 12
    pieces = [(piece.attrib["stroke"], piece.get("stroke-dasharray")) for piece in svg.iter(f"{SVG}path")]
    assert sorted(pieces, key=str) == sorted(looks, key=str)
    (found,) = (text for text in svg.iter(f"{SVG}text") if text.text == name)
    assert float(found.attrib["x"]) + width_of(name, 11) < float(svg.attrib["width"])


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_smoothing_is_a_weighed_mean() -> None:
    values = [4.0, 2.0, None, 1.0]
    found = [value for _, value in smoothed(list(enumerate(values)), 2)]
    weights = {0: [1], 1: [1, 2], 3: [1, 2, 4]}
    real = [4.0, 2.0, 1.0]
    for place, w in weights.items():
        assert found[place] == pytest.approx(sum(a * b for a, b in zip(w, real)) / sum(w))
    assert found[2] is None


@pytest.mark.parametrize("values", [[0.0], [0.5, 0.6], [-1.0, 1.0], [1e-7, 3e-7], [0.01, 90.0], [7.0, 7.0]])
def test_an_axis_holds_its_numbers(values: list[float]) -> None:
    axis = value_axis(values)
    assert all(0 <= axis.fraction(value) <= 1 for value in values)
    assert 2 <= len(axis.ticks) <= 12 and all(-1e-9 <= axis.fraction(tick) <= 1 + 1e-9 for tick in axis.ticks)


def test_numbers_of_an_axis_are_written_alike() -> None:
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
def test_steps_are_counted_in_whole_numbers(last: int) -> None:
    ticks = step_axis(last).ticks
    assert ticks[0] == 0 and all(tick == round(tick) <= last for tick in ticks) and len(ticks) <= 9


def test_a_title_stays_text() -> None:
    root = ElementTree.fromstring(curves(log(5, ()), title="a <b>\x00 \x1b").text())
    written = [element.text for element in root.iter(f"{SVG}text")]
    assert root.findtext(f"{SVG}title") == written[0] == "a <b>\u2400 \u241b"


def test_in_a_notebook_it_is_a_picture_that_says_what_it_shows() -> None:
    """Whoever takes SVG's own tags away, as JupyterLab does where a notebook is not trusted, leaves a heap of words."""
    drawing = curves(log(5, (5,)), title='the "first" <b>')
    cell = re.fullmatch(
        r'<img alt="([^"]*)" style="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">', drawing._repr_html_()
    )
    assert cell and base64.b64decode(cell[2]).decode() == drawing.text()
    assert html.unescape(cell[1]).startswith('the "first" <b>. 5 steps') and "held out" in cell[1]


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_log_is_read_from_a_file_or_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in log(5, (5,))) + '{"step": 6, "lo', encoding="utf-8")
    assert curves(path).steps == curves(tmp_path).steps == curves(log(5, (5,))).steps
    written = pellucid.curves(path).svg(tmp_path / "curves.svg")
    assert ElementTree.parse(str(written)).getroot().tag == f"{SVG}svg"
    assert pellucid.curves(path).png(tmp_path / "curves.png", "dark").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_log_is_told(tmp_path: Path) -> None:
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
    ("line", "says"),
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
def test_numbers_that_cannot_be_drawn_are_named_by_file_line_and_field(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1, "loss": 1}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(CorruptFileError, match=rf"log\.jsonl, line 3: {says}"):
        curves(path)
    path.write_text('{"step": 1, "loss": Infinity}\n', encoding="utf-8")  # a loss that was not finite
    assert curves(path).steps == ((1, None, None),)


@pytest.mark.parametrize(
    "values", list(itertools.permutations([1e308, -1e308, 1e149, -1e150, 5e-324, 1e-151, 0.0, 3.0], 3))
)
def test_numbers_at_the_edge_of_all_are_drawn_or_left_out(values: tuple[float, ...]) -> None:
    lines = [{"step": i, "loss": value, "learning_rate": value} for i, value in enumerate(values)]
    found = curves([*lines, *({"step": i, "scores": {"f1": value}} for i, value in enumerate(values))])
    assert [loss for _, loss, _ in found.steps] == [
        None if abs(value) > 1e150 else 0.0 if abs(value) < 1e-150 else value for value in values
    ]
    assert "nan" not in (text := found.text()) and "inf" not in text.replace("infinite", "").replace("finite", "")


def test_a_step_may_be_as_late_as_a_number_is_large() -> None:
    assert "nan" not in curves([{"step": 0, "loss": 2.0}, {"step": 10**308, "loss": 1.0}]).text()
