"""An error of the library in the words of the command line: its arguments as the options that are typed."""

import json
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import rich_click as click

from pellucid.errors import Argument, InParts


class Others(click.Option):
    """The option for whatever has none of its own: NAME=VALUE, once for each.

    names: asked for what may stand before the sign of equality, once an error speaks of it.
    """

    def __init__(self, *declared: Any, names: Callable[[], Collection[str]], **how: Any) -> None:
        super().__init__(*declared, multiple=True, metavar="NAME=VALUE", **how)
        self.names = names


def as_typed(error: InParts, command: click.Command) -> str:
    """The sentence of an error, with each argument that is an option of the command as it is typed: `--name value`.

    A name alone is left where the option is called the same, and so is what the command has no option for.
    """
    return "".join(_typed(part, command) if isinstance(part, Argument) else part for part in error.parts)


def running(app: click.Command) -> click.Command:
    """The command whose words were typed, however deep it stands among groups."""
    context = click.Context(app)
    for word in sys.argv[1:]:
        if isinstance(context.command, click.Group) and (inner := context.command.get_command(context, word)):
            context = click.Context(inner, parent=context)
    return context.command


def _typed(argument: Argument, command: click.Command) -> str:
    name, value = argument.name, argument.value
    options = {one.name: one for one in command.params if isinstance(one, click.Option)}
    option = options.get(name)
    if option is None:
        return str(argument) if value is ... else _among_others(argument, options.values())
    if value is ...:
        return name if f"--{name.replace('_', '-')}" in option.opts else option.opts[0]
    if not option.is_flag:
        return " ".join(f"{option.opts[0]} {shlex.quote(one)}" for one in _words(value, several=option.multiple))
    if value == (True if option.is_bool_flag else option.flag_value):
        return option.opts[0]
    return next(iter(option.secondary_opts), str(argument))


def _among_others(argument: Argument, options: Collection[click.Option]) -> str:
    """As the option for others says it, where there is one and it knows the name."""
    for option in options:
        if isinstance(option, Others) and argument.name in option.names():
            return f"{option.opts[0]} {shlex.quote(f'{argument.name}={_word(argument.value)}')}"
    return str(argument)


def _words(value: Any, *, several: bool) -> list[str]:
    """A value as a shell takes it: a list is `a,b`, or the option is said `several` times."""
    if isinstance(value, Mapping):
        return [f"{key}={_word(one)}" for key, one in value.items()]
    words = [_word(one) for one in value] if isinstance(value, list | tuple) else [_word(value)]
    return words if several else [",".join(words)]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
