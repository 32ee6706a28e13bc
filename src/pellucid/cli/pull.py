"""pellucid pull"""

import rich_click as click

from pellucid.cli.output import print_path, say


@click.command("pull")
@click.argument("name")
@click.option("--revision", metavar="REV", help="A branch, tag or commit.")
@click.option("--token", envvar="HF_TOKEN", show_envvar=True, help="For private and gated models.")
def command(name: str, revision: str | None, token: str | None) -> None:
    """Fetch a model from the hub.

    It goes into the hub's own cache; a copy that is there is brought up to date.

    \b
    Examples:
      pellucid pull sentence-transformers/all-MiniLM-L6-v2
      pellucid pull google-bert/bert-base-uncased --revision main
    """
    from pellucid.checkpoints.location import HubOptions
    from pellucid.checkpoints.source import pull

    source = pull(name, HubOptions(revision, token))
    if source.kind == "package":
        say(f"{source.name} is installed as a package; there is nothing to fetch")
    print_path(source.folder)
