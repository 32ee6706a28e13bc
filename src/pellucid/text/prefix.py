"""Texts behind a prefix: special tokens in it are tokens, whatever those that somebody typed in the texts are."""

from collections.abc import Iterator, Sequence

from tokenizers import Encoding

from pellucid.text.cut import truncate_pair
from pellucid.text.encoded import Encoded
from pellucid.text.tokenizer import Tokenizer


def encode_raw_with_prefix(
    tokenizer: Tokenizer, prefix: str, texts: Sequence[str], parse_special_tokens: bool, what: str
) -> list[Encoding]:
    """Each text behind the prefix, without special tokens around them.

    parse_special_tokens: whether special tokens that were typed in a text are tokens, not characters.
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
    """`Tokenizer.encode` of each text behind the prefix; what is cut off is as `truncation_side` says."""
    done = with_special_tokens(
        tokenizer, encode_raw_with_prefix(tokenizer, prefix, texts, parse_special_tokens, "text"), max_length
    )
    return [Encoded(one.ids, one.type_ids, one.tokens, one.offsets, one.special_tokens_mask, cut) for one, cut in done]


def with_special_tokens(
    tokenizer: Tokenizer, rows: Sequence[Encoding], max_length: int | None
) -> Iterator[tuple[Encoding, int]]:
    """What `encode_raw` or `encode_raw_with_prefix` gave, cut to `max_length` with special tokens around it, and how
    many tokens were cut off. Its tokens and their places become objects of Python only where somebody asks for them."""
    added = tokenizer.added_tokens(pair=False)
    for row in rows:
        cut = truncate_pair(row, None, max_length, added, "longest_first", tokenizer.truncation_side)
        yield tokenizer.post_process(row, None, True), cut


def _special_prefix_end(tokenizer: Tokenizer, prefix: str) -> int:
    """Where the last special token of a prefix ends; 0 where it has none that is not read as characters too."""
    (read,), (plain,) = (tokenizer.encode_raw([prefix], parse, "prefix") for parse in (True, False))
    special_ids = tokenizer.special_ids - {tokenizer.unk_token_id}
    ends = [end for i, (_, end) in zip(read.ids, read.offsets) if i in special_ids and read.ids != plain.ids]
    return max(ends, default=0)
