"""The matrix view as a drawing: all weights of a head as cells, one panel for each head."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pellucid.errors import format_count
from pellucid.view.choice import Choice
from pellucid.view.colours import ramp, ramp_steps
from pellucid.view.sheet import Sheet
from pellucid.view.svg import MARGIN, rectangle, text_element, token_label, width_of

MAX_CELLS = 16_384
"""Above this number weights are max-pooled into cells, and the drawing notes it."""

PANEL_WIDTH = 560
"""The approximate width of a single panel, in pixels; several panels share twice as much."""

MIN_READABLE_SIDE = 11.0
"""The smallest side of a cell with room for the name of its token, in pixels."""


@dataclass(frozen=True)
class Panel:
    """The cells of one head. weights: Float[ndarray, "rows columns"], NaN where nothing is drawn; side: in pixels."""

    head: int
    weights: np.ndarray
    x: float
    y: float
    side: float


def draw_matrix(choice: Choice, theme: str, scale: str) -> str:
    """The drawing as SVG: a row is a query, a column a key; masked cells stay empty."""
    sheet = Sheet(choice, theme)
    chosen = choice if choice.token is None else _one_row(choice)
    fold = _cell_fold(chosen)
    folded = [_max_pooled(np.where(chosen.attention_mask, weights, np.nan), fold) for weights in chosen.weights]
    largest = max([0.0, *(float(np.nanmax(cells)) for cells in folded if not np.isnan(cells).all())])
    panels = _place_panels(sheet, chosen, folded, fold)
    colours = ramp(theme)
    for panel in panels:
        _draw_cells(sheet, panel, colours, largest, scale)
    _draw_ramp(sheet, colours, largest)
    scale_name = "square root" if scale == "sqrt" else scale
    sheet.notes += [
        "Rows are queries, columns are keys.",
        f"Colours run from 0 to {largest:.4g} on a {scale_name} scale.",
    ]
    if fold > 1:
        cells = f"{len(chosen.queries)} x {len(chosen.keys)} weights"
        sheet.notes.append(f"Each cell is the largest of {fold} x {fold} of the {cells}.")
    if not chosen.attention_mask.all():
        sheet.notes.append("Empty cells are masked.")
    queries = format_count(len(chosen.queries), "query", "queries")
    description = f"{queries} (rows), {format_count(len(chosen.keys), 'key')} (columns)"
    return sheet.text(description, chosen.weights)


def _one_row(choice: Choice) -> Choice:
    row = slice(choice.token, (choice.token or 0) + 1)
    weights, attention_mask, queries = choice.weights[:, row], choice.attention_mask[row], choice.queries[row]
    return replace(choice, weights=weights, attention_mask=attention_mask, queries=queries, token=None)


def _cell_fold(choice: Choice) -> int:
    """How many tokens share a cell, so that all panels together have at most MAX_CELLS."""
    rows, columns, panels = len(choice.queries), len(choice.keys), len(choice.heads)
    fold = 1
    while math.ceil(rows / fold) * math.ceil(columns / fold) * panels > MAX_CELLS:
        fold += 1
    return fold


def _max_pooled(weights: np.ndarray, fold: int) -> np.ndarray:
    """The largest of each block of fold x fold; NaN for a block without values."""
    if fold == 1:
        return weights
    rows, columns = weights.shape
    padded = np.full((-rows % fold + rows, -columns % fold + columns), -np.inf)
    padded[:rows, :columns] = np.where(np.isnan(weights), -np.inf, weights)
    pooled = padded.reshape(len(padded) // fold, fold, -1, fold).max(axis=(1, 3))
    return np.where(np.isneginf(pooled), np.nan, pooled)


def _place_panels(sheet: Sheet, choice: Choice, folded: list[np.ndarray], fold: int) -> list[Panel]:
    """Places the panels and the names of the tokens around them; those of several panels only if legible."""
    rows, columns = folded[0].shape
    alone = len(folded) == 1
    if alone:
        across, heading, side = 1, 0, min(26.0, max(PANEL_WIDTH / max(rows, columns), 4.0))
    else:
        across, heading = min(4, len(folded)) if len(folded) <= 12 else 6, 24
        side = min(26.0, max(2 * PANEL_WIDTH / across / columns, 2.0))
    shows_names = alone or side >= MIN_READABLE_SIDE
    left = MARGIN + (8 + max(width_of(token_label(t["text"])) for t in choice.queries) if shows_names else 0)
    above = heading + (8 + max(width_of(token_label(t["text"])) for t in choice.keys) if shows_names else 0)
    panels = []
    for place, (head, cells) in enumerate(zip(choice.heads, folded)):
        down, right = divmod(place, across)
        x, y = left + right * (columns * side + 18), sheet.top + above + down * (rows * side + above + 16)
        if not alone:
            ink = sheet.colours["ink"]
            sheet.marks.append(text_element(x, y - above + heading - 8, f"head {head}", ink, font_size=11))
        if shows_names:
            _draw_tokens(sheet, choice, (x, y), side, fold, ("query", "key") if right == 0 else ("key",))
        panels.append(Panel(head, cells, x, y, side))
    if not shows_names:
        sheet.notes.append("The names of tokens are left out: draw one head to see them.")
    sheet.width = max(sheet.width, panels[across - 1].x + columns * side + MARGIN)
    sheet.bottom = panels[-1].y + rows * side
    return panels


def _draw_tokens(
    sheet: Sheet, choice: Choice, corner: tuple[float, float], side: float, fold: int, axes: tuple[str, ...]
) -> None:
    """Names of the tokens along these axes of a panel, as many as are legible."""
    (left, top), size = corner, min(13.0, max(MIN_READABLE_SIDE - 2, side * 0.8))
    cell = side / fold
    step = max(fold, math.ceil((size + 2) / cell / fold) * fold)
    for axis in axes:
        tokens = choice.queries if axis == "query" else choice.keys
        for index in range(0, len(tokens), step):
            centre = (index // fold + 0.5) * side
            x, y = (left - 6, top + centre + size * 0.35) if axis == "query" else (left + centre + size * 0.35, top - 6)
            style: dict[str, Any] = (
                {"text_anchor": "end"} if axis == "query" else {"transform": f"rotate(-90 {x:.2f} {y:.2f})"}
            )
            ink = sheet.colours["quiet" if tokens[index]["kind"] == "special" else "ink"]
            sheet.marks.append(
                text_element(x, y, token_label(tokens[index]["text"]), ink, font_size=f"{size:.3g}", **style)
            )


def _draw_cells(sheet: Sheet, panel: Panel, colours: np.ndarray, largest: float, scale: str) -> None:
    """One rectangle for each weight that is not masked; large ones are separated by a thin gap."""
    rows, columns = panel.weights.shape
    side = panel.side
    frame = {"stroke": sheet.colours["line"], "class": "frame"}
    sheet.marks.append(rectangle(panel.x - 0.5, panel.y - 0.5, columns * side + 1, rows * side + 1, "none", **frame))
    gap = 1.0 if side >= 14 else 0.0
    steps = ramp_steps(np.nan_to_num(panel.weights), largest, scale)
    sheet.marks.append('<g class="cells" shape-rendering="crispEdges">')
    for row, column in np.argwhere(~np.isnan(panel.weights)):
        fill = "#{:02x}{:02x}{:02x}".format(*colours[steps[row, column]])
        x, y = panel.x + column * side, panel.y + row * side
        sheet.marks.append(rectangle(x, y, side - gap, side - gap, fill))
    sheet.marks.append("</g>")


def _draw_ramp(sheet: Sheet, colours: np.ndarray, largest: float) -> None:
    """The ramp, from 0 to the largest weight that is drawn."""
    ink, y = sheet.colours["quiet"], sheet.bottom + 16
    sheet.marks.append(text_element(MARGIN, y + 9, "0", ink, font_size=11))
    for step in range(32):
        fill = "#{:02x}{:02x}{:02x}".format(*colours[round(step * 255 / 31)])
        sheet.marks.append(rectangle(MARGIN + 14 + 4 * step, y, 4.4, 10, fill, **{"class": "ramp"}))
    sheet.marks.append(text_element(MARGIN + 150, y + 9, f"{largest:.4g}", ink, font_size=11))
    sheet.bottom = y + 10
