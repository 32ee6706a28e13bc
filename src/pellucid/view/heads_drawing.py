"""The heads view as a drawing: two columns of tokens, and lines between them."""

from dataclasses import dataclass

import numpy as np

from pellucid.errors import format_count
from pellucid.view.choice import Choice
from pellucid.view.colours import head_colour, head_dash, mean_colour
from pellucid.view.sheet import Sheet, percent
from pellucid.view.store import MAX_WEIGHT
from pellucid.view.svg import MARGIN, curve, text_element, token_label, width_of

MAX_TOKENS = 64
"""Above this number only some tokens are drawn, and the drawing notes it."""
MAX_COLOURS = 4
"""Above this number heads are drawn as their mean, as on the page."""

ROW, BREAK, MIDDLE, HEAD_OFFSET = 22, 14, 320, 4


@dataclass(frozen=True)
class HeadLines:
    """The lines of one colour. weights: Float[ndarray, "queries keys"]; shift: pixels up or down."""

    name: str
    colour: str
    dash: str
    weights: np.ndarray
    shift: float


def draw_heads(choice: Choice, theme: str, threshold: float) -> str:
    """The drawing as SVG. Lines of weights below `threshold` are left out, and their total is noted."""
    queries, keys = _shown_tokens(choice)
    sheet = Sheet(choice, theme)
    head_lines = _head_lines(choice, theme)
    left = _row_heights(choice.queries, queries)
    right = _row_heights(choice.keys, keys)
    widths = [
        max(width_of(text) for text in [*(token_label(t["text"]) for t in shown), "query"])
        for shown in ([choice.queries[i] for i in queries], [choice.keys[i] for i in keys])
    ]
    start, top = MARGIN + widths[0] + 10, sheet.top + 50
    end = start + MIDDLE
    ends = {"left": (start, top, left), "right": (end, top, right)}
    _draw_legend(sheet, head_lines, start)
    drawn_weight, total_weight = _draw_lines(sheet, head_lines, choice, ends, threshold)
    _draw_tokens(sheet, choice, ends, head_lines)
    sheet.width = max(sheet.width, end + widths[1] + 10 + MARGIN + (64 if choice.token is not None else 0))
    sheet.bottom = top + max([*left.values(), *right.values()]) + ROW
    sheet.notes += _notes(choice, head_lines, queries, keys, threshold, drawn_weight, total_weight)
    rows = queries if choice.token is None else [choice.token]
    weights = np.stack([one.weights[np.ix_(rows, keys)] for one in head_lines])
    shown = f"{format_count(len(queries), 'query', 'queries')} and {format_count(len(keys), 'key')}"
    return sheet.text(shown, weights)


