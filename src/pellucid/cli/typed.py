"""A message of the library in the words of the command line: its arguments as the options that are typed."""

import ast
import re
import shlex
import sys

import rich_click as click

_PATH = r"(?:[~.]{0,2}/[^:']*|[^\s:']*)\.[a-z]\w*|(?=[^\s:']*/)[^\s:']*"
_ARGUMENT = re.compile(
    rf"\A(?:{_PATH})(?:, line [\d,]+)?: .*"
    r"|(?<=option )'(?P<option>\w+)'|(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)"
    r'|(?<!\w)"(?:[^"\\]|\\.)*"'
    r"|(?<![^\s(])[^\s'\"]*/[^:,;]*"
    r"|(?<![\w./'=-])(?P<name>[a-z]\w*)="
    r"(?:(?P<value>'(?:[^'\\]|\\.)*'|\[[^][]*\]|\w[\w-]*(?:\.\d+)?(?!\.?\w|[/-]))|(?![\w'[]))"
    r"|(?<![\w./'=-])(?P<bare>[a-z]+_\w+)(?![\w./'=-])"
    r"|(?<=pass )(?P<passed>[a-z]\w*)(?![\w.])",
    re.DOTALL,
)
"""`name='value'`, a name that stands alone and is no word of English, `option 'name'`, and `pass name`. Found first and
left as it is: what a file is said to hold (`path: ...`), what stands between quotes, and a path."""


def as_typed(message: str, app: click.Command) -> str:
    """The message, with each argument that is an option of the running command as it is typed: `--name value`.

    A name alone is left where the option is called the same.
    """
    options = {one.name: one for one in _running(app).params if isinstance(one, click.Option)}

    def spelled(found: re.Match[str]) -> str:
        option = options.get(found["name"] or found["bare"] or found["option"] or found["passed"])
        if option is not None and option.is_flag and found["value"] == "False":
            return next(iter(option.secondary_opts), found[0])
        if option is None or (found["bare"] and f"--{found['bare'].replace('_', '-')}" in option.opts):
            return found[0]
        value = "" if option.is_flag else _value(found["value"] or "")
        return f"{max(option.opts, key=len)} {value}".rstrip()

    return _ARGUMENT.sub(spelled, message)


def _value(said: str) -> str:
    """A value as a shell takes it: `['a', 'b']` is `a,b`."""
    if said[:1] not in ("'", "["):
        return said
    try:
        value = ast.literal_eval(said)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return said
    return shlex.quote(",".join(map(str, value)) if isinstance(value, list) else value)


def _running(app: click.Command) -> click.Command:
    """The command whose words were typed, however deep it stands among groups."""
    context = click.Context(app)
    for word in sys.argv[1:]:
        if isinstance(context.command, click.Group) and (inner := context.command.get_command(context, word)):
            context = click.Context(inner, parent=context)
    return context.command
