"""Records of a training run at its start and at its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.training.distributed import Ranks
from pellucid.training.plan import Plan


@dataclass(frozen=True)
class RunStart:
    """A training run as it starts or resumes.

    folder: `training` below `out`; None where nothing is written.  steps: of the whole run.
    step: steps already done; 0 for a new run.  precision: the dtype of matrix products, such as "bfloat16".
    """

    folder: Path | None
    plan: Plan
    steps: int
    step: int
    precision: str
    ranks: Ranks


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a training run.

    scores: of the kept weights on the held-out rows: the best weights, or the last where `keep_best` is off.
    before: of the model before training, where no part of it is new.  baseline: of a baseline, such as predicting the
    most frequent label of the training rows; {} where there is none.  best_step: of the evaluation whose weights were
    kept; 0 where the last ones were.  seconds: of all steps and evaluations.  log: a dict for each step and each
    evaluation, see `pellucid.training.log`.  folder: where the model is saved; None where it is not.
    """

    scores: Mapping[str, float]
    before: Mapping[str, float]
    baseline: Mapping[str, float]
    steps: int
    best_step: int
    seconds: float
    folder: Path | None
    log: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Result(Outcome):
    """The result of a training run.  loaded: the trained model.  start: the run as it started."""

    loaded: Loaded
    start: RunStart
