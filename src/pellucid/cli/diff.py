"""pellucid diff"""

from typing import Any

import rich_click as click

from pellucid.cli.output import print_table, say, to_json


@click.command("diff")
@click.argument("left")
@click.argument("right")
@click.option("--all", "everything", is_flag=True, help="Show the axes that agree as well.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(left: str, right: str, everything: bool, as_json: bool) -> None:
    """Show where two architectures differ.

    LEFT and RIGHT are checkpoints, or families such as `bert`, which stand for their defaults; `./bert` is a folder.
    No weights are read.

    \b
    Examples:
      pellucid diff bert roberta
      pellucid diff all-MiniLM-L6-v2 bert --all
    """
    from pellucid.tasks.compare import compare_configs, config_of

    axes = compare_configs(config_of(left), config_of(right))
    rows = [axis for axis in axes if everything or axis.differs]
    if as_json:
        found = [{"name": a.name, "left": a.left, "right": a.right, "differs": a.differs} for a in rows]
        click.echo(to_json(found, indent=2, default=str))
        return
    if rows:
        print_table([("", left, right), *((axis.name, _cell(axis.left), _cell(axis.right)) for axis in rows)])
    same = sum(not axis.differs for axis in axes)
    say(f"{len(axes) - same} axes differ, {same} agree")


def _cell(value: Any) -> str:
    """A value of a config, shortened."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        shown = ", ".join(map(str, value[:3]))
        return f"{shown} and {len(value) - 3} more" if len(value) > 3 else shown
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int and value >= 10_000 else str(value)
