"""The laws of the sentences that a person reads: whose words they use for what can be given. See `tests/house.py`."""

import ast
import re
from collections.abc import Iterator

from tests.arguments import arguments
from tests.house import nodes, room_of

_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_TOLD = re.compile(
    r"\b(pass|leave|choose|give|with|try|say)(?= (?:(?:an?|another|other) )?(?:\w+ and )?([a-z]\w*)(=?))"
)
_COMMAND = re.compile(r"(pip install|hf download|pellucid [a-z]+) [^`\n]*")


def typed_options(path: str, text: str) -> list[str]:
    """`--option` in a sentence of a room that knows no command line: it names an `Argument` for `cli/options.py`.

    Whole commands are words of a shell anyway.
    """
    if room_of(path) == "cli":
        return []
    return [f"{path}:{line}: {word}" for line, said in texts(text) for word in _OPTION.findall(_COMMAND.sub("", said))]


def untyped_arguments(path: str, text: str) -> list[str]:
    """`pass name=...`, `leave name out` and their like, where somebody can give `name` and it is no `Argument`.

    A word of everyday speech counts behind "pass" and "leave", or before a sign of equality. `cli` says its own
    options, and `compat` the reference's arguments, which no command has.
    """
    if room_of(path) in ("cli", "compat"):
        return []
    return [
        f"{path}:{line}: {verb} {name}"
        for line, said in texts(text)
        for verb, name, equal in _TOLD.findall(said)
        if name in arguments() and (equal or "_" in name or verb in ("pass", "leave"))
    ]


def unknown_arguments(path: str, text: str) -> list[str]:
    """`Argument("name")` for what nobody can give: the command line would not find its option."""
    return [
        f"{path}:{node.lineno}: {node.args[0].value}"
        for node in nodes(text)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Argument"
        if isinstance(node.args[0], ast.Constant) and node.args[0].value not in arguments()
    ]


def texts(text: str) -> Iterator[tuple[int, str]]:
    """Every text of a file but the docstrings, with its line; of one with values each part by itself."""
    docstrings = {id(node.value) for node in nodes(text) if isinstance(node, ast.Expr)}
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
