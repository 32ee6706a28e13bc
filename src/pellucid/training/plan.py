"""All that is prepared before the first step of training: rows, held-out rows, the model and its examples."""

import logging
from dataclasses import dataclass

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, InputError, Placeholder, format_count
from pellucid.training.data import Data
from pellucid.training.inputs import DataArguments
from pellucid.training.manifest import digest_of_model
from pellucid.training.objective import Example, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training

log = logging.getLogger("pellucid")


@dataclass(frozen=True)
class Plan:
    """Everything that is prepared before the first step.

    base: the model that was passed.  loaded: the model to train, with the objective's head.
    data, held_out: training rows and held-out rows; data's digest is that of all rows in the data.
    base_digest: of the config and weights of `base`.
    """

    base: Loaded
    data_arguments: DataArguments
    loaded: Loaded
    objective: Objective
    settings: Settings
    data: Data
    held_out: Data | None
    examples: list[Example]
    held_out_examples: list[Example]
    base_digest: str

    @property
    def can_score_before(self) -> bool:
        """Whether the model can be scored before training: there are held-out examples, and no part is random."""
        return bool(self.held_out_examples) and not self.loaded.untrained


def make_plan(base: Loaded, data_arguments: DataArguments, objective: Objective, settings: Settings) -> Plan:
    """Reads and checks the data, and prepares the model. Raises InputError, which names the row, for invalid data."""
    rows, held_out = data_arguments.read(objective, settings.seed)
    if settings.patience is not None and held_out is None:
        raise InputError(
            f"patience is {settings.patience}, and nothing is held out to evaluate on: pass ",
            Argument("validation", Placeholder("FILE")),
        )
    objective = objective.fitted(rows.rows)
    loaded = objective.with_task_settings(model_for_training(base, objective, settings))
    examples = objective.examples(loaded, rows.rows)
    _check_enough_examples(objective.min_examples(examples), len(examples), settings.batch_size)
    held_out_examples = objective.examples(loaded, held_out.rows) if held_out else []
    if held_out and not held_out_examples:
        if settings.patience is not None:
            raise InputError(f"patience is {settings.patience}, and none of the held-out rows can be scored")
        log.warning("none of the held-out rows can be scored, so no scores are computed")
    objective.check_held_out(loaded, held_out_examples)
    digest = digest_of_model(base)
    return Plan(base, data_arguments, loaded, objective, settings, rows, held_out, examples, held_out_examples, digest)


def _check_enough_examples(min_examples: int, rows: int, batch_size: int | None) -> None:
    """Refuses fewer rows, in all or in a step, than a loss compares: it would be 0, and nothing learned."""
    compared = "the loss compares the rows of a step"
    if 0 < rows < min_examples:  # `BatchOrder` refuses 0 rows
        raise InputError(
            f"there is {format_count(rows, 'row')} to learn from, and {compared}: give {min_examples} or more"
        )
    if batch_size is not None and batch_size < min_examples:
        raise InputError(
            f"batch_size is {batch_size}, and {compared}: pass ", Argument("batch_size", min_examples), " or more"
        )
