"""From the command line to the items of a task (texts, pairs, a question about many texts), and to its settings."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import NameValueOption, first_typed
from pellucid.cli.output import say
from pellucid.cli.reading import LocationOf, file_argument, open_table, read_stdin, texts_of
from pellucid.errors import shorten

if TYPE_CHECKING:
    from pellucid.text.rows import Rows

MAX_ITEM_CHARACTERS = 100
"""The most characters of an item that are shown with its answer."""

MAX_SKIPPED_ROWS = 6
"""The most skipped rows that are listed; the others are counted."""

_ROWS, _SECOND, _THREE = "what is read whole has no rows", "both say the second", "a pair has two texts"
_NO_FILE = "both texts are given, and no FILE is read"

CONFLICTS = (
    (("whole", "column"), _ROWS),
    (("whole", "pair_column"), _ROWS),
    (("whole", "skip_bad_rows"), _ROWS),
    (("second", "pair_column"), _SECOND),
    (("first", "column", "pair_column"), _THREE),
    (("first", "second", "column"), _THREE),
    (("first", "second", "texts"), _THREE),
    *((("first", "second", of_a_file), _NO_FILE) for of_a_file in ("whole", "skip_bad_rows", "encoding")),
)
"""Options that exclude each other, and why."""


@dataclass
class TypedItems:
    """The arguments and options of a command that name the items of a task.

    texts: the arguments.  column, pair_column: of a table.  first, second: of each pair, the same for all texts.
    item_noun: the name of an item in errors.  location_of: locations of the items, set by `items`.
    """

    texts: tuple[str, ...]
    column: str | None
    pair_column: str | None
    first: str | None
    second: str | None
    whole: bool
    encoding: str
    skip_bad_rows: bool
    rows: "Rows | None" = None
    item_noun: str = "text"
    location_of: LocationOf | None = None

    def items(self, task: str, names: tuple[str, ...]) -> Iterable[Any]:
        """The items in the form that the task takes, with the keys `names`; those of a file are read lazily."""
        ranked = names[1:] == ("documents",)
        if ranked and (self.second is not None or self.pair_column is not None):
            raise click.UsageError(f"{task} takes a query and documents: leave out --pair and --pair-column")
        self._check_compatible()
        paired = self.first is not None or self.second is not None or self.pair_column is not None
        if paired and len(names) < 2:
            raise click.UsageError(f"{task} takes one text at a time: leave out --pair, --question and the like")
        if ranked:
            return self._ranking_items(task, names)
        if not self.texts:
            if self.first is None or self.second is None:
                raise click.UsageError(f"{task} was given no text: write one after it, a FILE, or - for standard input")
            self.item_noun = "pair"
            return [{names[0]: self.first, names[1]: self.second}]
        if len(names) > 1 and not paired and names[1] != "text_pair":
            missing = "--question TEXT or --context TEXT" if names[0] == "question" else "the second by --pair TEXT"
            raise click.UsageError(f"{task} takes {names[0]} and {names[1]}: add {missing}")
        path = file_argument(self.texts, self.pair_column if self.column is None else self.column)
        if path is not None and self.pair_column is not None:
            return self._pair_items(path, names)
        texts = self._texts(path)
        if not paired:
            return texts
        one, other = (self.first, names[1]) if self.first is not None else (self.second, names[0])
        fixed_name = names[0] if self.first is not None else names[1]
        pairs = ({fixed_name: one, other: text} for text in texts)
        return list(pairs) if isinstance(texts, list) else pairs

    def _check_compatible(self) -> None:
        for names, why in CONFLICTS:
            spellings = [self._typed(name) for name in names]
            if all(spellings):
                raise click.UsageError(f"{' and '.join(filter(None, spellings))} do not go together: {why}")

    def _typed(self, name: str) -> str | None:
        """The spelling of an argument or option that was given; None where it was not."""
        if name == "texts":
            return "TEXT" if self.texts else None
        return first_typed(name)

    def _ranking_items(self, task: str, names: tuple[str, ...]) -> list[Any]:
        """One query, and all texts as its documents."""
        if self.first is None:
            raise click.UsageError(f"{task} needs a query: add --query TEXT")
        documents = list(self._texts(file_argument(self.texts, self.column)))
        self.location_of, self.item_noun = None, "query"  # they are one item
        return [{names[0]: self.first, names[1]: documents}]

    def _pair_items(self, path: Path, names: tuple[str, ...]) -> Iterable[Any]:
        """Pairs of two columns, or of one column and a text that is the same for all rows."""
        rows = self.rows = open_table(path, self.encoding, skip_bad=self.skip_bad_rows)
        self.location_of = rows.location
        assert self.pair_column is not None
        if self.column is None and self.first is None:
            raise click.UsageError("--pair-column names the second of each pair: add --column for the first")
        if self.column is None:
            return ({names[0]: self.first, names[1]: text} for text in rows.column(self.pair_column))
        return (dict(zip(names, pair)) for pair in rows.texts(self.column, self.pair_column))

    def _texts(self, path: Path | None) -> Iterable[str]:
        if self.whole:
            return [self._read_whole(path)]
        if self.skip_bad_rows and path is None:
            raise click.UsageError("--skip-bad-rows is for the rows of a FILE, and none was given")
        texts, self.location_of, self.rows = texts_of(
            path, self.texts, self.column, self.encoding, skip_bad=self.skip_bad_rows
        )
        return texts

    def _read_whole(self, path: Path | None) -> str:
        """The whole text of a file or of standard input."""
        from pellucid.text.lines import lines

        if path is not None:
            self.location_of = lambda number: str(path)
            return "".join(lines(path, self.encoding)).rstrip("\r\n")
        if self.texts != ("-",):
            raise click.UsageError("--whole is for a FILE or standard input, and neither was given")
        return read_stdin()

    def report_skipped(self) -> None:
        """Prints a line about the rows that were skipped."""
        skipped = self.rows.skipped if self.rows is not None else []
        if skipped:
            more = f"; and {len(skipped) - MAX_SKIPPED_ROWS} more" if len(skipped) > MAX_SKIPPED_ROWS else ""
            say(f"rows left out: {len(skipped)} ({'; '.join(skipped[:MAX_SKIPPED_ROWS])}{more})")


def parse_settings(option: str, settings: Iterable[str], taken_names: Collection[str]) -> dict[str, str]:
    """The values of a `NameValueOption` by name. Raises UsageError for a name that has another option, or occurs twice.

    taken_names: names that were already given by other options.
    """
    found: dict[str, str] = {}
    for one in settings:
        name = split_name_value(option, one)[0].replace("-", "_")
        if (own := _own_spelling(option, name)) is not None:
            raise click.UsageError(f"{name} is not set by {option}: write {own}")
        if name in found or name in taken_names:
            raise click.UsageError(f"{name} is given twice, the second time by {option} {one}: give it once")
        found[name] = one.partition("=")[2]
    return found


def _own_spelling(option: str, name: str) -> str | None:
    """The spelling of a name that the running command takes by another option; None for other names."""
    context = click.get_current_context(silent=True)
    params = context.command.params if context else ()
    found = [one for one in params if isinstance(one, NameValueOption) and option in one.opts]
    return found[0].own_spelling(name, context.command) if context and found else None


def split_name_value(option: str, text: str, placeholder: str = "VALUE") -> tuple[str, str]:
    """NAME and VALUE of NAME=VALUE, without spaces around them. Raises UsageError for another form.

    placeholder: stands for VALUE in errors.
    """
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise click.UsageError(f"{option} {text} gives no {placeholder.lower()}: write {option} NAME={placeholder}")
    return name.strip(), value.strip()


def split_name_values(option: str, texts: Iterable[str], placeholder: str = "VALUE") -> dict[str, str]:
    """The values of several NAME=VALUE by name. Raises UsageError for a name that occurs twice."""
    found: dict[str, str] = {}
    for name, value in (split_name_value(option, one, placeholder) for one in texts):
        if name in found:
            raise click.UsageError(f"{option} {name} is given twice, as {found[name]} and as {value}: give it once")
        found[name] = value
    return found


def item_line(item: Any) -> str:
    """An item on one line: both texts of a pair, only the query of a query with documents."""
    parts = [part for part in item.values() if isinstance(part, str)] if isinstance(item, dict) else [item]
    text = " | ".join(" ".join(part.split()) for part in parts)
    return shorten(text, MAX_ITEM_CHARACTERS)
