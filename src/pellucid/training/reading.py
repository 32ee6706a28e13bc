"""Texts of rows as a model reads them: checked, cut where they are too long, and counted."""

from collections.abc import Sequence

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.text import Encoded
from pellucid.text.cut import check_has_tokens, warn_of_truncation
from pellucid.training.data import column_texts, is_blank, row_location
from pellucid.training.objective import Fields


def token_limit(loaded: Loaded, max_length: int | None) -> int | None:
    """How many tokens of a row are read: what was asked for, and no more than the model was made for; None for all."""
    own = loaded.max_length
    _check(max_length, own)
    return own if max_length is None else max_length


def row_length(loaded: Loaded, max_length: int | None, default_max_length: int) -> int:
    """Positions of a packed row: what was requested, and no more than the model has; else what the model was made for,
    `default_max_length` at most. The tokenizer's own limit is meant for one text."""
    _check(max_length, loaded.module.embeddings.position.length)
    return max_length or min(loaded.config.longest or default_max_length, default_max_length)


def _check(max_length: int | None, own: int | None) -> None:
    if max_length is not None and own is not None and max_length > own:
        raise InputError(f"max_length is {max_length}, and this model reads {own} tokens at once at most")


def encode_rows(loaded: Loaded, rows: Sequence[Fields], max_length: int | None) -> list[Encoded]:
    """The column `text` of each row, and `text_pair` where something stands in it; what is too long is cut, the longer
    of a pair first, and one note counts how often."""
    tokenizer, max_tokens = loaded.required_tokenizer, token_limit(loaded, max_length)
    ones = column_texts(rows, "text")
    paired = [i for i, row in enumerate(rows) if not is_blank(row.get("text_pair"))]
    others = column_texts([rows[i] for i in paired], "text_pair")
    found: dict[int, Encoded] = {}
    alone = sorted(set(range(len(rows))) - set(paired))
    found |= zip(alone, tokenizer.encode([ones[i] for i in alone], max_length=max_tokens))
    found |= zip(paired, tokenizer.encode([ones[i] for i in paired], others, max_length=max_tokens))
    for i, row in enumerate(rows):
        check_has_tokens(found[i].ids, f"{row_location(row)}: 'text'")
    warn_of_truncation(sum(one.cut > 0 for one in found.values()), len(rows), max_tokens)
    return [found[i] for i in range(len(rows))]
