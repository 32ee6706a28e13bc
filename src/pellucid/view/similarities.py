"""Which words of one text are similar to which of another, as a page without scripts: the shaded text, and a table.

Similarities are not weights: they run from -1 to 1, and rows have no meaningful sum.
"""

import html
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pellucid.view.colours import THEMES, signed_ramp, theme_colours
from pellucid.view.notebook import frame_html
from pellucid.view.saved import save_file
from pellucid.view.svg import token_label, visible_text, without_direction_marks

_STYLE = Path(__file__).with_name("web") / "similarity.css"
STEPS = 32
"""Shades from -1 to 1, besides the first."""

MAX_FRAME_HEIGHT = 640
"""The largest height of a frame in a notebook, in pixels; a taller page scrolls in it."""

FOOTNOTE = (
    "Columns are words of the query, rows are words of the text; a frame marks the word most similar to each word of "
    "the query. In the text above, each word has the shade of the largest number in its row. "
    "Each number is the cosine similarity, from −1 to 1, of two words' vectors after the last layer; the vector of a "
    "word of several tokens is their mean, and punctuation is left out unless there is nothing else. This shows which "
    "words are similar in their contexts, not why the texts as a whole are close: their vectors are made from all "
    "tokens together."
)

COLUMNS_PROPERTY = "columns"
"""The property of a table by which `similarity.css` scales it for narrow paper."""

FALLBACK_NOTE = "These are the numbers of the page without shades: to see those, trust the notebook or run the cell."
"""Shown where the frame is removed."""

_THEME_SCRIPT = """
const frame = this;
const setScheme = () => {
  const ink = getComputedStyle(frame.parentElement ?? document.body).color;
  const [red, green, blue] = ink.match(/[\\d.]+/g) ?? [0, 0, 0];
  frame.style.colorScheme = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 127.5 ? 'dark' : 'light';
};
setScheme();
if (frame.dataset.watched) return;
frame.dataset.watched = 'yes';
const watch = new MutationObserver(setScheme);
for (const element of [document.documentElement, document.body]) watch.observe(element, { attributes: true });
"""
"""Runs in the host, since the page has no script: sets the frame to dark where the text around it is light."""

Span = tuple[int, int]
"""(start, end) in characters."""


@dataclass(frozen=True)
class WordSimilarities:
    """One table.

    query, text: the two texts.  columns, rows: the spans of their words.
    numbers: Float[ndarray, "rows columns"], from -1 to 1.  caption: further information, in one line.
    """

    query: str
    text: str
    columns: tuple[Span, ...]
    rows: tuple[Span, ...]
    numbers: np.ndarray
    caption: str = ""


