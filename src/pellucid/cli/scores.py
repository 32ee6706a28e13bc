"""Scores as a small table for a terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pellucid.cli.output import plain_table

if TYPE_CHECKING:
    from rich.table import Table


def scores_table(scores: Mapping[str, float], comparisons: Mapping[str, Mapping[str, float]]) -> "Table":
    """A row for each score.  comparisons: further scores to compare with, by column; empty ones are left out."""
    others = {title: found for title, found in comparisons.items() if found}
    table = plain_table()
    table.add_column("")
    for title in ("score", *others):
        table.add_column(title, justify="right")
    for name, value in scores.items():
        cells = [f"{found[name]:.4f}" if name in found else "-" for found in others.values()]
        table.add_row(name, f"{value:.4f}", *cells)
    return table
