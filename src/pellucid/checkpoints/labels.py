"""The names of labels, as a `config.json` says them."""

import logging
import re
from pathlib import Path
from typing import Any

from pellucid.config import Head
from pellucid.config.checks import check_count
from pellucid.errors import InputError, join_names, shorten

log = logging.getLogger("pellucid")

MOST_LABELS = 100_000
"""Each gets a name, and a file of a few bytes must not be able to ask for millions."""

_UNNAMED = re.compile(r"LABEL_\d+")
"""What the reference calls a label that nobody has named."""


def without_bad_labels(raw: dict[str, Any], head: Head | None, path: Path) -> dict[str, Any]:
    """The facts of a file, without names of labels that are none where its own head has no labels; it says so."""
    named = raw.get("id2label")
    if named is None or (head is not None and head.answers == "labels"):
        return raw
    if _is_numbered(named) and 0 < len(named) == len(set(map(str, named.values()))):
        return raw
    wrong = f"{shorten(ascii(named))}, expected names for the numbers from 0, no two alike"
    log.warning(
        "%s: id2label is %s; it is left alone, and a head with labels calls them LABEL_0 and so on", path, wrong
    )
    return ({"num_labels": len(named)} if isinstance(named, dict) and named else {}) | without_labels(raw)


def without_labels(raw: dict[str, Any]) -> dict[str, Any]:
    """The facts of a file, without what it says of its labels beside their number."""
    return {key: value for key, value in raw.items() if key not in ("id2label", "label2id")}


def _is_numbered(named: Any) -> bool:
    return isinstance(named, dict) and sorted(named) == sorted(str(i) for i in range(len(named)))


def labels_of(raw: dict[str, Any]) -> tuple[str, ...]:
    """The names of the labels, as many as a file says; the reference's own where it names none."""
    named = raw.get("id2label")
    if named is None:
        number = raw.get("num_labels", 2)
        check_count("num_labels", number, most=MOST_LABELS)
        return tuple(f"LABEL_{i}" for i in range(number))
    if not _is_numbered(named):
        raise InputError(f"id2label is {shorten(ascii(named))}, expected names for the numbers from 0")
    return tuple(str(named[str(i)]) for i in range(len(named)))


def warn_of_label_conflict(raw: dict[str, Any], labels: tuple[str, ...], path: Path) -> None:
    """Says where a file gives a label two numbers; the reference's zero-shot classification would follow the other."""
    numbers = raw.get("label2id")
    if raw.get("id2label") is None or not isinstance(numbers, dict):
        return
    held = {name: str(i) for i, name in enumerate(labels)}
    told = {str(name): str(number) for name, number in numbers.items()}
    told = {name: one for name, one in told.items() if name in held or not _UNNAMED.fullmatch(name)}
    other = [name for name in {**held, **told} if held.get(name) != told.get(name)]
    if told and other:
        shown = join_names(map(ascii, other))
        log.warning("%s: id2label and label2id disagree about %s; id2label is followed: correct the other", path, shown)
