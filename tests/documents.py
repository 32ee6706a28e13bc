"""The claims of the documents in a form that can be checked, and the page of the command line, made from its help."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLI_PAGE = ROOT / "docs" / "cli.md"


def fenced(page: str, language: str) -> list[str]:
    """The code blocks of one language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[str]:
    """Every command line that a page shows, without its trailing comment."""
    for block in fenced(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                yield line[2:].split("  #")[0].strip()


def tree(page: str) -> list[str]:
    """The paths in the tree that a page draws."""
    (block,) = fenced(page, "text")
    paths, above = [], ""
    for line in block.splitlines():
        name = line.split()[0]
        above = above if line.startswith("  ") else name
        paths.append(above + name if line.startswith("  ") else name)
    return paths


def cli_page() -> str:
    """The expected contents of docs/cli.md."""
    import click

    from pellucid.cli.app import COMMANDS, app

    parts = ["# The command line\n\nMade from the help texts by `python -m tests.documents`; a test compares it.\n"]
    root = click.Context(app, info_name="pellucid", **app.context_settings)
    parts.append(_section(app, root))
    for name in COMMANDS:
        command = app.get_command(root, name)
        context = click.Context(command, info_name=name, parent=root)
        parts.append(_section(command, context))
        if isinstance(command, click.Group):
            inner = [(one, click.Context(one, info_name=one.name, parent=context)) for one in command.commands.values()]
            parts += [_section(*one) for one in inner]
    return "\n".join(parts)


def _section(command: object, context: object) -> str:
    """A command under its full name; subcommands get a heading one level lower."""
    path = context.command_path
    return f"{'#' * max(2, len(path.split()))} {path}\n\n```text\n{_plain(command, context)}\n```\n"


def _plain(command: object, context: object) -> str:
    """The help as plain click formats it: no colours, no boxes, the same on every terminal."""
    import click

    formatter = click.HelpFormatter(width=100, max_width=100)
    kind = click.Group if isinstance(command, click.Group) else click.Command
    kind.format_usage(command, context, formatter)
    kind.format_help_text(command, context, formatter)
    click.Command.format_options(command, context, formatter)
    if isinstance(command, click.Group):
        click.Group.format_commands(command, context, formatter)
    return formatter.getvalue().rstrip()


def own_defaults() -> str:
    """The table of docs/training.md that lists the settings whose default depends on the task."""
    from pellucid.training.names import OBJECTIVES
    from pellucid.training.settings import Settings

    lines = ["| task | its own defaults |", "|---|---|"]
    for one in OBJECTIVES:
        settings = one.objective().default_settings.items()
        own = [f"`{name}` {_short(value)}" for name, value in settings if value != getattr(Settings(), name)]
        lines += [f"| `{one.name}` | {', '.join(own)} |"] if own else []
    return "\n".join(lines) + "\n"


def own_options() -> str:
    """The table of docs/training.md that lists each task's options, and the page that explains them."""
    from dataclasses import fields

    from pellucid.training.arguments import options_of
    from pellucid.training.names import OBJECTIVES

    lines = ["| task | its options and their defaults | page |", "|---|---|---|"]
    for one in OBJECTIVES:
        defaults = {field.name: field.default for field in fields(one.objective())}
        options = ", ".join(f"`{name}` {_short(defaults[name])}" for name in options_of(one))
        lines.append(f"| `{one.name}` | {options} | `{one.class_path.replace(':', '.')}` |")
    return "\n".join(lines) + "\n"


def _short(value: object) -> str:
    """A value as a user types it: numbers as they are, texts as code."""
    if value is None:
        return "none"
    if isinstance(value, bool | str):
        text = json.dumps(value)
        return f"`{text if chr(92) in text else text.strip(chr(34))}`"
    return f"{value:g}"


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_page(), encoding="utf-8")
    sys.stdout.write(f"{CLI_PAGE}\n")
