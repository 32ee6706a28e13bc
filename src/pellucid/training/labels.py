"""Parses a column of labels: one label for each row, several, or shares of each; and determines the classes."""

import difflib
import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pellucid.errors import InputError, did_you_mean, format_count, join_names, shorten
from pellucid.training.losses import IGNORED

log = logging.getLogger("pellucid")

KINDS = {"single": "one name each", "multiple": "several labels each", "soft": "shares that sum to 1"}
"""One label, any number of labels, or a share of each label; with their names in errors."""

MIN_SIMILARITY = 0.8
"""The least string similarity at which a label that occurs once may be another one misspelt."""

MAX_COMPARED = 1000
"""The most labels that are compared with each other."""

MAX_WARNED = 5
"""The most labels that are reported as perhaps misspelt."""


_WHOLE = re.compile(r"(?:-(?=0))?(0|-?[1-9]\d{0,17})(\.0+)?")
"""A whole number, also written as a float; 007 is a name, and -0.0 is 0."""

_LISTED = re.compile(r"""\[(["'].*|\d.*,.*)?\]""", re.DOTALL)
"""A list written as text into a table, as pandas does; it would be a label of its own."""


_NAME, _NAMES, _SHARES, _NUMBERS = "a name", "a list of names", "shares by name", "numbers by position"
"""The forms that a label may have in the data."""


class Label(NamedTuple):
    """The label of a row.

    location: of the row.  value: as in the data.  form: one of the four.
    names: the labels that it names; empty for a list of numbers, one for each label.  shares: of each label.
    """

    location: str
    value: Any
    form: str
    names: tuple[str, ...]
    shares: tuple[float, ...]


class LabelSummary(NamedTuple):
    """The kind and the classes of a column of labels.

    kind: one of KINDS.  classes: in order; "0", "1", ... for lists of numbers.  counts: rows of each class.
    """

    kind: str
    classes: tuple[str, ...]
    counts: tuple[int, ...] = ()
    rows: int = 0


def label_of(value: Any, location: str, separator: str | None = None) -> Label:
    """Parses a label. Raises InputError for an invalid one.  separator: separates several labels in one text."""
    if isinstance(value, str) and _LISTED.fullmatch(value.strip()):
        advice = "give lists from .jsonl or a data frame, or names with a separator between"
        raise InputError(f"{location}: the label is {_short(value)}, a list written as one text: {advice}")
    if isinstance(value, str) and separator is not None:
        value = [part.strip() for part in value.split(separator) if part.strip()]
    if isinstance(value, int | float) and value == IGNORED:
        raise InputError(
            f"{location}: the label is {IGNORED}, which other libraries use for no label: leave the row out"
        )
    if isinstance(value, float) and not value.is_integer():
        raise InputError(
            f"{location}: the label is {value}, expected a name or a whole number; for others use text-regression"
        )
    if isinstance(value, str | int | float):
        return Label(location, value, _NAME, (str(int(value)) if isinstance(value, float) else str(value),), (1.0,))
    if isinstance(value, Mapping) and value and all(map(_is_number, value.values())):
        if min(value.values()) < 0.0 or not _are_whole(value.values()):
            whole = math.fsum(value.values())
            raise InputError(f"{location}: the shares {_short(value)} sum to {whole:g}, expected 1, and none below 0")
        shares = {str(name): float(share) for name, share in value.items() if share > 0.0}
        return Label(location, value, _SHARES, tuple(shares), tuple(shares.values()))
    if isinstance(value, list | tuple) and value and all(map(_is_number, value)):
        if all(0.0 <= one <= 1.0 for one in value):
            return Label(location, value, _NUMBERS, (), tuple(map(float, value)))
        raise InputError(
            f"{location}: the label is {_short(value)}, expected names, or for each label a number from 0 to 1"
        )
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return Label(location, value, _NAMES, tuple(map(str, value)), (1.0,) * len(value))
    raise InputError(f"{location}: the label is {_short(value)}, expected a name, several, or a share of each label")


def _are_whole(shares: Iterable[float]) -> bool:
    return math.isclose(math.fsum(shares), 1.0, abs_tol=1e-3)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return shorten(repr(value), 60)


