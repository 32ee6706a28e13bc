"""The command and its sub-commands."""

import importlib
import logging
import sys

import rich_click as click

from pellucid import __version__
from pellucid.cli.output import Clean
from pellucid.cli.typed import Once

COMMANDS = (
    "look",
    "run",
    "generate",
    "chat",
    "embed",
    "index",
    "search",
    "train",
    "evaluate",
    "describe",
    "models",
    "pull",
    "convert",
    "verify",
    "diff",
    "doctor",
)
"""Every sub-command; each lives in a file of its name."""


class Lazy(Once):
    """A group that imports a sub-command when it is called, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"pellucid.cli.{cmd_name}").command


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pellucid")
@click.option("--quiet", "-q", is_flag=True, help="Only answers and errors.")
@click.option("--debug", is_flag=True, help="Show what happens, and tracebacks.")
def app(quiet: bool, debug: bool) -> None:
    """A Transformer that can be read, run and seen.

    \b
    Examples:
      pellucid look "time flies like an arrow" --pair "fruit flies like a banana"
      pellucid run ner "My name is Ada, and I live in London."
      pellucid embed "Apple Inc." "Microsoft Corp" --json
      pellucid describe all-MiniLM-L6-v2
    """
    level = logging.DEBUG if debug else logging.ERROR if quiet else logging.WARNING
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Clean("%(message)s"))
    logging.basicConfig(level=level if debug else logging.WARNING, handlers=[handler])
    logging.getLogger("pellucid").setLevel(level)
