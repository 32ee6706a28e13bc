"""The special tokens of a model that is built: by the words that it reads, since a family's own ids are of others."""

import logging
from collections.abc import Mapping
from typing import Any

from pellucid.config import Config
from pellucid.errors import Argument, InputError
from pellucid.text.tokenizer import Tokenizer

log = logging.getLogger("pellucid")

_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")
_START = "decoder_start_token_id"


def check_words(words: object) -> None:
    """Refuses what is no tokenizer."""
    if not isinstance(words, Tokenizer):
        kind = type(words).__name__
        raise InputError(f"tokenizer is {kind}, expected that of a model of pellucid, or of train_tokenizer")


def check_rows(config: Config, words: Tokenizer) -> None:
    """Refuses a table of tokens that ends before the last token of the words."""
    apart = config.decoder is not None and config.decoder.source_vocab_size is not None
    name = "source_vocab_size" if apart else "vocab_size"
    if words.largest_id >= (rows := getattr(config, name)):
        least = words.largest_id + 1
        raise InputError(Argument(name), f" is {rows:,}, expected at least {least:,}, the tokens of the tokenizer")


def ids_by(words: Tokenizer, usual: Config, said: Mapping[str, Any]) -> dict[str, Any]:
    """The special tokens of a model of these words, by the keys of a config; None for what the tokenizer does not name.

    usual: the family's defaults, which tell what an encoder has, since files of BERT have no word for a token that ends
        a text, and by which of the others a decoder beside an encoder begins.
    said: ids that somebody stated, which count before the tokenizer's.
    """
    keys = [key for key in _KEYS if usual.kind != "encoder" or getattr(usual, key) is not None]
    ids = {key: said.get(key, getattr(words, key)) for key in keys}
    if usual.decoder is not None:
        same = [ids[key] for key in keys if getattr(usual, key) == usual.decoder.decoder_start_token_id]
        own = next((one for one in (*same, *ids.values()) if isinstance(one, int)), None)
        ids[_START] = said.get(_START, own)
    return ids


def by_words(config: Config, words: Tokenizer | None) -> Config:
    """The same facts with the special tokens of the words that are read; as they are where there are none.

    The family's own ids give way. Another id stands where the tokenizer says nothing else and has such a token; else a
    warning says that the tokenizer's is taken. Raises InputError for what is no config or no tokenizer, and for a
    table that is too small.
    """
    if not isinstance(config, Config):
        raise InputError(f"config is {type(config).__name__}, expected a pellucid.Config: Config.of('bert') is one")
    if words is None:
        return config
    check_words(words)
    check_rows(config, words)
    usual = Config.of(config.family)
    facts = config.facts()
    known = {key: facts[key] for key in ids_by(words, usual, {}) if key in facts}
    stated = {key: ids for key, ids in known.items() if ids != getattr(usual, key)}
    stands = {key: ids for key, ids in stated.items() if _agrees(words, getattr(words, key, None), ids)}
    found = {key: ids for key, ids in ids_by(words, usual, stands).items() if key in known}
    for key in stated.keys() - stands.keys():
        both = ("none" if one is None else one for one in (stated[key], found[key]))
        log.warning("%s is %s in the config, and %s by the tokenizer, which counts", key, *both)
    return config.replace(**found)


def _agrees(words: Tokenizer, own: int | None, stated: int | tuple[int, ...] | None) -> bool:
    """Whether an id, several that end a text, or none may be those of the words, which name `own`."""
    if stated is None:
        return own is None
    ids = stated if isinstance(stated, tuple) else (stated,)
    return max(ids) <= words.largest_id if own is None else own in ids
