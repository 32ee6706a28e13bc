"""Rows of the tables of other libraries: pandas, polars, Arrow, `datasets`. They are recognised by their attributes;
none is imported."""

from collections.abc import Iterable, Mapping
from typing import Any

from pellucid.errors import InputError, join_names
from pellucid.text.rows import check_unique_columns


def rows_of_frame(data: Any, *required_columns: str | None) -> Iterable[dict[str, Any]] | None:
    """The rows of a table, each as a dict by column; None for anything but a table of these libraries.

    required_columns: columns that rows must have.

    Raises InputError for several columns of one name, for a mapping of splits, and where a required column is the index
    of a data frame.
    """
    if isinstance(data, Mapping):
        parts = [name for name, part in data.items() if hasattr(part, "column_names") and hasattr(part, "features")]
        if parts:
            raise InputError(
                f"data hold the parts {join_names(map(str, parts))}: pass one of them, such as data[{parts[0]!r}]"
            )
        return None
    if hasattr(data, "column_names") and hasattr(data, "features"):  # datasets.Dataset, and its IterableDataset
        return _with_label_names(_python_values(data), data.features or {})
    if hasattr(data, "collect_schema") and hasattr(data, "collect") and not hasattr(data, "iter_rows"):
        return data.collect().iter_rows(named=True)  # polars, lazy
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "to_dict") and hasattr(data, "itertuples"):  # pandas
        columns = list(map(str, data.columns))
        check_unique_columns("the data frame", columns)
        for name in required_columns:
            if name is not None and name not in columns and name in data.index.names:
                raise InputError(f"{name!r} is the index of the data frame, not a column: give data.reset_index()")
        return data.to_dict("records")
    if hasattr(data, "to_pylist") and hasattr(data, "column_names"):  # Arrow
        check_unique_columns("the Arrow table", data.column_names)
        return data.to_pylist()
    return None


def _python_values(data: Any) -> Iterable[dict[str, Any]]:
    """A data set that returns plain Python values, whatever format is set; a custom transform is kept."""
    data_format = getattr(data, "format", None) or {}
    if data_format.get("type") == "custom" or not hasattr(data, "with_format"):
        return data
    chosen = {name: data_format[name] for name in ("columns", "output_all_columns") if name in data_format}
    return data.with_format(None, **chosen)


def _with_label_names(data: Iterable[dict[str, Any]], features: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Rows of `datasets` with label numbers replaced by their names, and -1, for no label, by None."""
    labels = {name: found for name, feature in features.items() if (found := _label_names(feature)) is not None}
    for row in data:
        yield {name: _label_name(value, labels[name]) if name in labels else value for name, value in row.items()}


def _label_names(feature: Any) -> list[str] | None:
    """The names of a column's label numbers, where it holds labels or lists of labels; else None."""
    inner = getattr(feature, "feature", feature)
    if isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    names = getattr(inner, "names", None)
    return names if isinstance(names, list) else None


def _label_name(value: Any, names: list[str]) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or PyTorch
    if isinstance(value, list | tuple):
        return [_label_name(one, names) for one in value]
    return value if not isinstance(value, int) else names[value] if 0 <= value < len(names) else None
