"""The options of the task on the command line, of `run` or of `train` and `evaluate`."""

from dataclasses import fields
from typing import Any

import rich_click as click

from pellucid.errors import InputError
from pellucid.tasks import names as answering
from pellucid.training import names as learning


def task_option_names() -> set[str]:
    """The names of the options of the task on the command line; of all tasks where it names none."""
    try:
        tasks = [answering.find_task(_typed_argument("task"))[0]]
    except InputError:
        tasks = [*answering.TASKS]
    return {option for one in tasks for option in one.task_class().options()}


def objective_option_names() -> set[str]:
    """As `task_option_names`, for training objectives."""
    from pellucid.training.arguments import options_of

    try:
        tasks = [learning.objective_named(_typed_argument("task") or _typed_argument("given"))]
    except InputError:
        tasks = [*learning.OBJECTIVES]
    return {option for one in tasks for option in options_of(one)}


def training_setting_names() -> set[str]:
    """The names of the settings that every training run has."""
    from pellucid.training.settings import Settings

    return {field.name for field in fields(Settings)}


def training_task(word: str) -> str:
    """The name of an objective from its name or alias. Raises UsageError, which suggests similar names."""
    try:
        return learning.objective_named(word).name
    except InputError as error:
        raise click.UsageError(str(error)) from error


def _typed_argument(name: str) -> str:
    """The (first) value of an argument of the running command; "" where none was given."""
    context = click.get_current_context(silent=True)
    value: Any = context.params.get(name) if context else None
    return (value if isinstance(value, str) else next(iter(value), "")) if value else ""
