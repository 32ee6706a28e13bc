"""The curves of a training over its steps, drawn from its log: the loss of each step and of the held-out examples,
their scores, and the learning rate."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pellucid.config.checks import require_list
from pellucid.errors import CorruptFileError, InputError, NotFoundError, format_count, shorten
from pellucid.files import file_errors, json_error_text
from pellucid.paths import path_of
from pellucid.view.line_charts import Line, Panel, downsampled, draw_panels, smoothed
from pellucid.view.picture import Drawing

Log = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A `log.jsonl`, the folder that holds one, or its lines as dicts."""

SMOOTHING_PARTS = 40
"""The smoothed line of the loss averages over about this fraction of all steps, one in so many."""

COMPONENT_SCORES = ("precision", "recall", "f1_second")
"""Scores that are drawn only if there are no others, of which these are components."""

MAX_SHARE = 1.5
"""Scores up to this are shares, and are not drawn on the same axis as larger ones."""

MAX_DRAWN = 1e150
"""Larger numbers are left out, like infinite ones, and those below its inverse count as 0, so that no difference or
ratio of two numbers overflows."""


@dataclass(frozen=True)
class Curves(Drawing):
    """The curves of a training.

    steps: (step, loss, learning rate) of each, in order; a loss that was not finite, or beyond `MAX_DRAWN`, is None.
    evaluations: (step, scores by name) of each, on the held-out examples.  best: the step of the best one.
    """

    steps: tuple[tuple[int, float | None, float | None], ...]
    evaluations: tuple[tuple[int, Mapping[str, float]], ...] = ()
    best: int | None = None
    title: str = "Training curves"

    def text(self, theme: str = "light") -> str:
        """The panels, one below another, over the same steps, as SVG."""
        last = max([step for step, *_ in self.steps] + [step for step, _ in self.evaluations], default=0)
        panels = [self._loss_panel(), self._score_panel(), self._rate_panel()]
        subtitle = format_count(last, "step")
        missing = sum(1 for _, loss, _ in self.steps if loss is None)
        subtitle += f", {missing:,} without a finite loss" if missing else ""
        subtitle += f"; the best weights are those of step {self.best:,}" if self.best is not None else ""
        return draw_panels(
            self.title, subtitle, [panel for panel in panels if panel is not None], last, theme, self.best
        )

    def _loss_panel(self) -> Panel | None:
        raw = [(step, loss) for step, loss, _ in self.steps]
        held_out = [(step, scores.get("loss")) for step, scores in self.evaluations]
        lines = [
            Line("each step", downsampled(raw), 0, faint=True),
            Line("training", downsampled(smoothed(raw, max(len(raw) // SMOOTHING_PARTS, 1))), 0),
            Line("held out", held_out, 1, dots=True),
        ]
        return _panel("loss (faint: each step)" if len(raw) > 2 * SMOOTHING_PARTS else "loss", lines, 210)

    def _score_panel(self) -> Panel | None:
        names = dict.fromkeys(name for _, scores in self.evaluations for name in scores if name != "loss")
        by_name = {name: [(step, scores.get(name)) for step, scores in self.evaluations] for name in names}
        shown = {name: points for name, points in by_name.items() if name not in COMPONENT_SCORES} or by_name
        large = {name: any(abs(value or 0.0) > MAX_SHARE for _, value in points) for name, points in shown.items()}
        chosen = [name for name in shown if large[name] == next(iter(large.values()))][:4]
        lines = [Line(name, shown[name], 1 + i, dots=True) for i, name in enumerate(chosen)]
        return _panel("held-out score", lines, 150)

    def _rate_panel(self) -> Panel | None:
        rates = downsampled([(step, rate) for step, _, rate in self.steps])
        return _panel("learning rate", [Line("", rates, 4)], 80, linear=True)


def curves(log: Log, title: str = "Training curves") -> Curves:
    """The curves of a training from its log: a `log.jsonl`, the folder that holds one, or its lines as dicts.

    Of a step that occurs twice, because a training was interrupted after its last checkpoint and resumed from there,
    the last entry counts. Raises NotFoundError, CorruptFileError for an invalid line or a number too large for a float
    (the last line of a file may be truncated, as a killed process leaves it), and InputError for a log that has no
    steps or cannot be read.
    """
    steps: dict[int, tuple[int, float | None, float | None]] = {}
    evaluations: dict[int, Mapping[str, float]] = {}
    best: int | None = None
    for location, line in _log_lines(log):
        step = line.get("step") if isinstance(line, Mapping) else None
        if type(step) is not int:
            raise CorruptFileError(f"{location} names no step: {str(line)[:80]}")
        drawable_number(step, f"{location}: step")
        if step < 0:
            raise CorruptFileError(f"{location}: step is {step}, expected a whole number from 0 on")
        scores = line.get("scores")
        if isinstance(scores, Mapping):
            numbers = {
                name: drawable_number(value, f"{location}: {shorten(str(name))}") for name, value in scores.items()
            }
            evaluations[step] = {name: value for name, value in numbers.items() if value is not None}
            best = step if line.get("best") else best
        elif "loss" in line:
            loss, rate = (drawable_number(line.get(name), f"{location}: {name}") for name in ("loss", "learning_rate"))
            steps[step] = (step, loss, rate)
    if not steps and not evaluations:
        raise InputError("the log holds no steps: there is nothing to draw")
    return Curves(
        tuple(steps[i] for i in sorted(steps)), tuple((i, evaluations[i]) for i in sorted(evaluations)), best, title
    )


def drawable_number(value: Any, location: str) -> float | None:
    """A number that can be drawn, or None. Raises CorruptFileError with its location for one too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError as error:
        raise CorruptFileError(
            f"{location} has more digits than a number can have here, expected at most 308"
        ) from error
    if not abs(number) <= MAX_DRAWN:  # also true of NaN
        return None
    return number if abs(number) * MAX_DRAWN >= 1 else 0.0


def _panel(name: str, lines: list[Line], height: float, *, linear: bool = False) -> Panel | None:
    """A panel, or None if there is nothing to draw."""
    drawable = [line for line in lines if any(value is not None for _, value in line.points)]
    return Panel(name, tuple(drawable), height, linear) if drawable else None


def _parse_float(text: str) -> float:
    """A number of a file; one that a float would hold as infinity becomes an integer too large for a float, so that
    `drawable_number` refuses it with its location, as it does the same number written in digits."""
    number = float(text)
    return number if math.isfinite(number) else 10**400


def _log_lines(log: Log) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The lines, each with its location in words."""
    if not isinstance(log, str | os.PathLike):
        entries = enumerate(require_list("log", log, "a file, a folder, or lines as dicts"), 1)
        yield from ((f"line {number} of the log", line) for number, line in entries)
        return
    path = path_of(log)
    path = path / "log.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise NotFoundError(f"there is no log {str(path)!r}")
    with file_errors(path):
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text, parse_float=_parse_float)
        except (ValueError, RecursionError) as error:
            if number == len(texts):
                return
            raise CorruptFileError(f"{path}, line {number}: {json_error_text(error)}") from error
        if not isinstance(found, dict):
            raise CorruptFileError(f"{path}, line {number}: {type(found).__name__}, expected an object")
        yield f"{path}, line {number}", found
