"""What is known of a training when it begins, and when it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.distributed import Ranks
from pellucid.training.plan import Plan


@dataclass(frozen=True)
class RunStart:
    """A training as it begins, or goes on.

    folder: `training` below `out`; None where nothing is written.  steps: of the whole.
    step: where it goes on; 0 where it begins.  dtype: of products.
    """

    folder: Path | None
    plan: Plan
    steps: int
    step: int
    dtype: torch.dtype
    ranks: Ranks


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training went.

    scores: of the held-out rows, by the numbers that were kept: the best, or the last where the best are not kept.
    before: of the model as it came, where its head is not new.  simplest: of the baseline, such as always the
    commonest label of the rows that were learned from; {} where there is none.  best_step: of the evaluation whose
    numbers were kept; 0 where the last ones were.  seconds: of all steps and evaluations.  log: a dict for each step
    and each evaluation, see `pellucid.training.log`.  folder: where the model stands; None where nowhere.
    """

    scores: Mapping[str, float]
    before: Mapping[str, float]
    simplest: Mapping[str, float]
    steps: int
    best_step: int
    seconds: float
    folder: Path | None
    log: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """What a training gave. loaded: the model.  start: what was known of it when it began."""

    loaded: Loaded
    start: RunStart
