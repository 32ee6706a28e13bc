"""Several trainings in one drawing: the loss of each over its steps."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.errors import InputError
from pellucid.files import write_whole
from pellucid.view.curves import FORGOTTEN, Curves, curves
from pellucid.view.drawn import render_png
from pellucid.view.lines import Line, Panel, drawn, smoothed, thinned

Log = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
"""A `log.jsonl`, the folder that holds one, or its lines as dicts."""


@dataclass(frozen=True)
class Compared:
    """The courses of several trainings by their names; each line is smoothed, as in `Curves`."""

    courses: Mapping[str, Curves]
    title: str

    def svg(self, path: str | os.PathLike[str] | None = None, theme: str = "light") -> Path | str:
        """The drawing in the colours of "light" or "dark": written to a file, or as text where none is named."""
        text = self._drawn(theme)
        if path is None:
            return text
        return write_whole(Path(path).expanduser(), lambda file: file.write(text.encode("utf-8")))

    def png(self, path: str | os.PathLike[str], theme: str = "light") -> Path:
        """Writes the drawing as pixels; needs the extra `draw`."""
        picture = render_png(self._drawn(theme))
        return write_whole(Path(path).expanduser(), lambda file: file.write(picture))

    def _repr_html_(self) -> str:
        return self._drawn("light")

    def _drawn(self, theme: str) -> str:
        lines = []
        for hue, (name, course) in enumerate(self.courses.items()):
            raw = [(step, loss) for step, loss, _ in course.steps]
            lines.append(Line(name, thinned(smoothed(raw, max(len(raw) // FORGOTTEN, 1))), hue))
        last = max(step for course in self.courses.values() for step, *_ in course.steps)
        said = f"{len(lines)} trainings, {last:,} steps at most"
        return drawn(self.title, said, [Panel("loss", tuple(lines), 260)], last, theme)


def compared(logs: Mapping[str, Log], title: str = "How they were learned") -> Compared:
    """The courses of several trainings, each by the name that stands behind its line.

    Raises InputError where there are none, or one without a single finite loss.
    """
    courses = {name: curves(log) for name, log in logs.items()}
    for name, course in courses.items():
        if not any(loss is not None for _, loss, _ in course.steps):
            raise InputError(f"the log of {name!r} holds no loss: there is nothing to draw")
    if not courses:
        raise InputError("no training was given: there is nothing to draw")
    return Compared(courses, title)
