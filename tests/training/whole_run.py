"""A whole training run in memory, for tests of its results."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.loop import Event, Loop
from pellucid.training.objective import Fields, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import mark_trained, model_for_training

AnyObjective = TypeVar("AnyObjective", bound=Objective)

NO_DROPOUT = Settings(precision="float32", dropout=0.0, attention_dropout=0.0)
"""No dropout, no half precision."""


def objective_and_model(
    base: Loaded, objective: AnyObjective, rows: Sequence[Fields], settings: Settings = NO_DROPOUT
) -> tuple[AnyObjective, Loaded]:
    """The objective fitted to its data, and the model at the start of training."""
    objective = objective.fitted(rows)
    return objective, objective.with_task_settings(model_for_training(base, objective, settings))


def run_loop(
    base: Loaded, objective: Objective, rows: Sequence[Fields], held_out: Sequence[Fields] = (), **settings: Any
) -> tuple[Loop, list[Event]]:
    """The loop after its last step, and all its events."""
    settings = Settings.of(settings, objective.default_settings)
    objective, loaded = objective_and_model(base, objective, rows, settings)
    loop = Loop(loaded, objective, settings, objective.examples(loaded, rows), objective.examples(loaded, held_out))
    return loop, list(loop)


def trained_model(loop: Loop) -> Loaded:
    """The trained model of a finished loop."""
    return mark_trained(loop.finish())
