"""What the labels of a model of natural language inference mean, by their names; authors write them differently."""

import re
from collections.abc import Sequence

DENIALS = ("not", "no", "non")
"""Words that turn the meaning of a label round, as in "not_entailment"."""


def entailment(labels: Sequence[str]) -> int | None:
    """The label that means "this follows", such as "entailment", "ENTAILED" or "isEntailment"; None for none."""
    return _label_index(labels, "entail")


def contradiction(labels: Sequence[str]) -> int | None:
    """The label that means "the contrary follows"; of two labels, the one that is not entailment; None for none."""
    entails, contradicts = _label_index(labels, "entail"), _label_index(labels, "contrad")
    if contradicts is None and len(labels) == 2 and entails is not None:
        return 1 - entails
    return contradicts


def _label_index(labels: Sequence[str], beginning: str) -> int | None:
    """The first label with a word that begins so, and with none that turns it round."""
    for i, words in enumerate(map(_words, labels)):
        if any(word.startswith(beginning) for word in words) and not any(word in DENIALS for word in words):
            return i
    return None


def _words(label: str) -> list[str]:
    """The words of a label in small letters: "notEntailed" and "NOT_ENTAILED" are two."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", spaced)]
