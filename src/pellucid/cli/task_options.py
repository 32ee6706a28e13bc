"""The task that was typed, and the options that it has: a task that answers, or one that is learned."""

from dataclasses import fields
from typing import Any

import rich_click as click

from pellucid.errors import InputError
from pellucid.tasks import names as answering
from pellucid.training import names as learning


def options_of_answering() -> set[str]:
    """The options of the task that was typed; of every one where none was."""
    try:
        tasks = [answering.named(_typed("task"))[0]]
    except InputError:
        tasks = [*answering.TASKS]
    return {option for one in tasks for option in one.task().options()}


def options_of_learning() -> set[str]:
    """As `options_of_answering`, for tasks that are learned."""
    from pellucid.training.arguments import options_of

    try:
        tasks = [learning.named(_typed("task") or _typed("given"))]
    except InputError:
        tasks = [*learning.OBJECTIVES]
    return {option for one in tasks for option in options_of(one)}


def settings_of_training() -> set[str]:
    """The settings that every training has."""
    from pellucid.training.settings import Settings

    return {field.name for field in fields(Settings)}


def learned_task(word: str) -> str:
    """A task that is learned, by the name that was typed; near ones are told of another."""
    try:
        return learning.named(word).name
    except InputError as error:
        raise click.UsageError(str(error)) from error


def _typed(name: str) -> str:
    """What was typed for an argument of the running command, of several the first; nothing where nothing was."""
    context = click.get_current_context(silent=True)
    value: Any = context.params.get(name) if context else None
    return (value if isinstance(value, str) else next(iter(value), "")) if value else ""
