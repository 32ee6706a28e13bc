"""A training run as a TOML file to read, write and repeat, with task, base model, data and every setting.

    task = "text-classification"
    model = "sentence-transformers/all-MiniLM-L6-v2"
    data = "train.csv"
    validation = 0.1

    [settings]
    epochs = 3
    learning_rate = 1e-4

The recipe saved with a model holds the same as tables, with the digests of the base and of the data.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.errors import InputError, NotFoundError, PellucidError, ResourceError, did_you_mean, join_names, shorten
from pellucid.files import MAX_BYTES, cannot_read

if TYPE_CHECKING:
    from pellucid.training.data import Data
    from pellucid.training.report import RunStart

RECIPE = "recipe.toml"
"""The name of the file in the folder of a trained model."""

FORMAT = 1
"""The version of the file format; a file of another version is refused."""

_PLACE = {"name": str, "rows": int, "digest": str}
_TABLES: dict[str, dict[str, Any]] = {
    "model": {"name": str, "revision": str, "digest": str, "from_scratch": bool}
    | {"family": str, "facts": dict, "tokenizer": str},
    "data": {"file": (list, str), "columns": dict, "encoding": str} | _PLACE,
    "validation": {"share": (int, float), "file": (list, str)} | _PLACE,
}
"""The keys of each table, and the type of each value."""

_SHORT: dict[str, dict[type, str]] = {
    "model": {str: "name"},
    "data": {str: "file", list: "file"},
    "validation": {str: "file", list: "file", int: "share", float: "share"},
}
"""The key that a single value given in place of a table belongs to, by the type of the value."""

_OTHERS = {"format": int, "task": str, "options": dict, "settings": dict, "made": dict, "result": dict}
_WORDS = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The description of a training run, past or planned.

    task: the objective's name; "" where the file leaves it open.  options, settings: by name.
    model, data, validation: by the keys of their tables.  made, result: how it was run, and its outcome.
    file: the file it was read from; None for one that was not read.
    """

    task: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    validation: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def options_and_settings(self) -> dict[str, Any]:
        """Options and settings together."""
        return {**self.options, **self.settings}

    def files(self, table: str) -> str | tuple[str, ...]:
        """The files of a table, each at its path as written or, where that does not exist, relative to the recipe.

        Raises InputError for rows that did not come from a file, and NotFoundError for a file in neither place.
        """
        found = getattr(self, table).get("file")
        if not found:
            what = getattr(self, table).get("name", "nothing")
            raise InputError(f"{self.file} names no file for its {table}, which was {what}: name what to read instead")
        paths = [self.resolve_path(one) for one in ([found] if isinstance(found, str) else found)]
        if gone := [one for one in paths if not Path(one).expanduser().exists()]:
            raise NotFoundError(
                f"{self.file} names {join_names(gone)} as its {table}, a path from the folder where it was "
                "trained, and it is neither here nor beside the recipe: go there and name the recipe from there, or "
                "name what to read instead"
            )
        return paths[0] if isinstance(found, str) else tuple(paths)

    @property
    def held_out(self) -> float | str | tuple[str, ...] | None:
        """The held-out share or the held-out files; None where the recipe has neither."""
        if not self.validation:
            return None
        return self.validation["share"] if "share" in self.validation else self.files("validation")

    def resolve_path(self, name: str) -> str:
        """A path in the recipe: as written or, where only that exists, relative to the recipe's folder."""
        path = Path(name).expanduser()
        beside_recipe = (self.file.parent if self.file else Path()) / path
        return str(beside_recipe if beside_recipe.exists() and not path.exists() else name)

    def differences(self, start: "RunStart") -> list[str]:
        """One sentence for each digest that differs from the recipe's; the trained weights then differ too."""
        plan = start.plan
        current_digests = {"data": plan.data.digest}
        if plan.held_out is not None:
            current_digests["validation"] = plan.held_out.digest
        if plan.base.source is not None:  # random weights follow from the seed
            current_digests["model"] = plan.base_digest
        return [
            f"{self.file}: the {name} is not that of the recipe (digest {found[:12]}…, expected {str(recorded)[:12]}…)"
            for name, found in current_digests.items()
            if (recorded := getattr(self, name).get("digest")) not in (None, found)
        ]

    def toml(self) -> str:
        """The text of the file. Raises ResourceError where the library tomli-w is not installed."""
        try:
            import tomli_w
        except ImportError as error:
            raise ResourceError("a recipe needs the library tomli-w: pip install 'pellucid[train]'") from error
        parts = {name: _to_toml(getattr(self, name)) for name in (*_TABLES, "options", "settings", "made", "result")}
        head = {"format": FORMAT, "task": self.task}
        return _HEAD + tomli_w.dumps(head | {name: part for name, part in parts.items() if part})


