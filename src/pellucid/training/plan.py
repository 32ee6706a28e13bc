"""What stands before the first step of a training: the rows, which of them are held out, the model, its examples."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import within
from pellucid.errors import Argument, Blank, InputError, counted
from pellucid.text.lines import encoding_named
from pellucid.training.data import Data, check_names, check_there, read
from pellucid.training.held_out import split, warn_of_learned
from pellucid.training.manifest import About, digest_of_model, digest_of_words
from pellucid.training.objective import Example, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import beginning


@dataclass(frozen=True)
class Plan:
    """Everything that stands before the first step.

    loaded: under the head that learns.  data, held_out: to learn from, and held out; data's digest is that of all rows
        that were given.  share: that was held out of the data; None where other data are held out, or none.
    base_digest: of the facts and numbers of `given`.
    """

    given: Loaded
    loaded: Loaded
    objective: Objective
    settings: Settings
    data: Data
    held_out: Data | None
    share: float | None
    examples: list[Example]
    held_examples: list[Example]
    base_digest: str

    @property
    def is_old(self) -> bool:
        """Whether the model can be scored before it learns: nothing of it is random, and there is something to ask."""
        return bool(self.held_examples) and not self.loaded.untrained

    def about(self) -> About:
        """What must be the same where it goes on."""
        held = self.held_out.digest if self.held_out else ""
        words = digest_of_words(self.given)
        return About.of(self.base_digest, words, self.data.digest, held, self.objective, self.settings)


def check_asked(
    data: Any, validation: Any, columns: Mapping[str, str] | None, objective: Objective, encoding: str
) -> None:
    """What can be told before anything is read. Raises InputError for a share, a column's name, an encoding or a file
    that cannot be."""
    if isinstance(validation, int | float):
        within("validation", validation, least=0.0, below=1.0)
    check_names(columns, objective)
    encoding_named(encoding)
    for one in (data, validation):
        check_there(one)


def planned(
    given: Loaded,
    data: Any,
    validation: Any,
    columns: Mapping[str, str] | None,
    objective: Objective,
    settings: Settings,
    encoding: str,
) -> Plan:
    """Reads and checks everything. Raises InputError, which names the row, for data that the objective cannot use."""
    rows, held, share = read(data, columns, objective, encoding), None, objective.share
    if isinstance(validation, int | float):
        share = validation
    elif validation is not None:
        held, share = read(validation, columns, objective, encoding), 0.0
    whole = rows.digest
    if share:
        rows, held = split(rows, share, settings.seed, objective.group, objective.marks, ordered=objective.ordered)
        rows = replace(rows, digest=whole)
    if held is not None and not objective.ordered:
        warn_of_learned(rows, held)
    if settings.patience is not None and held is None:
        raise InputError(
            f"patience is {settings.patience}, and nothing is held out to look at: pass ",
            Argument("validation", Blank("FILE")),
        )
    objective = objective.fitted(rows.rows)
    loaded = objective.kept(beginning(given, objective, settings))
    examples = objective.examples(loaded, rows.rows)
    _check_compared(objective.least(examples), len(examples), settings.batch_size)
    held_examples = objective.examples(loaded, held.rows) if held else []
    base = digest_of_model(given)
    return Plan(given, loaded, objective, settings, rows, held, share or None, examples, held_examples, base)


def _check_compared(least: int, rows: int, batch_size: int | None) -> None:
    """Refuses fewer rows, in all or in a step, than a loss compares: it would be 0, and nothing learned."""
    compared = "what is learned is told by comparing the rows of a step"
    if 0 < rows < least:  # where there is none, the order says so
        raise InputError(f"there is {counted(rows, 'row')} to learn from, and {compared}: give {least} or more")
    if batch_size is not None and batch_size < least:
        raise InputError(
            f"batch_size is {batch_size}, and {compared}: pass ", Argument("batch_size", least), " or more"
        )
