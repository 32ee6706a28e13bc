"""What a column of labels holds: one label for each row, several, or shares of them; and which labels there are."""

import difflib
import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pellucid.errors import InputError, counted, near, several, short
from pellucid.training.data import place
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Fields

log = logging.getLogger("pellucid")

KINDS = {"single": "one name each", "multiple": "several labels each", "soft": "shares that sum to 1"}
"""One label; any number of labels; a share of each label; and what an error calls them."""

ALIKE = 0.8
"""From such a likeness on, a label that stands once may be another one misspelt."""

MOST_COMPARED = 1000
"""Labels that are compared each with each other."""

MOST_TOLD = 5
"""Labels of which it is said that they may be misspelt."""


_WHOLE = re.compile(r"(?:-(?=0))?(0|-?[1-9]\d{0,17})(\.0+)?")
"""How a whole number is written, also by those who write it as a float; 007 is a name, and -0.0 is 0."""

_LISTED = re.compile(r"""\[(["'].*|\d.*,.*)?\]""", re.DOTALL)
"""How a list looks that somebody wrote into a table."""


class Seen(NamedTuple):
    """What the labels of some rows are.

    kind: one of KINDS.  classes: in order; of numbers by place "0", "1", ...  counts: rows with each of them.
    """

    kind: str
    classes: tuple[str, ...]
    counts: tuple[int, ...] = ()
    rows: int = 0


def _by_place(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_number, value))


def seen(places: Sequence[str], values: Sequence[Any], classes: Sequence[str] | None) -> Seen:
    """The kind and the classes of a column of labels.

    places: where each of them stands, for errors.
    classes: those that there are to be, in order; None for those that stand there: whole numbers in order, else by
        alphabet.
    Raises InputError for labels that are none, for a row of another kind than the first, a label that is not among the
    classes, and a class without rows.
    """
    kind = kind_of(places, values)
    if _by_place(values[0]):
        _check_widths(places, values)
        sums = [sum(one > 0.5 for one in column) for column in zip(*values)]
        return Seen(kind, tuple(classes or map(str, range(len(sums)))), tuple(sums), len(values))
    held = _in_one_spelling([*map(names_of, values)], classes)
    counts = Counter(name for names in held for name in set(names))
    if classes is None:
        warn_of_misspelt(places, held, counts)
        classes = in_order(counts)
    else:
        _check_classes(places, held, counts, classes)
    return Seen(kind, tuple(classes), tuple(counts[name] for name in classes), len(values))


def _check_classes(
    places: Sequence[str], held: Sequence[Sequence[str]], counts: Mapping[str, int], classes: Sequence[str]
) -> None:
    """Refuses labels that are none of the classes, and classes without rows."""
    for where, names in zip(places, held):
        for name in names:
            if name not in classes:
                raise unknown(name, where, classes)
    if empty := [name for name in classes if not counts[name]]:
        raise InputError(
            f"no row has the label {several(map(repr, empty))}: leave it out of classes, or add rows of it"
        )


def _in_one_spelling(held: Sequence[Sequence[str]], classes: Sequence[str] | None) -> list[list[str]]:
    """The labels of each row as `classes` have them; without these 1 where all are whole numbers and some 1.0."""
    names = {name for row in held for name in row}
    found = {name: _whole(name) if classes is None else as_label(name, classes) for name in names}
    if classes is None and None in found.values():
        return [list(row) for row in held]
    return [[name if (one := found[name]) is None else one for name in row] for row in held]


def _whole(name: str) -> str | None:
    """A whole number without its .0; None for what is none."""
    found = _WHOLE.fullmatch(name)
    return None if found is None else found[1]


def check_no_lists(rows: Sequence[Fields]) -> None:
    """Refuses lists in a table, such as pandas writes them, which would be labels of their own."""
    for row in rows:
        if isinstance(label := row.get("label"), str) and _LISTED.fullmatch(label.strip()):
            advice = "give lists from .jsonl or a data frame, or names with a separator between"
            raise InputError(f"{place(row)}: the label is {_short(label)}, a list written as one text: {advice}")


