"""What is known of a training when it begins, and when it has ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.source import Source
from pellucid.training.data import Data
from pellucid.training.objective import Objective
from pellucid.training.ranks import Ranks
from pellucid.training.settings import Settings


@dataclass(frozen=True)
class Begun:
    """A training as it begins, or goes on.

    folder: `training` below `out`; None where nothing is written.  loaded: with the head that learns.
    data: to learn from, its digest that of all rows that were given.  held_out: None where nothing is.
    share: of the data, where the held-out rows were drawn from them.  examples, held_examples: how many.
    steps: of the whole.  step: where it goes on; 0 where it begins.  dtype: of products.
    base: where the model came from; None for random numbers.  base_digest: of its facts and numbers.
    """

    folder: Path | None
    loaded: Loaded
    objective: Objective
    settings: Settings
    data: Data
    held_out: Data | None
    share: float | None
    examples: int
    held_examples: int
    steps: int
    step: int
    dtype: torch.dtype
    ranks: Ranks
    base: Source | None
    base_digest: str


@dataclass(frozen=True)
class Result:
    """What a training gave.

    scores: of the held-out examples, by the best numbers (by the last ones, where the best are not kept).
    before: of the model as it was, where its head is not new.  simplest: of the simplest answer, such as always the
    commonest label.  best_step: of the best look; 0 without one.  seconds: of all steps and looks.
    log: every line, see `pellucid.training.log`.  folder: where it was written.
    """

    loaded: Loaded
    begun: Begun
    scores: dict[str, float]
    before: dict[str, float]
    simplest: dict[str, float]
    best_step: int
    steps: int
    seconds: float
    log: tuple[dict[str, Any], ...]
    folder: Path | None
