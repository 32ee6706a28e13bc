"""Shared kinds of options, and library errors with arguments spelled as options of the command line."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource

from pellucid.errors import Argument, StructuredError
from pellucid.paths import path_of


class NameValueOption(click.Option):
    """An option NAME=VALUE, which may be repeated, for settings without an option of their own.

    names: returns the valid names; only called for an error message, with `click`'s current context that of the
        command.
    typed_elsewhere: arguments of the library that have neither an option of their name nor a valid NAME here, with
        their spelling on the command line.
    """

    def __init__(
        self,
        *declared: Any,
        names: Callable[[], Collection[str]],
        typed_elsewhere: Mapping[str, str],
        **attributes: Any,
    ) -> None:
        super().__init__(*declared, multiple=True, metavar="NAME=VALUE", **attributes)
        self.names, self.typed_elsewhere = names, typed_elsewhere

    def own_spelling(self, name: str, command: click.Command) -> str | None:
        """The spelling of a name that this option does not accept, such as "--overwrite"; None for other names."""
        option = _options_by_name(command).get(name)
        own = self.typed_elsewhere.get(name) if option is None else _option_spelling(option)
        return own if own is not None and name not in self.names() else None


def combined_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, for commands that share them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class NonEmptyPath(click.Path):
    """A path that can exist, and is not empty, which Python would take for the working folder. Read access is not
    checked here."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "" and param is not None:
            spelling = (
                _option_spelling(param) if isinstance(param, click.Option) else param.human_readable_name.strip("[]")
            )
            kind = "folder" if self.dir_okay else "file"
            raise click.UsageError(f"{spelling} is empty, expected the name of a {kind}", ctx)
        path = path_of(value)
        if not self.file_okay and os.path.isfile(path):  # noqa: PTH113 - False without access, too
            self.fail(f"{str(value)!r} is a file, expected a folder", param, ctx)
        if not self.dir_okay and os.path.isdir(path):  # noqa: PTH112
            self.fail(f"{str(value)!r} is a folder, expected a file", param, ctx)
        return super().convert(value, param, ctx)


class SingleUseGroup(click.RichGroup):
    """A group whose commands refuse an option of one value that is given twice."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:  # set for shell completion
            inner = click.Context(command, info_name=name, parent=ctx)
            _, _, order = command.make_parser(inner).parse_args(list(rest))
            for one in order:
                if isinstance(one, click.Option) and not one.multiple and order.count(one) > 1:
                    spellings = " or ".join((*_long_spellings(one.opts), *one.secondary_opts))
                    raise click.UsageError(f"{spellings} is given twice: give it once", inner)
        return name, command, rest


def first_typed(*names: str) -> str | None:
    """The spelling of the first of these options that was given to the running command; None where none was.

    names: of the command's parameters.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return None
    typed = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return _option_spelling(_options_by_name(context.command)[typed[0]]) if typed else None


def message_as_typed(error: StructuredError, context: click.Context) -> str:
    """The message of an error, with each argument that is an option of the command spelled as one."""
    with context:
        return "".join(
            _argument_as_typed(part, context.command) if isinstance(part, Argument) else str(part)
            for part in error.parts
        )


def running_context(app: click.Command) -> click.Context:
    """The context of the command in `sys.argv`, also in nested groups, with the values of its parameters."""
    context = click.Context(app)
    for i, word in enumerate(sys.argv[1:], 2):
        if isinstance(context.command, click.Group) and (inner := context.command.get_command(context, word)):
            context = inner.make_context(word, sys.argv[i:], parent=context, resilient_parsing=True)
    return context


def _argument_as_typed(argument: Argument, command: click.Command) -> str:
    name, value = argument.name, argument.value
    options = _options_by_name(command)
    option = options.get(name)
    if option is None:
        return str(argument) if value is ... else _as_name_value(argument, options.values())
    if value is ...:
        return _option_spelling(option)
    if isinstance(option.type, click.Choice) and isinstance(value, str) and value not in option.type.choices:
        return str(argument)  # a value that only the Python argument accepts
    if not option.is_flag:
        return " ".join(
            f"{_option_spelling(option)} {shlex.quote(one)}" for one in _shell_words(value, repeated=option.multiple)
        )
    if value == (True if option.is_bool_flag else option.flag_value):
        return option.opts[0]
    return next(iter(option.secondary_opts), str(argument))


def _options_by_name(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their spellings and by their parameter names, which take precedence."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    by_spelling = {opt.lstrip("-").replace("-", "_"): one for one in options for opt in one.opts}
    return by_spelling | {one.name: one for one in options if one.name}


def _option_spelling(option: click.Option) -> str:
    """The spelling of an option as typed, where that is a long one; else its first."""
    typed = {word.partition("=")[0] for word in sys.argv[1:]}
    return next((one for one in _long_spellings(option.opts) if one in typed), option.opts[0])


def _long_spellings(opts: Collection[str]) -> list[str]:
    return [one for one in opts if one.startswith("--")] or list(opts)


def _as_name_value(argument: Argument, options: Collection[click.Option]) -> str:
    """An argument spelled by a `NameValueOption` that accepts its name; else as in Python."""
    for option in options:
        if isinstance(option, NameValueOption) and argument.name in option.names():
            return f"{option.opts[0]} {shlex.quote(f'{argument.name}={_shell_word(argument.value)}')}"
    return str(argument)


def _shell_words(value: Any, *, repeated: bool) -> list[str]:
    """The words of a value in a shell: a list becomes `a,b`, or one word each where the option is `repeated`."""
    if isinstance(value, Mapping):
        return [f"{key}={_shell_word(one)}" for key, one in value.items()]
    words = [_shell_word(one) for one in value] if isinstance(value, list | tuple) else [_shell_word(value)]
    return words if repeated else [",".join(words)]


def _shell_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
