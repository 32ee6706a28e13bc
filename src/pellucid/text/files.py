"""Reads a tokenizer from the files of a checkpoint in any of their formats, and writes it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from pellucid.errors import InputError, shorten
from pellucid.files import check_regular
from pellucid.text import sentencepiece
from pellucid.text.assembly import add_special_tokens, with_default_roles
from pellucid.text.bytelevel import open_bytelevel
from pellucid.text.encoded import input_names
from pellucid.text.expansion import check_charsmaps, check_growth
from pellucid.text.layouts import ROLES, Form, layout_of, pads_left, unfit_tokenizer_class
from pellucid.text.settings import read_settings, stated_length, with_token_objects, with_type_marks, without_tokens
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.tokenizer_config import add_lowercase, apply_settings, followed_settings
from pellucid.text.truncation import panics_as_errors, replace_surrogates
from pellucid.text.wordpiece import open_wordpiece

_GENERIC_CLASS, _TYPELESS_CLASS = "PreTrainedTokenizerFast", "TokenizersBackend"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
BackendAndSettings = tuple[tokenizers.Tokenizer, dict[str, Any]]


def open_tokenizer(
    folder: Path,
    *,
    max_length: int | None,
    token_types: bool | None = None,
    model_type: str | None = None,
    stated_class: object = None,
) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, or None where there is none.

    The first of these that exists is read: `tokenizer.json`, `vocab.txt`, `vocab.json` with `merges.txt`,
    sentencepiece's `spiece.model`, `sentencepiece.bpe.model` or `tokenizer.model`.

    max_length: the model's own limit in tokens; the file's is used where it is smaller.
    token_types: whether the model has token types; None without a model. Where the files list the model's inputs, types
        are returned only if listed and not False here. Where they list none, tokenizers of all classes return types for
        a model that has them (PreTrainedTokenizerFast too, as in version 4 of the reference, not in 5), except
        TokenizersBackend, which only version 5 writes; without a model, those of BERT's and ALBERT's classes do.
    model_type: the value in `config.json`; it determines the special tokens and template that older files lack.
    stated_class: `tokenizer_class` of `config.json`, used where the tokenizer's own files state none.
    """
    settings = read_settings(folder)
    if isinstance(stated_class, str):
        settings = {"tokenizer_class": stated_class} | settings
    if pads_left(settings):
        settings = {"padding_side": "left"} | settings
    name = next((name for name in _OPENERS if (folder / name).exists()), None)
    if name is None:
        return None
    listed = settings.get("model_input_names")
    if isinstance(listed, list) and listed:  # a list can rule out the types of the model
        token_types = "token_type_ids" in listed and token_types is not False
    elif settings.get("tokenizer_class") == _TYPELESS_CLASS:
        token_types = False
    elif token_types is None:
        layout = layout_of(None, settings)
        token_types = layout is not None and layout.has_token_types
    plain = name in sentencepiece.FILES and layout_of(model_type, settings, "sentencepiece") is None
    if (
        name != "tokenizer.json"
        and (other := unfit_tokenizer_class(settings, _FORM_OF_FILE.get(name, "sentencepiece"))) is not None
    ):
        raise InputError(
            f"{folder}: tokenizer_class is {shorten(repr(other))}, and {name} does not say how that class splits "
            "words: add its tokenizer.json"
        )
    check_regular(folder / name)
    backend, settings = _OPENERS[name](folder / name, settings, model_type)
    check_growth(backend, folder / name)
    if name != "tokenizer.json":
        settings = settings | {"tokenizer_class": _GENERIC_CLASS}
    limits = [n for n in (max_length, stated_length(settings)) if n is not None]
    length_limit = min(limits, default=None)
    return Tokenizer(backend, settings=settings, max_length=length_limit, token_types=token_types, tiled=plain)


