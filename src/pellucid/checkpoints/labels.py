"""Label names in a `config.json`."""

import logging
import re
from pathlib import Path
from typing import Any

from pellucid.config import Head
from pellucid.config.checks import check_count
from pellucid.errors import InputError, join_names, shorten

log = logging.getLogger("pellucid")

MAX_LABELS = 100_000
"""Each label gets a name, and a file of a few bytes must not be able to request millions."""

_UNNAMED = re.compile(r"LABEL_\d+")
"""The reference's default label names."""


def without_invalid_labels(raw: dict[str, Any], head: Head | None, path: Path) -> dict[str, Any]:
    """The facts without invalid label names, where the file's own head has no labels; warns of them."""
    id2label = raw.get("id2label")
    if id2label is None or (head is not None and head.answers == "labels"):
        return raw
    if _is_numbered(id2label) and 0 < len(id2label) == len(set(map(str, id2label.values()))):
        return raw
    problem = f"{shorten(ascii(id2label))}, expected names for the numbers from 0, no two alike"
    log.warning(
        "%s: id2label is %s; it is left alone, and a head with labels calls them LABEL_0 and so on", path, problem
    )
    return ({"num_labels": len(id2label)} if isinstance(id2label, dict) and id2label else {}) | without_labels(raw)


def without_labels(raw: dict[str, Any]) -> dict[str, Any]:
    """The facts of a file without its label names."""
    return {key: value for key, value in raw.items() if key not in ("id2label", "label2id")}


def _is_numbered(id2label: Any) -> bool:
    return isinstance(id2label, dict) and sorted(id2label) == sorted(str(i) for i in range(len(id2label)))


def labels_of(raw: dict[str, Any]) -> tuple[str, ...]:
    """The label names of a file; the reference's default names where it has only their number."""
    id2label = raw.get("id2label")
    if id2label is None:
        number = raw.get("num_labels", 2)
        check_count("num_labels", number, maximum=MAX_LABELS)
        return tuple(f"LABEL_{i}" for i in range(number))
    if not _is_numbered(id2label):
        raise InputError(f"id2label is {shorten(ascii(id2label))}, expected names for the numbers from 0")
    return tuple(str(id2label[str(i)]) for i in range(len(id2label)))


def warn_of_label_conflict(raw: dict[str, Any], labels: tuple[str, ...], path: Path) -> None:
    """Warns where a file gives a label two ids; the reference's zero-shot classification would use the other one."""
    label2id = raw.get("label2id")
    if raw.get("id2label") is None or not isinstance(label2id, dict):
        return
    ids = {name: str(i) for i, name in enumerate(labels)}
    stated_ids = {str(name): str(number) for name, number in label2id.items()}
    stated_ids = {name: one for name, one in stated_ids.items() if name in ids or not _UNNAMED.fullmatch(name)}
    conflicting = [name for name in {**ids, **stated_ids} if ids.get(name) != stated_ids.get(name)]
    if stated_ids and conflicting:
        shown = join_names(map(ascii, conflicting))
        log.warning("%s: id2label and label2id disagree about %s; id2label is followed: correct the other", path, shown)
