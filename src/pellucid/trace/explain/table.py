"""Answers as tables of text, for people at a prompt."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Rows of cells as lines of text; the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    aligned = [str.ljust if i < left else str.rjust for i in range(len(widths))]
    lines = ("  ".join(to(cell, width) for to, cell, width in zip(aligned, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def short(word: str, most: int = 12) -> str:
    """A token that fits into a cell, nothing in it that would break the line."""
    shown = word if word.isprintable() else repr(word)[1:-1]
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
