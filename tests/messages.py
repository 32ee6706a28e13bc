"""The laws of messages to users: how they name arguments and options. See `tests/house.py`."""

import ast
import re
from collections.abc import Iterator

from tests.arguments import arguments
from tests.house import nodes, room_of

_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_ADVICE = re.compile(
    r"\b(pass|leave|choose|give|with|try|say)(?= (?:(?:an?|another|other) )?(?:\w+ and )?([a-z]\w*)(=?))"
)
_COMMAND = re.compile(r"(pip install|hf download|pellucid [a-z]+) [^`\n]*")


def typed_options(path: str, text: str) -> list[str]:
    """`--option` in a message outside `cli`, where it has to be an `Argument`, which `cli/options.py` spells.

    Options of whole shell commands are allowed.
    """
    if room_of(path) == "cli":
        return []
    return [
        f"{path}:{line}: {word}" for line, message in texts(text) for word in _OPTION.findall(_COMMAND.sub("", message))
    ]


def untyped_arguments(path: str, text: str) -> list[str]:
    """`pass name=...`, `leave name out` and the like, where `name` is an argument but not given as an `Argument`.

    A name that is also an everyday word counts only after "pass" or "leave", or before "=". `cli` names its own
    options, and `compat` the reference's arguments, which no command has.
    """
    if room_of(path) in ("cli", "compat"):
        return []
    return [
        f"{path}:{line}: {verb} {name}"
        for line, message in texts(text)
        for verb, name, equal in _ADVICE.findall(message)
        if name in arguments() and (equal or "_" in name or verb in ("pass", "leave"))
    ]


def unknown_arguments(path: str, text: str) -> list[str]:
    """`Argument("name")` where nothing takes `name`, so that the command line would find no option for it."""
    return [
        f"{path}:{node.lineno}: {node.args[0].value}"
        for node in nodes(text)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Argument"
        if isinstance(node.args[0], ast.Constant) and node.args[0].value not in arguments()
    ]


def texts(text: str) -> Iterator[tuple[int, str]]:
    """Every string of a file except docstrings, with its line; of an f-string each constant part separately."""
    docstrings = {id(node.value) for node in nodes(text) if isinstance(node, ast.Expr)}
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value
