"""pellucid describe"""

import rich_click as click

from pellucid.cli.output import print_table, to_json


@click.command("describe")
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(model: str, as_json: bool) -> None:
    """Show a model's architecture and settings.

    Its architecture axis by axis, its tokenizer, how it makes a vector of a text, and where it came from.

    \b
    Examples:
      pellucid describe all-MiniLM-L6-v2
      pellucid describe ./my-model --json
    """
    import pellucid
    from pellucid.tasks.describe import describe

    facts = describe(pellucid.load(model).loaded)
    if as_json:
        click.echo(to_json(facts, indent=2, default=str))
        return
    for i, (title, part) in enumerate(facts.items()):
        click.echo(("\n" if i else "") + title)
        print_table([(f"  {name}", str(value)) for name, value in part.items()])