def kind_of(places: Sequence[str], values: Sequence[Any]) -> str:
    """One of KINDS. Lists of numbers are shares where each sums to 1, else one number, 0 to 1, for each label."""
    forms = [_form(value, where) for where, value in zip(places, values)]
    for where, form in zip(places, forms):
        if form != forms[0]:
            both = f"{where}: the label is {form}, and that of {places[0]} is {forms[0]}"
            raise InputError(f"{both}: expected the same in every row")
    if forms[0] == "numbers by place":
        sums = [math.isclose(math.fsum(value), 1.0, abs_tol=1e-3) for value in values]
        return "soft" if all(sums) else "multiple"
    return {"a name": "single", "a list of names": "multiple", "shares by name": "soft"}[forms[0]]


def fits(kind: str, places: Sequence[str], values: Sequence[Any]) -> bool:
    """Whether these labels can be judged as labels of a kind. A name alone is one of several, and the whole share; and
    numbers by place may sum to 1 by chance where each says whether its label holds."""
    found = kind_of(places, values)
    return found in (kind, "single") or (kind == "multiple" and _by_place(values[0]))


def check_fits(kind: str, places: Sequence[str], values: Sequence[Any]) -> None:
    """Raises InputError for held-out labels that are of another kind than those that are learned."""
    if not values or fits(kind, places, values):
        return
    whole = [_by_place(value) and math.isclose(math.fsum(value), 1.0, abs_tol=1e-3) for value in values]
    i = whole.index(False) if False in whole else 0
    said = f"{places[i]}: the label is {_short(values[i])}, and what is learned is"
    raise InputError(f"{said} {KINDS[kind]}: expected the same in every row")


def _form(value: Any, where: str) -> str:
    if isinstance(value, int | float) and value == IGNORED:
        raise InputError(f"{where}: the label is {IGNORED}, by which others say that there is none: leave the row out")
    if isinstance(value, str | bool | int):
        return "a name"
    if isinstance(value, float):
        if value.is_integer():
            return "a name"
        raise InputError(
            f"{where}: the label is {value}, expected a name or a whole number; for others use text-regression"
        )
    if isinstance(value, Mapping) and value and all(map(_number, value.values())):
        _check_shares(value, where)
        return "shares by name"
    if _by_place(value):
        if all(0.0 <= one <= 1.0 for one in value):
            return "numbers by place"
        raise InputError(
            f"{where}: the label is {_short(value)}, expected names, or for each label a number from 0 to 1"
        )
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return "a list of names"
    raise InputError(f"{where}: the label is {_short(value)}, expected a name, several, or a share of each label")


def _check_shares(shares: Mapping[str, float], where: str) -> None:
    whole = math.fsum(shares.values())
    if min(shares.values()) < 0.0 or not math.isclose(whole, 1.0, abs_tol=1e-3):
        raise InputError(f"{where}: the shares {_short(shares)} sum to {whole:g}, expected 1, and none below 0")


def _check_widths(places: Sequence[str], values: Sequence[Sequence[float]]) -> None:
    for where, value in zip(places, values):
        if len(value) != len(values[0]):
            many = f"{counted(len(value), 'number')}, and that of {places[0]} {len(values[0])}"
            raise InputError(f"{where}: the label has {many}: expected one for each label")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    return short(repr(value), 60)


def names_of(value: Any) -> list[str]:
    """The labels of one row."""
    if isinstance(value, Mapping):
        return [str(name) for name, share in value.items() if share > 0.0]
    if isinstance(value, list | tuple):
        return [str(name) for name in value]
    return [str(int(value)) if isinstance(value, float) else str(value)]


