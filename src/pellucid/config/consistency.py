"""Checks of a config's facts against each other; each field's own type and range are checked where it is defined."""

from typing import TYPE_CHECKING

from pellucid.config.checks import check_token_id
from pellucid.config.positions import Learned, Rotary
from pellucid.errors import Argument, InputError

if TYPE_CHECKING:
    from pellucid.config.config import Config


def check_consistent(config: "Config") -> None:
    """Raises InputError for the first of a config's facts that does not fit the others."""
    _check_heads(config)
    _check_kind(config)
    _check_tokens(config)
    if config.head is not None and config.head.pooled and not config.pooler:
        raise InputError(f"the head {config.head.name} reads a pooler, and this {config.family} config has none")


def _check_heads(config: "Config") -> None:
    """Checks that hidden size and key-value heads can be divided among the heads of each side."""
    shared = config.attention.num_key_value_heads
    sides = [("num_attention_heads", config.num_attention_heads)]
    if config.decoder is not None:
        sides.append(("decoder_attention_heads", config.decoder.decoder_attention_heads))
    for name, heads in sides:
        if config.attention.head_dim is None and config.hidden_size % heads:
            raise InputError(
                Argument("hidden_size"),
                f" {config.hidden_size} cannot be divided evenly among ",
                Argument(name),
                f" {heads}: it must be a multiple of it",
            )
        if shared is not None and heads % shared:
            own = Argument("num_key_value_heads")
            raise InputError(Argument(name), f" {heads} cannot share ", own, f" {shared}: it must be a multiple")
        if (width := heads * config.head_dim) > 100_000_000:
            both = Argument("head_dim"), " times ", Argument(name)
            raise InputError(both, f" is {width}, expected a whole number from 1 to 100,000,000")
    if isinstance(config.attention_position, Rotary) and config.head_dim % 2:
        raise InputError(
            Argument("head_dim"),
            f" is {config.head_dim}, expected an even number: rotary positions rotate pairs of numbers",
        )


def _check_kind(config: "Config") -> None:
    """Checks for facts that only some kinds of models have."""
    if (config.decoder is None) == (config.kind == "encoder-decoder"):
        wrong = f" is {config.decoder!r} in a config of kind {config.kind!r}; encoder-decoders alone have one"
        raise InputError(Argument("decoder"), wrong)
    if config.pooler and config.kind != "encoder":
        raise InputError(Argument("pooler"), f" is True in a config of kind {config.kind!r}: only encoders have one")
    if getattr(config.position, "skip_padding", False) and config.kind != "encoder":
        raise InputError(
            Argument("skip_padding"),
            f" is True in a config of kind {config.kind!r}: encoders alone read a text in one pass, "
            "by whose tokens its positions are counted",
        )


def _check_tokens(config: "Config") -> None:
    """Checks that the padding and start tokens are rows of their tables."""
    rows, decoder, position = config.vocab_size, config.decoder, config.position
    if decoder is not None:
        check_token_id("decoder_start_token_id", decoder.decoder_start_token_id, rows)
        rows = min(rows, decoder.source_vocab_size or rows)
    if isinstance(position, Learned) and position.skip_padding:  # one row for padding; real positions come after it
        rows = min(rows, position.max_position_embeddings - 1)
        if config.pad_token_id is None:
            expected = f", and positions are counted from it: expected the id of a token, 0 to {rows - 1}"
            raise InputError(Argument("pad_token_id"), f" is {config.pad_token_id}", expected)
    check_token_id("pad_token_id", config.pad_token_id, rows)
