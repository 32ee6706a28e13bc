"""What is not an answer goes to stderr, and nowhere when nobody wants it."""

import rich_click as click


def say(message: str) -> None:
    """A line for the person at the terminal; `--quiet` silences it."""
    if not quiet():
        click.echo(message, err=True)


def quiet() -> bool:
    """Whether the person asked for answers and errors only."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("quiet"))


def table(rows: list[tuple[str, ...]]) -> None:
    """Rows as aligned columns on stdout."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
