"""Texts after a prefix, whose special tokens are read as tokens, however those in the texts are read."""

from collections.abc import Iterator, Sequence

from tokenizers import Encoding

from pellucid.text.encoded import Encoded
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.truncation import truncate_pair


def encode_raw_with_prefix(
    tokenizer: Tokenizer, prefix: str, texts: Sequence[str], parse_special_tokens: bool, what: str
) -> list[Encoding]:
    """Tokenizes each text after the prefix, without adding special tokens.

    parse_special_tokens: whether special tokens in a text are read as tokens, not characters.
    """
    end = 0 if parse_special_tokens or not prefix else _special_prefix_end(tokenizer, prefix)
    rows = tokenizer.encode_raw([prefix[end:] + text for text in texts], parse_special_tokens, what)
    if not end:
        return rows
    (special,) = tokenizer.encode_raw([prefix[:end]], True, what)
    return [Encoding.merge([special, row], True) for row in rows]


def encode_with_prefix(
    tokenizer: Tokenizer, prefix: str, texts: Sequence[str], *, max_length: int | None, parse_special_tokens: bool
) -> list[Encoded]:
    """`Tokenizer.encode` of each text after the prefix, truncated on the side that `truncation_side` states."""
    done = with_special_tokens(
        tokenizer, encode_raw_with_prefix(tokenizer, prefix, texts, parse_special_tokens, "text"), max_length
    )
    return [Encoded(one.ids, one.type_ids, one.tokens, one.offsets, one.special_tokens_mask, cut) for one, cut in done]


def with_special_tokens(
    tokenizer: Tokenizer, rows: Sequence[Encoding], max_length: int | None
) -> Iterator[tuple[Encoding, int]]:
    """Encodings truncated to `max_length` with special tokens added, each with the number of tokens cut off. Their
    tokens and offsets become Python objects only where they are read."""
    added = tokenizer.added_tokens(pair=False)
    for row in rows:
        cut = truncate_pair(row, None, max_length, added, "longest_first", tokenizer.truncation_side)
        yield tokenizer.post_process(row, None, True), cut


def _special_prefix_end(tokenizer: Tokenizer, prefix: str) -> int:
    """Where the last special token of a prefix ends; 0 where it has none, or is read as characters alike."""
    (read,), (plain,) = (tokenizer.encode_raw([prefix], parse, "prefix") for parse in (True, False))
    special_ids = tokenizer.special_ids - {tokenizer.unk_token_id}
    ends = [end for i, (_, end) in zip(read.ids, read.offsets) if i in special_ids and read.ids != plain.ids]
    return max(ends, default=0)