_HEAD = """\
# How this model was trained. To do the same again, from the folder in which it was first run:
#   pellucid train --recipe THIS-FOLDER/recipe.toml -o NEW-FOLDER

"""


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe from its file.

    Raises NotFoundError where there is none, and InputError, which names the file and the key, for invalid TOML, an
    unknown key and a value of the wrong type.
    """
    if path.exists() and not path.is_dir() and (not path.is_file() or path.stat().st_size > MAX_BYTES):
        raise InputError(f"{path} is not a recipe: expected a file of at most {MAX_BYTES:,} bytes")
    try:
        found = tomllib.loads(path.read_bytes().decode("utf-8-sig"))  # some editors write a byte order mark
        repr(found)  # a hexadecimal number of thousands of digits can be read, but not printed in an error
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no recipe {str(path)!r}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a recipe: {error}") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    _check(path, "", found, dict.fromkeys(_TABLES, (object,)) | _OTHERS)
    if found.get("format", FORMAT) != FORMAT:
        other = shorten(repr(found["format"]))
        raise InputError(f"{path} is a recipe of format {other}, and this pellucid reads {FORMAT}")
    tables = {name: _table(path, name, found[name]) for name in _TABLES if name in found}
    both = set(found.get("options", {})) & set(found.get("settings", {}))
    if both:
        raise InputError(f"{path}: {join_names(sorted(both))} is in both [options] and [settings]: leave one out")
    others = {name: found.get(name, {}) for name in ("options", "settings", "made", "result")}
    return Recipe(found.get("task", ""), **tables, **others, file=path)


def _table(path: Path, name: str, value: Any) -> dict[str, Any]:
    """The checked table; a single value in its place becomes the value of the key that `_SHORT` names."""
    if type(value) in _SHORT[name]:
        return {_SHORT[name][type(value)]: value}
    if not isinstance(value, dict):
        expected = " or ".join(_WORDS[kind] for kind in dict.fromkeys([*_SHORT[name], dict]))
        raise InputError(f"{path}: {name} is {shorten(repr(value))}, expected {expected}")
    _check(path, f"{name}.", value, _TABLES[name])
    if "share" in value and value.get("file"):
        raise InputError(f"{path}: {name} has a share of the data and a file: leave one of them out")
    files = value.get("file", [])
    if not all(isinstance(one, str) for one in files):
        raise InputError(f"{path}: {name}.file is {shorten(repr(files))}, expected names of files")
    if not all(isinstance(one, str) for one in value.get("columns", {}).values()):
        raise InputError(f"{path}: {name}.columns is {shorten(repr(value['columns']))}, expected names of columns")
    return value


def _check(path: Path, key_prefix: str, found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises InputError for unknown keys and for values of the wrong type."""
    for name, value in found.items():
        if name not in known:
            hint = did_you_mean(name, known) or f": its keys are {', '.join(known)}"
            more = "" if key_prefix or hint.startswith(" ") else "; options and settings belong below [settings]"
            raise InputError(f"{path} has no key {key_prefix}{shorten(name)}{hint}{more}")
        kinds = known[name] if isinstance(known[name], tuple) else (known[name],)
        if object not in kinds and type(value) not in kinds:
            raise InputError(f"{path}: {key_prefix}{name} is {shorten(repr(value))}, expected {_WORDS[kinds[-1]]}")


def _to_toml(value: Any) -> Any:
    """A value that TOML can hold: without None, and a model as the name by which it can be loaded again."""
    if isinstance(value, Mapping):
        return {str(name): _to_toml(one) for name, one in value.items() if one is not None}
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Iterable):
        return [_to_toml(one) for one in value]
    source = getattr(getattr(value, "loaded", None), "source", None)
    return source.name if source is not None else str(value)


def recipe_or_empty(path: Path) -> Recipe:
    """The recipe at a path; an empty one where there is none that can be read."""
    try:
        return read_recipe(path)
    except PellucidError:
        return Recipe()


def overlap_warning(recipe: Recipe, data: "Data") -> str | None:
    """A warning where the rows are the recipe's training data, on which scores flatter the model; else None."""
    if recipe.data.get("digest") != data.digest:
        return None
    held_out = recipe.validation.get("rows", 0) if recipe.validation.get("share") else 0
    learned_rows = f"all but {held_out:,}" if held_out else "all"
    what = f"{data.name} holds the rows that {recipe.file} names"
    return f"{what}: the model learned from {learned_rows} of them, and scores flatter it"
