"""The command and its sub-commands."""

import importlib
import logging
import os
import sys

import rich_click as click

from pellucid import __version__
from pellucid.cli.options import SingleUseGroup
from pellucid.cli.output import CleanFormatter

COMMANDS = {
    "look": "Draw the attention of a text as a page.",
    "run": "Run a task on texts.",
    "generate": "Continue a text.",
    "chat": "Talk with a chat model.",
    "embed": "Turn texts into vectors.",
    "index": "Build and maintain a search index.",
    "search": "Find the texts of INDEX that fit a query best.",
    "train": "Train a model on DATA.",
    "evaluate": "Score a model on DATA.",
    "describe": "Show a model's architecture and settings.",
    "models": "List the installed and downloaded models.",
    "pull": "Fetch a model from the hub.",
    "convert": "Turn foreign files into a checkpoint folder.",
    "verify": "Check that a checkpoint computes the right numbers here.",
    "diff": "Show where two architectures differ.",
    "doctor": "Check this installation.",
}
"""Every sub-command, with the first line of its help; each is in the module of its name."""


class LazyGroup(SingleUseGroup):
    """A group that imports a sub-command only when it is called, and not to list it in the help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            return importlib.import_module(f"pellucid.cli.{cmd_name}").command
        return self.commands.get(cmd_name)

    def format_help(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:
        lines: dict[str, click.Command] = {
            name: click.RichCommand(name=name, help=line) for name, line in COMMANDS.items()
        }
        listed = LazyGroup(name=self.name, commands=lines, params=self.params, help=self.help)
        names = {"info_name": ctx.info_name, "help_option_names": ctx.help_option_names}
        click.RichGroup.format_help(listed, click.RichContext(listed, parent=ctx.parent, **names), formatter)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pellucid")
@click.option("--quiet", "-q", is_flag=True, help="Print only results and errors.")
@click.option("--debug", is_flag=True, help="Print debug messages and tracebacks.")
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
    handler.setFormatter(CleanFormatter("%(message)s"))
    logging.basicConfig(level=level if debug else logging.WARNING, handlers=[handler])
    logging.getLogger("pellucid").setLevel(level)
    logging.getLogger("huggingface_hub").propagate = False  # it prints its messages itself
    if quiet:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read once, on import
