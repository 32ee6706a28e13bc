"""Answers as tables of text, for people at a prompt."""

from collections.abc import Sequence

from pellucid.errors import short
from pellucid.text.spelling import written


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows of cells as lines of text; the first `left` columns to the left, the others to the right."""
    widths = [max(map(width_of, column)) for column in zip(*rows)]
    lines = ("  ".join(padded(cell, widths[i], right=i >= left) for i, cell in enumerate(row)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def width_of(text: str) -> int:
    """How many letters of a terminal a text is wide: those of East Asia count two, accents and joiners none."""
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """A text with spaces behind it, or before it on the right, until it is so wide."""
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def shown(token: str, by_bytes: bool, most: int = 12) -> str:
    """A token of a vocabulary in a cell: `·the` for " the". by_bytes: whether its letters stand for bytes."""
    word = written(token, by_bytes).replace(" ", "·")
    return short(word if word.isprintable() else repr(word)[1:-1], most)  # nothing in it breaks the line