def held_names(values: Sequence[Any]) -> tuple[str, ...]:
    """The labels that stand in a column, in order; none where numbers say by their place how much of each."""
    if not values or _by_place(values[0]):
        return ()
    return in_order({name for value in values for name in names_of(value)})


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Whole numbers by their size, else all by alphabet."""
    found = list(names)
    whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in found)
    return tuple(sorted(found, key=lambda name: (int(name) if whole else 0, name)))


def unknown(name: str, where: str, classes: Sequence[str]) -> InputError:
    """The sentence for a label that is not among those that are learned."""
    return InputError(f"{where}: the label {_short(name)} is not one of {several(classes)}{near(name, classes)}")


def warn_of_misspelt(places: Sequence[str], held: Sequence[Sequence[str]], counts: Mapping[str, int]) -> None:
    """Says which labels may be others misspelt: those of one row that are near another, and those that differ in case
    alone, or in how Unicode writes the same letters, which no eye can see."""
    if len(counts) > MOST_COMPARED:
        return
    if (truths := {"True", "False"} & {*counts}) and (numbers := {"0", "1"} & {*counts}):
        log.warning(
            "the labels %s stand beside %s: are they the same?", *(several(sorted(x)) for x in (truths, numbers))
        )
    last = {name: where for where, names in zip(places, held) for name in names}
    folded: dict[str, str] = {}
    told: list[tuple[str, str]] = []
    for name in sorted(counts, key=lambda one: -counts[one]):
        other = folded.setdefault(unicodedata.normalize("NFKC", name.strip()).casefold(), name)
        if other == name and counts[name] == 1 and any(sign.isalpha() for sign in name):  # no number, and no date
            often = [one for one in counts if counts[one] > 1]
            other = next(iter(difflib.get_close_matches(name, often, n=1, cutoff=ALIKE)), name)
        if other != name:
            told.append((name, other))
    for name, other in told[:MOST_TOLD]:
        many = f"in one row alone ({last[name]})" if counts[name] == 1 else f"in {counts[name]} rows"
        unseen = unicodedata.normalize("NFKC", name) == unicodedata.normalize("NFKC", other)
        one, two = map(ascii if unseen else repr, (name, other))
        doubt = "they differ by the spaces at their ends alone" if name.strip() == other.strip() else "is it misspelt?"
        log.warning("the label %s stands %s, and %s in %d: %s", one, many, two, counts[other], doubt)
    if len(told) > MOST_TOLD:
        log.warning("%d more labels are near others: is this the right column?", len(told) - MOST_TOLD)


# -- labels as a model learns them ------------------------------------------------------------------------------------


def number_of(name: str, where: str, labels: Sequence[str]) -> int:
    """The number of a label. A whole number that is no label itself is the number of one, as the reference takes it."""
    if (found := as_label(name, labels)) is not None:
        return labels.index(found)
    if is_number_of(name, labels):
        return int(name)
    raise unknown(name, where, labels)


def as_label(name: str, labels: Sequence[str]) -> str | None:
    """The label that is meant: the name itself, or where labels are whole numbers the one of the same size, since some
    files write 1.0 where others write 1. None where no label is."""
    if name in labels:
        return name
    number, numbers = _whole(name), [_whole(label) for label in labels]
    once = number is not None and None not in numbers and numbers.count(number) == 1
    return labels[numbers.index(number)] if once else None


def is_number_of(name: str, labels: Sequence[str]) -> bool:
    """Whether a name says the number of a label."""
    number = int(name) if name.isdecimal() and len(name) <= 18 else len(labels)
    return number < len(labels) and not any(label.isdecimal() or _whole(label) for label in labels)


def target(kind: str, value: Any, where: str, labels: Sequence[str]) -> int | list[float]:
    """A label as the model learns it: its number, or a share (of each label) or a 0 or 1 (for each)."""
    if kind == "single":
        return number_of(names_of(value)[0], where, labels)
    if _by_place(value):
        if len(value) != len(labels):
            raise InputError(
                f"{where}: the label has {counted(len(value), 'number')}, and there are {len(labels)} labels"
            )
        return [float(one) for one in value]
    found = [0.0] * len(labels)
    for name in names_of(value):
        number = number_of(name, where, labels)
        if found[number] and not isinstance(value, Mapping):
            raise InputError(f"{where}: the label {_short(value)} names one twice")
        found[number] += float(value[name]) if isinstance(value, Mapping) else 1.0  # two spellings have two shares
    return found
