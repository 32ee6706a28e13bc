"""Texts of rows as a model reads them: checked, cut where they are too long, and counted."""

import logging
from collections.abc import Sequence

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.text import Encoded, Tokenizer
from pellucid.training.data import missing, place, texts
from pellucid.training.objective import Fields

log = logging.getLogger("pellucid")


def words(loaded: Loaded) -> Tokenizer:
    """The tokenizer. Raises InputError for a model without one."""
    if loaded.tokenizer is None:
        raise InputError("this model came without a tokenizer, so it cannot learn from texts: give it one")
    return loaded.tokenizer


def limit(loaded: Loaded, max_length: int | None) -> int | None:
    """How many tokens of a row are read: what was asked for, and no more than the model was made for; None for all."""
    own = [most for most in (words(loaded).model_max_length, loaded.config.longest) if most]
    if max_length is not None and own and max_length > min(own):
        raise InputError(f"max_length is {max_length}, and this model reads {min(own)} tokens at once at most")
    return min([*own, *([max_length] if max_length is not None else [])], default=None)


def encoded(
    loaded: Loaded, rows: Sequence[Fields], max_length: int | None, first: str = "text", second: str | None = None
) -> list[Encoded]:
    """The texts of the rows; what is too long is cut, the longer of a pair first, and one note counts how often.

    first, second: columns; a row without the second, or with nothing in it, is one text and no pair.
    """
    tokenizer, most = words(loaded), limit(loaded, max_length)
    ones = texts(rows, first)
    paired = [i for i, row in enumerate(rows) if second is not None and not missing(row.get(second))]
    others = texts([rows[i] for i in paired], second) if second is not None else []
    found: dict[int, Encoded] = {}
    alone = sorted(set(range(len(rows))) - set(paired))
    found |= zip(alone, tokenizer.encode([ones[i] for i in alone], max_length=most))
    found |= zip(paired, tokenizer.encode([ones[i] for i in paired], others, max_length=most))
    for i, row in enumerate(rows):
        if not found[i].ids:
            raise InputError(f"{place(row, i)}: {first!r} has no tokens: a model reads at least one")
    cut = sum(one.cut > 0 for one in found.values())
    if cut:
        log.warning("%d of %d texts were cut to %d tokens", cut, len(rows), most)
    return [found[i] for i in range(len(rows))]
