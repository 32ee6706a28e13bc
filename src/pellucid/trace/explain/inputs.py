"""The checked inputs that explanations share: a text or a trace of this model, tokens, positions and heads."""

from collections.abc import Sequence

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_one_of, require_integer
from pellucid.errors import InputError, format_count, join_names, shorten
from pellucid.text import tokens_of
from pellucid.text.spelling import token_text
from pellucid.trace import Trace, record
from pellucid.trace.reading import Reading, read_texts
from pellucid.trace.trace import single_row


def read_one_text(loaded: Loaded, text: str, pair: str | None = None, decoder_text: str | None = None) -> Reading:
    """A text, or a pair of texts, as the model reads it; decoder_text: what the decoder of an encoder-decoder reads.

    Raises InputError for anything but a string, and for a text that is empty or longer than the model reads.
    """
    if decoder_text is not None and loaded.config.decoder is None:
        raise InputError(f"decoder_text was given, and a model of kind {loaded.config.kind!r} has no decoder beside it")
    if not isinstance(text, str):
        raise InputError(f"text is {type(text).__name__}, expected one text")
    (reading,) = read_texts(loaded, text, pair, decoder_text, None, None)
    if all(reading.special):
        raise InputError("the text is empty: there is nothing to explain")
    if reading.cut:
        tokens = len(reading.ids) + reading.cut
        raise InputError(
            f"the text has {tokens:,} tokens, and this model reads {loaded.max_length:,}: explain it in parts"
        )
    return reading


def as_trace(loaded: Loaded, text: str | Trace, keep: Sequence[str], decoder_text: str | None = None) -> Trace:
    """The given trace, if it is one of this model; or a trace of the given text that holds what `keep` names.

    Raises InputError for several texts, one that is empty or too long, and a trace of another model.
    """
    if isinstance(text, Trace):
        if decoder_text is not None:
            raise InputError("decoder_text was given beside a trace, which has read its own: give it to model.trace")
        if text.config != loaded.config:
            raise InputError(f"this trace is of {text.model}, whose facts are not those of this model: trace it again")
        single_row(text)
        return text
    if not isinstance(text, str):
        raise InputError(f"text is {type(text).__name__}, expected one text, or the trace of one text or pair")
    read_one_text(loaded, text, None, decoder_text)  # only to check it
    return record(loaded, text, target=decoder_text, keep=keep)


def side_of(loaded_or_trace: Loaded | Trace, side: str | None, default: str) -> str:
    """The prefix of the names of one stack: "encoder." or "decoder." in an encoder-decoder, else ""."""
    kind = loaded_or_trace.config.kind
    if side is not None:
        check_one_of("side", side, ("encoder", "decoder"))
    if kind == "encoder-decoder":
        return f"{side or default}."
    if side is not None and side != kind:
        raise InputError(f"side is {shorten(repr(side))}, and this model is of kind {kind!r}: leave it out")
    return ""


# -- words ------------------------------------------------------------------------------------------------------------


def token_id(loaded: Loaded, token: str | int, name: str = "token") -> int:
    """The id of one token of the output's vocabulary, given as it appears in a text, as the vocabulary spells it, or as
    an id.

    Raises InputError for anything that is not exactly one token of this model.
    """
    rows = loaded.config.vocab_size
    if not isinstance(token, str):
        number = require_integer(name, token, "a token or its id")
        if not 0 <= number < rows:
            raise InputError(f"{name} is id {number}, expected 0 to {rows - 1}")
        return number
    tokenizer = loaded.required_target_tokenizer
    (row,) = tokenizer.encode([token], add_special_tokens=False, parse_special_tokens=True)
    vocabulary_id = tokenizer.convert_tokens_to_ids([token])[0]
    if len(row.ids) == 1 and row.ids[0] != tokenizer.unk_token_id:
        return row.ids[0]
    if vocabulary_id is not None:
        return vocabulary_id
    if len(row.ids) < 2:
        raise InputError(f"{name} {shorten(repr(token))} is not in this vocabulary of {len(tokenizer):,} tokens")
    parts = join_names(map(repr, row.tokens))
    raise InputError(f"{name} {shorten(repr(token))} is {len(row.ids)} tokens ({parts}): give one of them, or its id")


def token_of(loaded: Loaded, number: int) -> str:
    """The token of an id of the output's vocabulary, as it appears in a text; `<7>` for an id without a token."""
    tokenizer = None if loaded.tokenizer is None else loaded.required_target_tokenizer
    (token,) = tokens_of(tokenizer, [number])
    return token if tokenizer is None else token_text(token, tokenizer.by_bytes)


# -- checks -----------------------------------------------------------------------------------------------------------


def checked_position(position: int, tokens: int) -> int:
    """An index among so many tokens, counted from 0; -1 is the last."""
    valid = f"-{tokens} to {tokens - 1} among {format_count(tokens, 'token')}"
    index = require_integer("position", position, valid)
    if not -tokens <= index < tokens:
        raise InputError(f"position is {index}, expected {valid}")
    return index % tokens


def check_head(loaded: Loaded, method: str, *names: str) -> None:
    """Raises InputError for a model without one of these heads, or whose head alone is untrained."""
    head = loaded.config.head
    if head is None or (names and head.name not in names):
        has = "no head" if head is None else f"a {head.name} head"
        expected = " or ".join(names) if names else "classification or language model"
        raise InputError(f"{method} needs a {expected} head, and this model has {has}")
    if any(part.startswith("head") for part in loaded.untrained):
        raise InputError(f"{method} would explain random numbers: the checkpoint has no {head.name} head; train it")
