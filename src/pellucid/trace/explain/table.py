"""Results as tables of text for a terminal."""

from collections.abc import Sequence

from pellucid.errors import shorten
from pellucid.text.spelling import token_text


def table(rows: Sequence[Sequence[str]], *, left_columns: int = 1) -> str:
    """Rows of cells as aligned lines of text; the first `left_columns` columns to the left, the others to the right."""
    widths = [max(map(cell_width, column)) for column in zip(*rows)]
    lines = (
        "  ".join(pad_cell(cell, widths[i], right=i >= left_columns) for i, cell in enumerate(row)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def cell_width(text: str) -> int:
    """The width of a text in terminal columns: East Asian characters take two, accents and joiners none."""
    from rich.cells import cell_len

    return cell_len(text)


def pad_cell(text: str, width: int, *, right: bool = False) -> str:
    """A text padded with spaces to a width, on its right, or on its left for right alignment."""
    space = " " * (width - cell_width(text))
    return space + text if right else text + space


def format_token(token: str, by_bytes: bool, max_length: int = 12) -> str:
    """A token of a vocabulary in a cell: `·the` for " the". by_bytes: whether its characters stand for bytes."""
    text = token_text(token, by_bytes).replace(" ", "·")
    return shorten(text if text.isprintable() else repr(text)[1:-1], max_length)  # no line breaks
