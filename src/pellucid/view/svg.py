"""Marks of a drawing as SVG. Tokens are always escaped as text, and fonts are only named."""

import re
import unicodedata
from xml.sax.saxutils import escape, quoteattr

from pellucid.errors import shorten

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
MARGIN = 24
"""The margin around a drawing, in pixels."""

MAX_LABEL = 24
"""The most characters of a token that are shown."""

_SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u200b": "∅"}

_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Joiners, direction marks, fillers and selectors: Unicode's default ignorables, `\\p{DI}` in the page's program."""

_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks of text direction; the same as for `withoutDirectionMarks` in `web/tokens.js`."""


def rectangle(x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> str:
    """A filled rectangle."""
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect {box} fill="{fill}"{_attributes(attributes)}/>'


def curve(start: tuple[float, float], end: tuple[float, float], colour: str, **attributes: object) -> str:
    """An S curve from left to right with horizontal ends."""
    (left, top), (right, bottom) = start, end
    bend, back = left + 0.42 * (right - left), left + 0.58 * (right - left)
    x0, x1, x2, x3, y0, y3 = map(_number, (left, bend, back, right, top, bottom))
    path = f"M{x0} {y0}C{x1} {y0} {x2} {y3} {x3} {y3}"
    return f'<path d="{path}" fill="none" stroke="{colour}"{_attributes(attributes)}/>'


def text_element(x: float, y: float, text: str, fill: str, **attributes: object) -> str:
    """A line of text; right-to-left text takes the direction of its first letter, as on the page: isolate marks do that
    in every renderer (resvg does not know `unicode-bidi`)."""
    shown = visible_text(text)
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in shown):
        shown = f"\u2068{shown}\u2069"
    return f'<text x="{_number(x)}" y="{_number(y)}" fill="{fill}"{_attributes(attributes)}>{escape(shown)}</text>'


def document(width: float, height: float, marks: list[str], paper: str, title: str, description: str) -> str:
    """A whole drawing; `title` and `description` are for screen readers."""
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family={quoteattr(FONT)} font-size="13">'
    texts = f"<title>{escape(visible_text(title))}</title>\n<desc>{escape(visible_text(description))}</desc>"
    ground = rectangle(0, 0, width, height, paper, **{"class": "paper"})
    return "\n".join([head, texts, ground, *marks, "</svg>\n"])


def printable(text: str) -> str:
    """The text with spaces, line ends, control characters and what XML forbids replaced by visible signs."""
    return "".join(_SIGNS.get(c) or (_visible_sign(c) if _is_unwritable(c) else c) for c in text)


def visible_text(text: str, allowed: str = " ") -> str:
    """The text with every invisible or forbidden character made visible, except those in `allowed`."""
    return "".join(letter if letter in allowed else printable(letter) for letter in text)


def without_direction_marks(text: str) -> str:
    """The text without marks of direction, which would also reorder the text around it."""
    return _TURNING.sub("�", text)


def token_label(token: str, max_length: int = MAX_LABEL) -> str:
    """A token as displayed: visible, and cut to `max_length` characters."""
    text = printable(token[: 4 * max_length]).replace("\u2581", "·")
    if all(map(_is_invisible, text)):
        text = "".join("⍽" if unicodedata.category(c)[0] == "Z" else "∅" for c in text) or "∅"
    return shorten(without_direction_marks(text), max_length)


def heading(title: str, subtitle: str, colours: dict[str, str]) -> list[str]:
    """The title above a drawing, and its smaller subtitle."""
    return [
        text_element(MARGIN, MARGIN + 12, title, colours["ink"], font_size=15, font_weight="600"),
        text_element(MARGIN, MARGIN + 30, subtitle, colours["quiet"], font_size=11),
    ]


def width_of(text: str, size: float = 13) -> float:
    """The approximate width of a text in pixels, in any common font; East Asian characters are twice as wide."""
    broad = sum(
        1.05 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 0.58 for c in text
    )
    return broad * size


def _is_unwritable(character: str) -> bool:
    """Whether this is a control character, a surrogate or a noncharacter; those merely unassigned as yet are kept."""
    return unicodedata.category(character) in ("Cc", "Cs") or ord(character) & 0xFFFE == 0xFFFE


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character)[0] == "Z" or _IGNORED.match(character) is not None


def _visible_sign(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(
        f" {name.replace('_', '-')}={quoteattr(str(v))}" for name, v in attributes.items() if v not in ("", None)
    )
