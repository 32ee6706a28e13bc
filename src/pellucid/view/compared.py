"""The losses of several trainings over their steps, in one drawing."""

from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.errors import InputError, format_count, shorten
from pellucid.view.curves import SMOOTHING_PARTS, Curves, Log, curves
from pellucid.view.line_charts import MAX_NAME_CHARACTERS, Line, Panel, downsampled, draw_panels, smoothed
from pellucid.view.picture import Drawing


@dataclass(frozen=True)
class Compared(Drawing):
    """The curves of several trainings by their names; each line is smoothed, as in `Curves`."""

    courses: Mapping[str, Curves]
    title: str

    def text(self, theme: str = "light") -> str:
        lines = []
        for hue, (name, course) in enumerate(self.courses.items()):
            raw = [(step, loss) for step, loss, _ in course.steps]
            lines.append(Line(name, downsampled(smoothed(raw, max(len(raw) // SMOOTHING_PARTS, 1))), hue))
        last = max(step for course in self.courses.values() for step, *_ in course.steps)
        subtitle = f"{format_count(len(lines), 'training run')}, at most {last:,} steps"
        for name, course in self.courses.items():
            missing = sum(loss is None for _, loss, _ in course.steps)
            subtitle += f"; {shorten(name, MAX_NAME_CHARACTERS)}: {missing:,} without a finite loss" if missing else ""
        return draw_panels(self.title, subtitle, [Panel("loss", tuple(lines), 260)], last, theme)


def compared(logs: Mapping[str, Log], title: str = "Training curves compared") -> Compared:
    """The curves of several trainings, each named at the end of its line.

    Raises InputError where there are none, or for one without a single finite loss.
    """
    courses = {name: curves(log) for name, log in logs.items()}
    for name, course in courses.items():
        if not any(loss is not None for _, loss, _ in course.steps):
            raise InputError(f"the log of {name!r} holds no loss: there is nothing to draw")
    if not courses:
        raise InputError("no training log was given: there is nothing to draw")
    return Compared(courses, title)