def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with lower-casing of all texts added."""
    backend = backend_copy(tokenizer)
    add_lowercase(backend)
    return _with_backend(backend, tokenizer)


def with_reading(tokenizer: Tokenizer, settings: Mapping[str, Any], model_type: str | None) -> Tokenizer:
    """The same tokenizer with other settings, such as `add_prefix_space`.

    model_type: the value in `config.json`, used where the files of the tokenizer state no class.
    Raises InputError for a setting that the reference's class of this tokenizer does not follow.
    """
    backend, every = backend_copy(tokenizer), tokenizer.settings | dict(settings)
    followed = {"split_special_tokens", *followed_settings(backend, apply_settings(backend, every, model_type))}
    for name, value in settings.items():
        if name not in followed:
            raise InputError(
                f"{name} is {shorten(repr(value))}, and no component of this tokenizer has it: leave it out"
            )
    return _with_backend(backend, tokenizer, every)


def with_tokens(
    tokenizer: Tokenizer, tokens: Sequence[str | tokenizers.AddedToken], *, special: bool
) -> tuple[Tokenizer, int]:
    """The tokenizer with these tokens added, and how many of them are new to its vocabulary."""
    backend = backend_copy(tokenizer)
    new = (backend.add_special_tokens if special else backend.add_tokens)(list(tokens))
    return _with_backend(backend, tokenizer), new


def without_tokens_beyond(tokenizer: Tokenizer, rows: int) -> tuple[Tokenizer, list[str]]:
    """The tokenizer without the added tokens whose ids are beyond a table of `rows` rows, and these tokens.

    They are removed only if nothing but a text that spells them yields them: they are in no template or conversation,
    and have no role but padding. transformers 5 adds such a `<unk>NOTUSED` to every CamemBERT.
    """
    if max(tokenizer.own_vocab.values(), default=-1) >= rows:
        return tokenizer, []
    beyond, settings = [token for token, i in tokenizer.added_vocab.items() if i >= rows], tokenizer.settings
    around = {i for pairs in (None, [""]) for i in tokenizer.encode([""], pairs)[0].ids}
    role_tokens = {tokenizer.special_token(role) for role in ROLES if role != "pad"}
    chat_template = json.dumps(settings.get("chat_template"), ensure_ascii=False)
    if max(around, default=0) >= rows or any(token in role_tokens or token in chat_template for token in beyond):
        return tokenizer, []
    state = json.loads(tokenizer.to_json())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < rows]
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    return _with_backend(backend, tokenizer, without_tokens(beyond, settings)), beyond


def _with_backend(backend: tokenizers.Tokenizer, other: Tokenizer, settings: dict[str, Any] | None = None) -> Tokenizer:
    """A tokenizer with this backend and the other attributes of `other`, except settings that are passed."""
    options = {
        "token_types": other.token_types,
        "tiled": other.tiled,
        "settings": other.settings if settings is None else settings,
    }
    return Tokenizer(backend, max_length=other.model_max_length, **options)


def open_target_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of the decoder of an encoder-decoder, where it has its own vocabulary; else None."""
    path = folder / TARGET_TOKENIZER_FILE
    if not path.exists():
        return None
    check_regular(path)
    settings = read_settings(folder)
    backend = _read_backend(path, settings)
    check_growth(backend, path)
    return Tokenizer(backend, settings=settings, token_types=False)


def write_target_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the file that `open_target_tokenizer` reads."""
    (folder / TARGET_TOKENIZER_FILE).write_text(tokenizer.to_json(), encoding="utf-8")


def backend_copy(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """A copy of the tokenizer as an object of the `tokenizers` library."""
    return tokenizers.Tokenizer.from_str(tokenizer.to_json())


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, token_types: bool = True) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, chat template included, which the reference can open.

    A tokenizer from files in another format is saved with the class that uses `tokenizer.json` as it is: the
    reference's family classes rebuild theirs from the vocabulary. The model inputs are listed, since that class, and
    classes of other families than the model's, would return others.

    token_types: whether the model has token types.
    """
    backend = tokenizer.to_json()
    (folder / "tokenizer.json").write_text(backend, encoding="utf-8")
    settings = {"tokenizer_class": _GENERIC_CLASS} | with_type_marks(with_token_objects(backend, tokenizer.settings))
    settings["model_input_names"] = input_names(tokenizer.token_types and token_types)
    if tokenizer.model_max_length is not None:
        settings["model_max_length"] = tokenizer.model_max_length
    text = replace_surrogates(json.dumps(settings, indent=2, ensure_ascii=False)) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _from_json(path: Path, settings: dict[str, Any], model_type: str | None) -> BackendAndSettings:
    backend = _read_backend(path, settings)
    layout = apply_settings(backend, settings, model_type)
    if layout is None:
        return backend, settings
    vocabulary = backend.get_vocab()
    own = {role: token for role, token in layout.roles.items() if token in vocabulary}
    settings = with_default_roles(own, settings)
    add_special_tokens(backend, settings)
    return backend, settings


def _read_backend(path: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    raw = path.read_bytes()
    with panics_as_errors(f"{path} is not a tokenizer"):
        check_charsmaps(raw)
        backend = tokenizers.Tokenizer.from_buffer(raw)  # its own reader accepts only paths in UTF-8
        add_special_tokens(backend, settings)
    return backend


_FORM_OF_FILE: dict[str, Form] = {"vocab.txt": "wordpiece", "vocab.json": "bytelevel"}
"""The form of files that state none; those of sentencepiece have their own."""

_OPENERS: dict[str, Callable[[Path, dict[str, Any], str | None], BackendAndSettings]] = {
    "tokenizer.json": _from_json,
    "vocab.txt": open_wordpiece,
    "vocab.json": open_bytelevel,
    **dict.fromkeys(sentencepiece.FILES, sentencepiece.open_sentencepiece),
}
"""The reader of each format by the file that identifies it, in order of precedence."""
