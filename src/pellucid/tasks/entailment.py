"""The labels of models of natural language inference, recognized by their names, which differ between authors."""

import re
from collections.abc import Sequence

DENIALS = ("not", "no", "non")
"""Words that negate a label, as in "not_entailment"."""


def entailment_index(labels: Sequence[str]) -> int | None:
    """The index of the label for entailment, such as "entailment", "ENTAILED" or "isEntailment"; None for none."""
    return _label_index(labels, "entail")


def contradiction_index(labels: Sequence[str]) -> int | None:
    """The index of the label for contradiction; of two labels, the one that is not entailment; None for none."""
    entails, contradicts = _label_index(labels, "entail"), _label_index(labels, "contrad")
    if contradicts is None and len(labels) == 2 and entails is not None:
        return 1 - entails
    return contradicts


def _label_index(labels: Sequence[str], beginning: str) -> int | None:
    """The first label with a word that begins so, and with none that negates it."""
    for i, words in enumerate(map(_words, labels)):
        if any(word.startswith(beginning) for word in words) and not any(word in DENIALS for word in words):
            return i
    return None


def _words(label: str) -> list[str]:
    """The words of a label in lower case: "notEntailed" and "NOT_ENTAILED" are two."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", spaced)]
