"""The layout of a drawing: its title, and below the picture notes on what is drawn, its exactness and omissions."""

import re

import numpy as np

from pellucid.errors import shorten
from pellucid.view.choice import Choice
from pellucid.view.colours import theme_colours
from pellucid.view.svg import MARGIN, document, heading, text_element, visible_text, width_of, without_direction_marks

MAX_EDIT_CHARACTERS = 400
"""The most characters of the list of edits that are shown."""


class Sheet:
    """Collects marks; `text` completes the drawing.

    colours: those of the theme.  top: where the picture begins, below the title.
    width, bottom: set by the code that draws the picture.
    notes: sentences for the foot of the drawing.
    """

    def __init__(self, choice: Choice, theme: str) -> None:
        self.choice, self.colours = choice, theme_colours(theme)
        model = without_direction_marks(choice.model)
        self.marks = heading(choice.title, model, self.colours)
        self.width = 2 * MARGIN + max(width_of(choice.title, 16), width_of(model, 11), 360)
        self.top = MARGIN + 44.0
        if choice.edits:
            edits = f"edited: {shorten(without_direction_marks(visible_text(choice.edits)), MAX_EDIT_CHARACTERS)}"
            for line in _wrap_text(edits, self.width - 2 * MARGIN):
                self.marks.append(text_element(MARGIN, self.top + 2, line, self.colours["ink"], font_size=11))
                self.top += 15
        self.bottom = self.top
        self.notes: list[str] = []

    def text(self, description: str, weights: np.ndarray) -> str:
        """The drawing as SVG.  weights: those that it shows."""
        y = self.bottom + 22
        notes = [*self.notes, *_missing_notes(weights), _exactness_note(self.choice)]
        for line in _wrap_text(" ".join(notes), self.width - 2 * MARGIN):
            self.marks.append(text_element(MARGIN, y, line, self.colours["quiet"], font_size=11))
            y += 15
        height = y - 15 + MARGIN
        return document(
            self.width, height, self.marks, self.colours["paper"], f"Attention: {self.choice.title}", description
        )


def percent(share: float) -> str:
    """Formats a fraction, as 23.4 %."""
    return f"{100 * share:.3f} %" if 0 < share < 0.001 else f"{100 * share:.1f} %"


def _missing_notes(weights: np.ndarray) -> list[str]:
    missing, below = int(np.isnan(weights).sum()), int((weights < 0).sum())
    notes = [f"{missing:,} of the weights are NaN or infinite; they are not drawn."] if missing else []
    return [*notes, f"{below:,} of the weights are below 0; they are drawn as 0."] if below else notes


def _exactness_note(choice: Choice) -> str:
    error = choice.entry["max_error"]
    source = "as stored" if choice.entry["weights"] is not None else "recomputed from queries and keys"
    if choice.has_given_weights:
        return "Weights as given." if not error else f"Weights as given, to {error:.2g} in this layer."
    if error is None:
        return f"Weights after softmax, {source}."
    whose = "the weights of the edited run" if choice.edits else "the model's own"
    return f"Weights after softmax, {source}; largest difference from {whose} in this layer: {error:.2g}."


def _wrap_text(text: str, width: float) -> list[str]:
    max_characters = int(width / width_of("m", 10.5))
    lines = [""]
    for word in re.sub(rf"(\S{{{max_characters}}})(?=\S)", r"\1 ", text).split(
        " "
    ):  # breaks up words that are longer than a line
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer, 10.5) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
