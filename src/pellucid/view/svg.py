"""The marks of a drawing as SVG text. Whatever a token says stays text, and fonts are only named."""

import re
import unicodedata
from xml.sax.saxutils import escape, quoteattr

from pellucid.errors import shorten

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
MARGIN = 24
"""Pixels around a drawing."""

MAX_LABEL = 24
"""Longest token that is written out."""

_SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", "\u200b": "∅"}

_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Joiners, marks of order, fillers and selectors: what Unicode says is not drawn, `\\p{DI}` in a page's program."""

_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks of direction; those of `unturned` in `web/tokens.js`."""


def rectangle(x: float, y: float, width: float, height: float, fill: str, **attributes: object) -> str:
    """A filled rectangle."""
    box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
    return f'<rect {box} fill="{fill}"{_attributes(attributes)}/>'


def curve(start: tuple[float, float], end: tuple[float, float], colour: str, **attributes: object) -> str:
    """An S from left to right that leaves and arrives level."""
    (left, top), (right, bottom) = start, end
    bend, back = left + 0.42 * (right - left), left + 0.58 * (right - left)
    x0, x1, x2, x3, y0, y3 = map(_number, (left, bend, back, right, top, bottom))
    path = f"M{x0} {y0}C{x1} {y0} {x2} {y3} {x3} {y3}"
    return f'<path d="{path}" fill="none" stroke="{colour}"{_attributes(attributes)}/>'


def text_element(x: float, y: float, text: str, fill: str, **attributes: object) -> str:
    """A line of text; one with right-to-left letters begins where its first letter asks, as on the page: marks isolate
    it, which every renderer reads (`unicode-bidi` is unknown to resvg)."""
    shown = visible_text(text)
    if any(unicodedata.bidirectional(letter) in ("R", "AL") for letter in shown):
        shown = f"\u2068{shown}\u2069"
    return f'<text x="{_number(x)}" y="{_number(y)}" fill="{fill}"{_attributes(attributes)}>{escape(shown)}</text>'


def document(width: float, height: float, marks: list[str], paper: str, title: str, description: str) -> str:
    """A whole drawing; `title` and `description` are what a screen reader says of it."""
    size = f'width="{_number(width)}" height="{_number(height)}" viewBox="0 0 {_number(width)} {_number(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family={quoteattr(FONT)} font-size="13">'
    texts = f"<title>{escape(visible_text(title))}</title>\n<desc>{escape(visible_text(description))}</desc>"
    ground = rectangle(0, 0, width, height, paper, **{"class": "paper"})
    return "\n".join([head, texts, ground, *marks, "</svg>\n"])


def printable(text: str) -> str:
    """Nothing invisible and nothing that XML forbids: spaces, line ends and control characters become signs."""
    return "".join(_SIGNS.get(c) or (_visible_sign(c) if _is_unwritable(c) else c) for c in text)


def visible_text(text: str, allowed: str = " ") -> str:
    """Whole words, as they are read: what cannot be seen or written is made visible, but for what is `allowed`."""
    return "".join(letter if letter in allowed else printable(letter) for letter in text)


def without_direction_marks(text: str) -> str:
    """The same without marks of direction, which would turn the letters around them as well, on a line of others."""
    return _TURNING.sub("�", text)


def token_label(token: str, max_length: int = MAX_LABEL) -> str:
    """A token as it is written: visible, and cut to `max_length` letters."""
    text = printable(token[: 4 * max_length]).replace("\u2581", "·")
    if all(map(_is_invisible, text)):
        text = "".join("⍽" if unicodedata.category(c)[0] == "Z" else "∅" for c in text) or "∅"
    return shorten(without_direction_marks(text), max_length)


def heading(title: str, subtitle: str, colours: dict[str, str]) -> list[str]:
    """What stands above a drawing: its title, and below it, smaller, what it is of."""
    return [
        text_element(MARGIN, MARGIN + 12, title, colours["ink"], font_size=15, font_weight="600"),
        text_element(MARGIN, MARGIN + 30, subtitle, colours["quiet"], font_size=11),
    ]


def width_of(text: str, size: float = 13) -> float:
    """About how broad a text is, in pixels, for any common font; letters of East Asia are twice as broad."""
    broad = sum(
        1.05 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 0.58 for c in text
    )
    return broad * size


def _is_unwritable(character: str) -> bool:
    """Control characters, halves of a pair, and what Unicode will never assign; what is merely new to us is written."""
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