def _shown_tokens(choice: Choice) -> tuple[list[int], list[int]]:
    """The tokens in the two columns: if many, the first, or the keys with the most weight from the chosen token."""
    queries, keys = range(len(choice.queries)), range(len(choice.keys))
    if choice.token is None:
        return list(queries[:MAX_TOKENS]), list(keys[:MAX_TOKENS])
    first = max(0, min(choice.token - MAX_TOKENS // 2, len(queries) - MAX_TOKENS))
    row = np.nan_to_num(choice.weights[:, choice.token].mean(axis=0))
    shown_keys = sorted(np.argsort(-row, kind="stable")[:MAX_TOKENS].tolist())
    return list(queries[first : first + MAX_TOKENS]), shown_keys


def _head_lines(choice: Choice, theme: str) -> list[HeadLines]:
    if len(choice.heads) > MAX_COLOURS:
        mean = choice.weights.mean(axis=0)
        return [HeadLines(f"mean of {len(choice.heads)} heads", mean_colour(theme), "", mean, 0.0)]
    middle = (len(choice.heads) - 1) / 2
    return [
        HeadLines(
            f"head {head}", head_colour(head, theme), head_dash(head, choice.heads), weights, (i - middle) * HEAD_OFFSET
        )
        for i, (head, weights) in enumerate(zip(choice.heads, choice.weights))
    ]


def _row_heights(tokens: list[dict[str, object]], shown: list[int]) -> dict[int, float]:
    """The middle of each token's row, in pixels from the top; a gap separates texts."""
    places, height = {}, 0.0
    for before, index in zip([None, *shown], shown):
        if before is not None and tokens[before]["segment"] != tokens[index]["segment"]:
            height += BREAK
        places[index] = height + ROW / 2
        height += ROW
    return places


def _draw_lines(
    sheet: Sheet, head_lines: list[HeadLines], choice: Choice, ends: dict[str, tuple], threshold: float
) -> tuple[float, float]:
    """Adds the lines; -> the sum of their weights, and that of all weights between the tokens shown."""
    (start, top, left), (end, _, right) = ends["left"], ends["right"]
    few = choice.token is not None
    drawn_weight = total_weight = 0.0
    for one in head_lines:
        for query in [choice.token] if few else left:
            for key in right:
                weight = max(0.0, float(np.nan_to_num(one.weights[query, key])))
                total_weight += weight
                if weight == 0 or weight < threshold:
                    continue
                drawn_weight += weight
                clipped = min(1.0, weight)
                opacity = 0.22 + 0.76 * clipped**0.5 if few else 0.08 + 0.87 * clipped**0.7
                style = {
                    "stroke_width": f"{(1 if few else 0.7) + 7.5 * clipped:.3g}",
                    "stroke_opacity": f"{opacity:.3g}",
                }
                places = (start, top + left[query] + one.shift), (end, top + right[key] + one.shift)
                data = {"data-query": query, "data-key": key, "data-weight": f"{weight:.9g}"}
                sheet.marks.append(curve(*places, one.colour, **style, stroke_dasharray=one.dash, **data))
    return drawn_weight, total_weight


def _draw_tokens(sheet: Sheet, choice: Choice, ends: dict[str, tuple], head_lines: list[HeadLines]) -> None:
    """The tokens of both columns, and if one token is chosen, the weights of its links."""
    for side, tokens, anchor, step in (("left", choice.queries, "end", -10), ("right", choice.keys, "start", 10)):
        x, top, places = ends[side]
        heading = "query" if side == "left" else "key"
        sheet.marks.append(
            text_element(x + step, top - 10, heading, sheet.colours["quiet"], text_anchor=anchor, font_size=11)
        )
        for index, y in places.items():
            special = tokens[index]["kind"] == "special"
            bold = "600" if side == "left" and index == choice.token else ""
            ink = sheet.colours["quiet"] if special and not bold else sheet.colours["ink"]
            text = token_label(str(tokens[index]["text"]))
            sheet.marks.append(text_element(x + step, top + y + 4.5, text, ink, text_anchor=anchor, font_weight=bold))
    if choice.token is not None and len(head_lines) == 1:
        x, top, places = ends["right"]
        x += 20 + max(width_of(token_label(str(choice.keys[i]["text"]))) for i in places)
        for index, y in places.items():
            number = f"{head_lines[0].weights[choice.token, index]:.4f}"
            sheet.marks.append(text_element(x, top + y + 4.5, number, sheet.colours["quiet"], font_size=11))


def _draw_legend(sheet: Sheet, head_lines: list[HeadLines], start: float) -> None:
    """The colour of each head."""
    for i, one in enumerate(head_lines):
        x, y = start + i * 80, sheet.top + 14
        sheet.marks.append(
            f'<path class="legend" d="M{x:.2f} {y}h18" stroke="{one.colour}" stroke-width="3" fill="none"'
            + (f' stroke-dasharray="{one.dash}"/>' if one.dash else "/>")
        )
        sheet.marks.append(text_element(x + 24, y + 4, one.name, sheet.colours["ink"], font_size=11))


def _notes(
    choice: Choice,
    head_lines: list[HeadLines],
    queries: list[int],
    keys: list[int],
    threshold: float,
    drawn_weight: float,
    total_weight: float,
) -> list[str]:
    """Notes on what is drawn, and what is left out."""
    omitted_share = (
        f"; they carry {percent(max(0.0, 1 - drawn_weight / total_weight))} of the weight between these tokens"
        if total_weight
        else ""
    )
    notes = [f"Lines below {threshold:g} are left out{omitted_share}." if threshold else "All lines are drawn."]
    if any(bool((one.weights > MAX_WEIGHT).any()) for one in head_lines):
        notes.append("Weights above 1 are drawn as 1.")
    if len(keys) < len(choice.keys) or len(queries) < len(choice.queries):
        rows = [choice.token] if choice.token is not None else queries
        part = sum(float(np.nan_to_num(one.weights[rows]).clip(min=0).sum()) for one in head_lines)
        which = "those with the largest weights" if choice.token is not None else "the first"
        notes.append(
            f"{len(queries)} of {len(choice.queries)} queries are drawn, and {len(keys)} of {len(choice.keys)} keys "
            f"({which}); the links between them carry {percent(total_weight / part if part else 0.0)} of the weight."
        )
    return notes
