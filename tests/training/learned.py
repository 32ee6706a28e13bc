"""A whole training in memory, for tests of what is learned."""

from collections.abc import Sequence
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.loop import Loop, Told
from pellucid.training.objective import Fields, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import beginning, learned


def training(
    given: Loaded, objective: Objective, rows: Sequence[Fields], held: Sequence[Fields] = (), **settings: Any
) -> tuple[Loop, list[Told]]:
    """The loop after its last step, and all that it told."""
    settings = Settings.of(settings, objective.settings)
    objective = objective.fitted(rows)
    loaded = objective.kept(beginning(given, objective, settings))
    loop = Loop(loaded, objective, settings, objective.examples(loaded, rows), objective.examples(loaded, held))
    return loop, list(loop)


def result(loop: Loop) -> Loaded:
    """The model that a training leaves."""
    return learned(loop.finish())
