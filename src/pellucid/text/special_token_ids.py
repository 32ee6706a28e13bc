"""Special token ids of a model that is built: those of its tokenizer, since a family's defaults are of another one."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from pellucid.config import Config
from pellucid.errors import Argument, InputError, blaming
from pellucid.text.tokenizer import Tokenizer

log = logging.getLogger("pellucid")

_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id")
_START = "decoder_start_token_id"


def check_config(config: Any) -> Config:
    """Returns the config. Raises InputError for anything else."""
    if not isinstance(config, Config):
        raise InputError(f"config is {type(config).__name__}, expected a pellucid.Config: Config.of('bert') is one")
    return config


def check_tokenizer(tokenizer: object) -> None:
    """Raises InputError for anything but a tokenizer."""
    if not isinstance(tokenizer, Tokenizer):
        kind = type(tokenizer).__name__
        raise InputError(f"tokenizer is {kind}, expected that of a model of pellucid, or of train_tokenizer")


def check_vocabulary_rows(config: Config, tokenizer: Tokenizer) -> None:
    """Raises InputError where the tokenizer's largest id is beyond the token embedding table."""
    has_source = config.decoder is not None and config.decoder.source_vocab_size is not None
    name = "source_vocab_size" if has_source else "vocab_size"
    if tokenizer.largest_id >= (rows := getattr(config, name)):
        least = tokenizer.largest_id + 1
        raise InputError(Argument(name), f" is {rows:,}, expected at least {least:,}, the tokens of the tokenizer")


def special_token_ids(tokenizer: Tokenizer, defaults: Config, stated: Mapping[str, Any]) -> dict[str, Any]:
    """The special token ids of a model with this tokenizer, by config key; None for those that it does not have.

    defaults: the family's own config: it states which ids an encoder has, since BERT's files have no key for an
        end-of-text token, and which other token starts the decoder of an encoder-decoder.
    stated: ids that were passed, which take precedence over the tokenizer's.
    """
    keys = [key for key in _KEYS if defaults.kind != "encoder" or getattr(defaults, key) is not None]
    ids = {key: stated.get(key, getattr(tokenizer, key)) for key in keys}
    if defaults.decoder is not None:
        same = [ids[key] for key in keys if getattr(defaults, key) == defaults.decoder.decoder_start_token_id]
        own = next((one for one in (*same, *ids.values()) if isinstance(one, int)), None)
        ids[_START] = stated.get(_START, own)
    return ids


def with_tokenizer_ids(config: Config, tokenizer: Tokenizer | None, fixed: Collection[str] = ()) -> Config:
    """The config with the special token ids of the tokenizer; unchanged where there is none.

    The tokenizer's ids take precedence, except for keys in `fixed`, since files of the family have no other; an id that
    it does not name is kept if its vocabulary has it. A warning states what is overridden, except family defaults. A
    model with two vocabularies is unchanged: its tokenizer is of the source, the ids of the target.
    Raises InputError for anything but a tokenizer, and for an embedding table that is too small.
    """
    if tokenizer is None:
        return config
    check_tokenizer(tokenizer)
    check_vocabulary_rows(config, tokenizer)
    if config.decoder is not None and config.decoder.source_vocab_size is not None:
        return config
    defaults, facts = Config.of(config.family), config.facts()
    keys = [key for key in special_token_ids(tokenizer, defaults, {}) if key in facts]
    chosen = {
        key: _choose_ids(tokenizer, key, facts[key], getattr(defaults, key), key in fixed)
        for key in keys
        if key != _START
    }
    if _START in keys and facts[_START] != getattr(defaults, _START):
        chosen[_START] = facts[_START]
    found = {key: one for key, one in special_token_ids(tokenizer, defaults, chosen).items() if key in keys}
    if found.get(_START, 0) is None:
        del found[_START]
    with blaming("the ids of the tokenizer", InputError):
        return config.replace(**found)


def _choose_ids(tokenizer: Tokenizer, key: str, configured: Any, default: Any, fixed: bool) -> Any:
    """The id, or the ids that end a text, chosen from those of the config and of the tokenizer.

    A padding token that also begins or ends a text is not adopted: its embedding would start at zero and never train.
    """
    own = getattr(tokenizer, key)
    if key == "pad_token_id" and own in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        own = None
    ids = configured if isinstance(configured, tuple) else () if configured is None else (configured,)
    if own is None:
        stays = all(one <= tokenizer.largest_id for one in ids)
        if not stays and configured != default:
            log.warning("%s is %s in the config, which the tokenizer does not have: it is set to None", key, configured)
        return configured if stays else None
    if own in ids:
        return configured
    if fixed or (ids != () and configured != default) or (configured is None and default is not None):
        both = "none" if configured is None else configured, own, "the config" if fixed else "the tokenizer"
        log.warning("%s is %s in the config, and %s by the tokenizer: that of %s is used", key, *both)
    return configured if fixed else own
