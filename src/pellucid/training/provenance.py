"""The source of rows as named in recipes and model cards: a name, and files if there are any."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.paths import path_text


@dataclass(frozen=True)
class DataSource:
    """The source of rows.

    name: for a reader, such as "train.csv" or "a data frame".  files: paths as given; empty for rows in memory.
    """

    name: str
    files: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The form of the rows: "csv", "tsv", "json", "jsonl", "text" for other files, or "rows" in memory."""
        ends = [Path(one).suffix.lower().lstrip(".") for one in self.files]
        return "rows" if not ends else ends[0] if ends[0] in ("csv", "tsv", "json", "jsonl") else "text"

    @property
    def recipe_entry(self) -> str | list[str] | None:
        """The files as in a recipe: one path, or a list; None for rows in memory."""
        return None if not self.files else self.files[0] if len(self.files) == 1 else list(self.files)


def data_source(data: Any) -> DataSource:
    """The source of data, which are not read."""
    sources = data if isinstance(data, list | tuple) else [data]
    if sources and all(isinstance(one, str | os.PathLike) for one in sources):
        files = tuple(map(path_text, sources))
        return DataSource(" and ".join(Path(one).name for one in files), files)
    kind = type(data)
    if kind.__module__.partition(".")[0] == "datasets":
        return DataSource(str(getattr(getattr(data, "info", None), "dataset_name", None) or "a dataset"))
    if kind.__name__ in ("DataFrame", "Table"):
        return DataSource("a data frame")
    return DataSource("a dict of columns" if isinstance(data, Mapping) else "a list of rows")
