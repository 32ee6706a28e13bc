"""A whole training in memory, for tests of what is learned."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.loop import Event, Loop
from pellucid.training.objective import Fields, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import mark_trained, model_for_training

Purpose = TypeVar("Purpose", bound=Objective)

PLAIN = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
"""Nothing is left to chance."""


def ready(
    given: Loaded, objective: Purpose, rows: Sequence[Fields], settings: Settings = PLAIN
) -> tuple[Purpose, Loaded]:
    """An objective that knows its data, and the model as it begins."""
    objective = objective.fitted(rows)
    return objective, objective.with_task_settings(model_for_training(given, objective, settings))


def training(
    given: Loaded, objective: Objective, rows: Sequence[Fields], held: Sequence[Fields] = (), **settings: Any
) -> tuple[Loop, list[Event]]:
    """The loop after its last step, and all that it told."""
    settings = Settings.of(settings, objective.default_settings)
    objective, loaded = ready(given, objective, rows, settings)
    loop = Loop(loaded, objective, settings, objective.examples(loaded, rows), objective.examples(loaded, held))
    return loop, list(loop)


def result(loop: Loop) -> Loaded:
    """The model that a training leaves."""
    return mark_trained(loop.finish())
