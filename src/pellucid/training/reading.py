"""Tokenizes the texts of rows for a model, with checks and truncation."""

from collections.abc import Sequence

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.text import Encoded
from pellucid.text.truncation import check_has_tokens, warn_of_truncation
from pellucid.training.data import column_texts, is_blank, row_location
from pellucid.training.objective import Fields


def token_limit(loaded: Loaded, max_length: int | None) -> int | None:
    """The most tokens of a row: `max_length` or the model's limit; None for none. Raises InputError above the limit."""
    own = loaded.max_length
    _check(max_length, own)
    return own if max_length is None else max_length


def row_length(loaded: Loaded, max_length: int | None, default_max_length: int) -> int:
    """Positions of a packed row: `max_length`, or the model's own limit, at most `default_max_length`. The tokenizer's
    limit does not apply, as it is meant for one text. Raises InputError where `max_length` exceeds the positions."""
    _check(max_length, loaded.module.embeddings.position.length)
    return max_length or min(loaded.config.max_sequence_length or default_max_length, default_max_length)


def _check(max_length: int | None, own: int | None) -> None:
    if max_length is not None and own is not None and max_length > own:
        raise InputError(f"max_length is {max_length}, and this model reads {own} tokens at once at most")


def encode_rows(loaded: Loaded, rows: Sequence[Fields], max_length: int | None) -> list[Encoded]:
    """Tokenizes `text` of each row, with `text_pair` where it is not blank. Rows that are too long are truncated, the
    longer text of a pair first, which is logged. Raises InputError, which names the row, for a text without tokens."""
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
