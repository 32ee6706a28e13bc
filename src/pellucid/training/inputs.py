"""The data arguments of a training run, before and while the data are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.config.checks import check_range
from pellucid.text.lines import python_encoding
from pellucid.training.data import Data, check_column_names, check_files_exist, read
from pellucid.training.held_out import split, warn_of_overlap
from pellucid.training.objective import Objective
from pellucid.training.provenance import DataSource, data_source

HELD_OUT_SHARE = 0.1
"""The share of the data that is held out by default."""


@dataclass(frozen=True)
class DataArguments:
    """Data that are not read yet, and how to read them.

    data, columns, encoding: see `pellucid.training.data.read`.
    validation: held-out data of the same kinds, or the share of `data` to hold out; None for `HELD_OUT_SHARE`.
    """

    data: Any
    validation: Any = None
    columns: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"

    @property
    def source(self) -> DataSource:
        """The source of the data."""
        return data_source(self.data)

    @property
    def held_out_source(self) -> DataSource | None:
        """The source of the held-out rows; None where they are a share of the data, or there are none."""
        drawn = self.validation is None or isinstance(self.validation, int | float)
        return None if drawn else data_source(self.validation)

    @property
    def held_out_share(self) -> float:
        """The share of the data that is held out, 0 for none, where `held_out_source` is None."""
        return HELD_OUT_SHARE if self.validation is None else self.validation

    def check(self, objective: Objective) -> None:
        """Checks, before reading, the share, column names, encoding and files. Raises InputError and NotFoundError."""
        if self.held_out_source is None:
            check_range("validation", self.held_out_share, minimum=0.0, below=1.0)
        check_column_names(self.columns, objective)
        python_encoding(self.encoding)
        for one in (self.data, self.validation):
            check_files_exist(one)

    def read(self, objective: Objective, seed: int) -> tuple[Data, Data | None]:
        """The training rows, and the held-out rows or None. The digest of the first is that of all rows in the data.
        Raises InputError, which names the row."""
        rows, held_out = read(self.data, self.columns, objective, self.encoding), None
        if self.held_out_source:
            held_out = read(self.validation, self.columns, objective, self.encoding)
        elif self.held_out_share:
            rows, held_out = split(
                rows, self.held_out_share, seed, objective.stratum, objective.labels_of_row, ordered=objective.ordered
            )
        if held_out is not None and not objective.ordered:
            warn_of_overlap(rows, held_out)
        return rows, held_out
