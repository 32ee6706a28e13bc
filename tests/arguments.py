"""Every argument that a user can pass: to a function or class of the package, an architecture, a task, a training, a
command."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import rich_click as click

import pellucid
from pellucid import config, edits
from pellucid.checkpoints.convert import convert
from pellucid.cli.app import app
from pellucid.generation.registry import OPTIONS
from pellucid.tasks.names import TASKS
from pellucid.text import Tokenizer
from pellucid.trace.explain import Explain
from pellucid.training.arguments import options_of
from pellucid.training.names import OBJECTIVES
from pellucid.training.settings import Settings


@functools.cache
def arguments() -> frozenset[str]:
    """The names of these arguments in Python, and those of the commands' options."""
    return frozenset({*_of_functions(), *_of_tasks(), *_of_commands(app)} - {"self", "args", "kwargs"})


def _of_functions() -> Iterator[str]:
    public = [getattr(pellucid, name) for name in pellucid.__all__]
    for public_object in (
        *public,
        *vars(edits).values(),
        *vars(config).values(),
        convert,
        Tokenizer,
        Explain,
        Settings,
    ):
        yield from _parameters(public_object)
        if inspect.isclass(public_object) and not issubclass(public_object, BaseException):
            for name, method in inspect.getmembers(public_object, callable):
                if name == "__call__" or not name.startswith("_"):
                    yield from _parameters(method)


def _parameters(function: Any) -> list[str]:
    return (
        list(inspect.signature(function).parameters) if inspect.isroutine(function) or inspect.isclass(function) else []
    )


def _of_tasks() -> Iterator[str]:
    yield from OPTIONS
    for task in TASKS:
        yield from task.task_class().options()
    for objective in OBJECTIVES:
        yield from options_of(objective)


def _of_commands(command: click.Command) -> Iterator[str]:
    yield from (one.name for one in command.params if one.name)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _of_commands(inner)