class SimilarityView:
    """A page of one table or of several. `save` writes it; a notebook displays it."""

    def __init__(self, *parts: WordSimilarities, theme: str | None = None) -> None:
        """theme: "light" or "dark"; by default the reader's preference."""
        if theme is not None:
            theme_colours(theme)
        self.parts, self.theme = parts, theme

    def beside(self, *others: "SimilarityView") -> "SimilarityView":
        """One page of this view and others, in this order."""
        return SimilarityView(*self.parts, *(part for other in others for part in other.parts), theme=self.theme)

    def html(self) -> str:
        """The whole page as text; it is self-contained and makes no requests."""
        title = (
            f"Which words matched: {_visible_text(' | '.join(dict.fromkeys(part.query for part in self.parts)))[:200]}"
        )
        safe = "default-src 'none'; style-src 'unsafe-inline'"
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{safe}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n"
            f"<style>\n{_style(self.theme)}</style>\n</head>\n<body>\n<main>\n{self._sections()}\n"
            f'{_legend()}\n<p class="note">{FOOTNOTE}</p>\n</main>\n</body>\n</html>\n'
        )

    def _sections(self) -> str:
        before = ["", *(part.query for part in self.parts)]
        return "\n".join(_section(part, part.query != one) for part, one in zip(self.parts, before))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page atomically. Raises InputError for a suffix other than .html."""
        return save_file(path, ".html", lambda: self.html().encode("utf-8", "replace"))

    def __repr__(self) -> str:
        return f"SimilarityView({len(self.parts)} of words); save('why.html') writes the page"

    def _repr_html_(self) -> str:
        tall = min(MAX_FRAME_HEIGHT, 310 + sum(150 + 27 * len(part.rows) for part in self.parts))
        fallback = f"{self._sections()}\n<p>{FALLBACK_NOTE}</p>"
        return frame_html(self.html(), fallback, "which words matched", 'sandbox=""', tall, _THEME_SCRIPT)


def _section(part: WordSimilarities, new: bool) -> str:
    """The text, each word shaded by its largest similarity to a word of the query, and the table.  new: whether this is
    the first section of its query."""
    heading = f'<h1 dir="auto">{html.escape(_visible_text(part.query))}</h1>\n' if new else ""
    caption = f'<p class="caption">{html.escape(_visible_text(part.caption))}</p>\n' if part.caption else ""
    passage = f'<p class="passage" dir="auto">{_shaded_text(part)}</p>' if part.text.strip() else "<p>(no text)</p>"
    return f"{heading}<section>\n{passage}\n{caption}{_table(part) if part.rows else ''}\n</section>"


def _shaded_text(part: WordSimilarities) -> str:
    pieces, end = [], 0
    for (first, last), row in zip(part.rows, part.numbers):
        best = int(row.argmax())
        tip = html.escape(f"{_word(part.query, part.columns[best])} {format_number(row[best])}")
        word = html.escape(_visible_text(part.text[first:last]))
        pieces.append(html.escape(_visible_text(part.text[end:first])))
        pieces.append(f'<span class="s{_shade_number(row[best])}" title="{tip}">{word}</span>')
        end = last
    return "".join(pieces) + html.escape(_visible_text(part.text[end:]))


def _table(part: WordSimilarities) -> str:
    """A row for each word of the text, a column for each of the query."""
    best = part.numbers.argmax(axis=0)
    names = "".join(f'<th scope="col"><bdi>{html.escape(_word(part.query, span))}</bdi></th>' for span in part.columns)
    lines = []
    for i, (span, row) in enumerate(zip(part.rows, part.numbers)):
        cells = "".join(
            f'<td class="s{_shade_number(value)}{" best" if best[j] == i else ""}">{format_number(value)}</td>'
            for j, value in enumerate(row)
        )
        lines.append(f'<tr><th scope="row"><bdi>{html.escape(_word(part.text, span))}</bdi></th>{cells}</tr>')
    return (
        '<div class="sheet" tabindex="0" role="group" aria-label="words of the query and of the text">'
        f'<table style="--{COLUMNS_PROPERTY}: {len(part.columns)}">\n'
        f"<thead><tr><td></td>{names}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody></table></div>"
    )


def _legend() -> str:
    shades = "".join(f'<i class="s{step}"></i>' for step in range(STEPS + 1))
    return f'<p class="ramp" aria-hidden="true">−1 <span>{shades}</span> 1</p>'


def _word(text: str, span: Span) -> str:
    return token_label(text[slice(*span)])


def _visible_text(text: str) -> str:
    """The text with invisible, forbidden and direction-changing characters made visible, except line ends and tabs."""
    return without_direction_marks(visible_text(text, " \n\t"))


def format_number(value: float, digits: int = 2) -> str:
    """For example 0.73, with a minus as wide as a digit; what rounds to zero has no sign."""
    return f"{value:z.{digits}f}".replace("-", "−")


def _shade_number(value: float) -> int:
    return round((float(np.clip(value, -1, 1)) + 1) / 2 * STEPS)


@cache
def _style(theme: str | None) -> str:
    """The page's style in one theme, or in both where the reader's preference decides. Print is light."""
    style = _STYLE.read_text(encoding="utf-8").replace("light dark", theme or "light dark") + _shade_rules("light")
    if theme == "light":
        return style
    dark = "screen" if theme == "dark" else "screen and (prefers-color-scheme: dark)"
    return style + f"@media {dark} {{\n" + _shade_rules("dark") + "}\n"


def _shade_rules(theme: str) -> str:
    """Paper and ink, and each shade with black or white ink, whichever is more legible on it."""
    names = "; ".join(f"--{name}: {colour}" for name, colour in THEMES[theme].items())
    colours = signed_ramp(theme)[np.rint(np.linspace(0, 255, STEPS + 1)).astype(int)]
    lines = [f":root {{ {names}; }}"]
    for step, colour in enumerate(colours):
        paper = "#{:02x}{:02x}{:02x}".format(*colour)
        lines.append(f".s{step} {{ background: {paper}; color: {'#000' if _brightness(colour) > 0.179 else '#fff'}; }}")
    return "\n".join(lines) + "\n"


def _brightness(colour: np.ndarray) -> float:
    """Relative luminance (WCAG 2.2); at 0.179 black and white have equal contrast."""
    parts = colour / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