def summarise_labels(labels: Sequence[Label], classes: Sequence[str] | None) -> LabelSummary:
    """The kind and the classes of a column of labels.

    classes: the expected classes in order; None for those that occur: whole numbers by size, else alphabetically.
    Raises InputError for a row of another form than the first, a label that is not among the classes, and a class
    without rows.
    """
    kind = kind_of(labels)
    if labels[0].form == _NUMBERS:
        _check_widths(labels)
        sums = [sum(one > 0.5 for one in column) for column in zip(*(label.shares for label in labels))]
        return LabelSummary(kind, tuple(classes or map(str, range(len(sums)))), tuple(sums), len(labels))
    row_labels = _normalise_spelling([label.names for label in labels], classes)
    counts = Counter(name for names in row_labels for name in set(names))
    if classes is None:
        warn_of_misspelt(labels, row_labels, counts)
        classes = sorted_labels(counts)
    else:
        _check_classes(labels, row_labels, counts, classes)
    return LabelSummary(kind, tuple(classes), tuple(counts[name] for name in classes), len(labels))


def _check_classes(
    labels: Sequence[Label], row_labels: Sequence[Sequence[str]], counts: Mapping[str, int], classes: Sequence[str]
) -> None:
    """Raises InputError for labels that are not among the classes, and for classes without rows."""
    for label, names in zip(labels, row_labels):
        for name in names:
            if name not in classes:
                raise unknown_label_error(name, label.location, classes)
    if empty := [name for name in classes if not counts[name]]:
        raise InputError(
            f"no row has the label {join_names(map(repr, empty))}: leave it out of classes, or add rows of it"
        )


def _normalise_spelling(row_labels: Sequence[Sequence[str]], classes: Sequence[str] | None) -> list[list[str]]:
    """The labels of each row as spelled in `classes`; without classes, 1.0 becomes 1 where all are whole numbers."""
    names = {name for row in row_labels for name in row}
    found = {name: _whole_number(name) if classes is None else matching_label(name, classes) for name in names}
    if classes is None and None in found.values():
        return [list(row) for row in row_labels]
    return [[name if (one := found[name]) is None else one for name in row] for row in row_labels]


def _whole_number(name: str) -> str | None:
    """A whole number without its .0; None for another name."""
    found = _WHOLE.fullmatch(name)
    return None if found is None else found[1]


def kind_of(labels: Sequence[Label]) -> str:
    """The kind of a column, one of KINDS. Lists of numbers are shares where each sums to 1, else one number from 0 to 1
    for each label. Raises InputError where rows differ in form."""
    first = labels[0]
    for label in labels:
        if label.form != first.form:
            both = f"{label.location}: the label is {label.form}, and that of {first.location} is {first.form}"
            raise InputError(f"{both}: expected the same in every row")
    if first.form == _NUMBERS:
        return "soft" if all(_are_whole(label.shares) for label in labels) else "multiple"
    return {_NAME: "single", _NAMES: "multiple", _SHARES: "soft"}[first.form]


def matches_kind(kind: str, labels: Sequence[Label]) -> bool:
    """Whether these labels can be scored as labels of a kind. A single name is also one of several, or a share of 1;
    and lists of numbers of the kind "multiple" may sum to 1 by chance."""
    return kind_of(labels) in (kind, "single") or (kind == "multiple" and labels[0].form == _NUMBERS)


def check_kind(kind: str, labels: Sequence[Label]) -> None:
    """Raises InputError for held-out labels of another kind than the training labels."""
    if not labels or matches_kind(kind, labels):
        return
    strange = next((one for one in labels if one.form != _NUMBERS or not _are_whole(one.shares)), labels[0])
    message = f"{strange.location}: the label is {_short(strange.value)}, and the labels of this training are"
    raise InputError(f"{message} {KINDS[kind]}: expected the same in every row")


def _check_widths(labels: Sequence[Label]) -> None:
    first = labels[0]
    for label in labels:
        if len(label.shares) != len(first.shares):
            many = f"{format_count(len(label.shares), 'number')}, and that of {first.location} {len(first.shares)}"
            raise InputError(f"{label.location}: the label has {many}: expected one for each label")


def column_label_names(labels: Iterable[Label]) -> tuple[str, ...]:
    """The labels named in a column, sorted; empty for lists of numbers."""
    return sorted_labels({name for label in labels for name in label.names})


def sorted_labels(names: Iterable[str]) -> tuple[str, ...]:
    """The names sorted by size where all are whole numbers, else alphabetically."""
    found = list(names)
    whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if whole else 0, name)))


