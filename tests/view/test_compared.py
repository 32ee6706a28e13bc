"""Several trainings in one drawing."""

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pellucid.errors import InputError
from pellucid.view.compared import compared


def training_log(slope: float, steps: int = 30) -> list[dict[str, float]]:
    return [{"step": i, "loss": 3.0 * math.exp(-slope * i), "learning_rate": 1e-3} for i in range(1, steps + 1)]


def test_each_training_is_a_named_line(tmp_path: Path) -> None:
    drawing = compared({"pre-norm": training_log(0.1), "post-norm": training_log(0.0, 20)}, "Where norms stand")
    text = drawing.text()
    root = ElementTree.fromstring(text)
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 2
    assert len({line.get("stroke") for line in lines}) == 2
    for label in ("pre-norm", "post-norm", "Where norms stand", "at most 30 steps"):
        assert label in text
    first, second = ([float(pair.split(",")[1]) for pair in str(line.get("points")).split()] for line in lines)
    assert first[-1] > first[0]  # y grows downwards: the loss falls
    assert second[-1] == second[0]
    assert drawing.svg(tmp_path / "a.svg") == tmp_path / "a.svg"
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == text
    assert drawing.text("dark") != text
    assert drawing.png(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_training_that_diverged_is_reported() -> None:
    diverged = [*training_log(0.1, 20), *({"step": i, "loss": math.nan} for i in range(21, 31))]
    text = compared({"one": training_log(0.1), "two": diverged}).text()
    assert text.count("2 training runs, at most 30 steps; two: 10 without a finite loss") == 2  # drawn, and read aloud


def test_empty_comparison_is_refused() -> None:
    with pytest.raises(InputError, match="no training log was given"):
        compared({})
    with pytest.raises(InputError, match="the log of 'post-norm' holds no loss"):
        compared({"pre-norm": training_log(0.1), "post-norm": [{"step": 1, "loss": None}]})
