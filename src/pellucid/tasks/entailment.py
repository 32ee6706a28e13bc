"""What the labels of a model of natural language inference mean, by their names; authors write them differently."""

import re
from collections.abc import Sequence

DENIALS = ("not", "no", "non")
"""Words that turn the meaning of a label round, as in "not_entailment"."""


def entailment(labels: Sequence[str]) -> int | None:
    """The label that means "this follows", such as "entailment", "ENTAILED" or "isEntailment"; None for none."""
    return next(
        (i for i, words in enumerate(map(_words, labels)) if _says(words, "entail") and not _denies(words)), None
    )


def contradiction(labels: Sequence[str]) -> int | None:
    """The label that means "the contrary follows"; of two labels, the one that is not entailment; None for none."""
    entails = entailment(labels)
    for i, words in enumerate(map(_words, labels)):
        if _says(words, "contrad") and not _denies(words):
            return i
    return 1 - entails if len(labels) == 2 and entails is not None else None


def _says(words: Sequence[str], beginning: str) -> bool:
    return any(word.startswith(beginning) for word in words)


def _denies(words: Sequence[str]) -> bool:
    return any(word in DENIALS for word in words)


def _words(label: str) -> list[str]:
    """The words of a label in small letters: "notEntailed" and "NOT_ENTAILED" are two."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", apart)]
