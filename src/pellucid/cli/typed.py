"""A message of the library in the words of the command line: its arguments as the options that are typed."""

import re
import sys

import rich_click as click

_ARGUMENT = re.compile(
    r"(?<![\w./'=-])(?P<name>[a-z]\w*)=(?P<value>'[^']*'|\[[^\]]*\]|\w[\w.-]*\w|\w)?"
    r"|(?<![\w./'=-])(?P<bare>[a-z]+_\w+)(?![\w./'-])"
    r"|(?<=option )'(?P<option>\w+)'|(?<=pass )(?P<passed>[a-z]\w*)(?![\w.])"
)
"""`name='value'`, a name that stands alone and is no word of English, `option 'name'`, and `pass name`."""


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
        value = re.sub(r"[\[\]' ]", "", found["value"] or "")
        return max(option.opts, key=len) + ("" if option.is_flag or not value else f" {value}")

    return _ARGUMENT.sub(spelled, message)


def _running(app: click.Command) -> click.Command:
    """The command whose words were typed, however deep it stands among groups."""
    context = click.Context(app)
    for word in sys.argv[1:]:
        if isinstance(context.command, click.Group) and (inner := context.command.get_command(context, word)):
            context = click.Context(inner, parent=context)
    return context.command
