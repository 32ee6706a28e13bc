"""Where rows came from, as a recipe and a card speak of it: by a name, and by files if there are some."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.files import path_text


@dataclass(frozen=True)
class DataSource:
    """Where rows came from.

    name: for a reader, such as "train.csv" or "a data frame".  files: as they were typed; none for what is in memory.
    """

    name: str
    files: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Of which form the rows were: "csv", "text", "rows"."""
        ends = [Path(one).suffix.lower().lstrip(".") for one in self.files]
        return "rows" if not ends else ends[0] if ends[0] in ("csv", "tsv", "json", "jsonl") else "text"

    @property
    def recipe_entry(self) -> str | list[str] | None:
        """The files as a recipe has them: one alone, or a list."""
        return None if not self.files else self.files[0] if len(self.files) == 1 else list(self.files)


def data_source(data: Any) -> DataSource:
    """Where rows stand."""
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