def unknown_label_error(name: str, location: str, classes: Sequence[str]) -> InputError:
    """The error for a label that is not among the classes."""
    return InputError(
        f"{location}: the label {_short(name)} is not one of {join_names(classes)}{did_you_mean(name, classes)}"
    )


def warn_of_misspelt(labels: Sequence[Label], row_labels: Sequence[Sequence[str]], counts: Mapping[str, int]) -> None:
    """Warns of labels that may be misspelt: those of a single row that resemble a frequent one, and those that differ
    only in case, outer spaces or the Unicode form of the same letters, which looks the same."""
    if len(counts) > MAX_COMPARED:
        return
    if (truths := {"True", "False"} & {*counts}) and (numbers := {"0", "1"} & {*counts}):
        log.warning(
            "the labels %s occur beside %s: are they the same?", *(join_names(sorted(x)) for x in (truths, numbers))
        )
    last = {name: label.location for label, names in zip(labels, row_labels) for name in names}
    folded: dict[str, str] = {}
    doubtful: list[tuple[str, str]] = []
    for name in sorted(counts, key=lambda one: -counts[one]):
        other = folded.setdefault(unicodedata.normalize("NFKC", name.strip()).casefold(), name)
        if other == name and counts[name] == 1 and any(sign.isalpha() for sign in name):  # not a number or a date
            frequent = [one for one in counts if counts[one] > 1]
            other = next(iter(difflib.get_close_matches(name, frequent, n=1, cutoff=MIN_SIMILARITY)), name)
        if other != name:
            doubtful.append((name, other))
    for name, other in doubtful[:MAX_WARNED]:
        many = f"in one row alone ({last[name]})" if counts[name] == 1 else f"in {counts[name]} rows"
        looks_identical = unicodedata.normalize("NFKC", name) == unicodedata.normalize("NFKC", other)
        one, two = map(ascii if looks_identical else repr, (name, other))
        advice = "they differ only by the spaces at their ends" if name.strip() == other.strip() else "is it misspelt?"
        log.warning("the label %s occurs %s, and %s in %d: %s", one, many, two, counts[other], advice)
    if len(doubtful) > MAX_WARNED:
        more = format_count(len(doubtful) - MAX_WARNED, "more label is", "more labels are")
        log.warning("%s similar to others: is this the right column?", more)


# -- targets ----------------------------------------------------------------------------------------------------------


def label_id(name: str, location: str, labels: Sequence[str]) -> int:
    """The id of a label. Raises InputError for a name that is neither a label nor the id of one."""
    if (found := find_label_id(name, labels)) is None:
        raise unknown_label_error(name, location, labels)
    return found


def find_label_id(name: str, labels: Sequence[str]) -> int | None:
    """The id of a label; None where there is no such label. A whole number that is no label itself is read as an id, as
    in the reference, unless labels are numbers."""
    if (found := matching_label(name, labels)) is not None:
        return labels.index(found)
    number = int(name) if name.isdecimal() and len(name) <= 18 else len(labels)
    are_numbers = any(label.isdecimal() or _whole_number(label) for label in labels)
    return number if number < len(labels) and not are_numbers else None


def matching_label(name: str, labels: Sequence[str]) -> str | None:
    """The label that a name stands for: the name itself, or where labels are whole numbers the one of equal value,
    since some files have 1.0 where others have 1. None where there is no such label."""
    if name in labels:
        return name
    number, numbers = _whole_number(name), [_whole_number(label) for label in labels]
    once = number is not None and None not in numbers and numbers.count(number) == 1
    return labels[numbers.index(number)] if once else None


def label_target(kind: str, label: Label, labels: Sequence[str]) -> int | list[float]:
    """The target of a label: its id for the kind "single", else for each label its share, or 0 or 1."""
    if kind == "single":
        return label_id(label.names[0], label.location, labels)
    if label.form == _NUMBERS:
        if len(label.shares) != len(labels):
            many = format_count(len(label.shares), "number")
            raise InputError(f"{label.location}: the label has {many}, and there are {len(labels)} labels")
        return list(label.shares)
    found = [0.0] * len(labels)
    for name, share in zip(label.names, label.shares):
        number = label_id(name, label.location, labels)
        if found[number] and label.form != _SHARES:
            raise InputError(f"{label.location}: the label {_short(label.value)} names one twice")
        found[number] += share  # two spellings of one label add up
    return found
