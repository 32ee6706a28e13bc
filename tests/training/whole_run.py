"""A whole training run in memory, for tests of its results."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.loop import Event, Loop
from pellucid.training.objective import Fields, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import mark_trained, model_for_training

Purpose = TypeVar("Purpose", bound=Objective)

PLAIN = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
"""No dropout, no half precision."""


def ready(
    given: Loaded, objective: Purpose, rows: Sequence[Fields], settings: Settings = PLAIN
) -> tuple[Purpose, Loaded]:
    """The objective fitted to its data, and the model at the start of training."""
    objective = objective.fitted(rows)
    return objective, objective.with_task_settings(model_for_training(given, objective, settings))


def training(
    given: Loaded, objective: Objective, rows: Sequence[Fields], held: Sequence[Fields] = (), **settings: Any
) -> tuple[Loop, list[Event]]:
    """The loop after its last step, and all its events."""
    settings = Settings.of(settings, objective.default_settings)
    objective, loaded = ready(given, objective, rows, settings)
    loop = Loop(loaded, objective, settings, objective.examples(loaded, rows), objective.examples(loaded, held))
    return loop, list(loop)


def result(loop: Loop) -> Loaded:
    """The trained model of a finished loop."""
    return mark_trained(loop.finish())
