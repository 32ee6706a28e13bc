"""The small JSON files next to a tokenizer, read within limits; each value that is used is checked for its type."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pellucid.errors import CorruptFileError
from pellucid.files import read_json, read_text
from pellucid.text.layouts import ROLES

NO_LIMIT = 1_000_000_000
"""Files use a huge number for "no limit"."""

_FLAGS = tuple(
    """do_lower_case strip_accents tokenize_chinese_chars keep_accents add_prefix_space add_bos_token add_eos_token
    trim_offsets legacy clean_up_tokenization_spaces split_special_tokens""".split()
)
_SIDES = ("truncation_side", "padding_side")
_NULLABLE = (*_FLAGS, *_SIDES)
_TOKEN_FLAGS = ("lstrip", "rstrip", "normalized", "special", "single_word")
EXTRA_TOKEN_KEYS = ("additional_special_tokens", "extra_special_tokens")


def read_settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, merged with the chat template from whichever file has it, the tokens of
    `added_tokens.json`, and `special_tokens_map.json`, which overrides it where it has no `added_tokens_decoder`: as in
    the reference, which reads that file only for older checkpoints."""
    paths = (folder / name for name in ("tokenizer_config.json", "special_tokens_map.json"))
    merged, older = (_checked_settings(_read_object(path), path) for path in paths)
    if "added_tokens_decoder" not in merged:
        newer, more = (one.get("extra_special_tokens") for one in (merged, older))
        merged |= older
        if isinstance(newer, list) and isinstance(more, list):
            merged["extra_special_tokens"] = [*newer, *(token for token in more if token not in newer)]
    if added := _read_object(folder / "added_tokens.json"):
        merged.setdefault("added_tokens_decoder", _tokens_by_id(added, folder / "added_tokens.json"))
    found = _read_object(folder / "chat_template.json")  # of multimodal models; lowest precedence
    older_template = {"chat_template": found["chat_template"]} if "chat_template" in found else {}
    return older_template | merged | _read_templates(folder)


def stated_length(settings: dict[str, Any]) -> int | None:
    """The maximum number of tokens that the settings state; None where they state none, or one that means no limit."""
    stated: Any = settings.get("model_max_length", settings.get("max_len"))  # older files say max_len
    return int(stated) if isinstance(stated, int | float) and 1 <= stated < NO_LIMIT else None


def added_tokens(settings: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The tokens beyond the vocabulary by id, sorted; each has at least a `content`."""
    stated = settings.get("added_tokens_decoder") or {}
    tokens = {int(i): token for i, token in stated.items()}
    return {i: tokens[i] if isinstance(tokens[i], dict) else {"content": tokens[i]} for i in sorted(tokens)}


def extra_tokens(settings: dict[str, Any]) -> list[Any]:
    """Special tokens without a role, in the order of the settings, each a string or an object with `content`."""
    listed = settings.get("extra_special_tokens")
    others = [] if isinstance(listed, list) and listed else _as_list(settings.get("additional_special_tokens"))
    found = [*others, *(listed if isinstance(listed, list) else ()), *named_tokens(settings).values()]
    return list({token_content(token): token for token in found}.values())


def named_tokens(settings: dict[str, Any]) -> dict[str, Any]:
    """Special tokens of this model only, by the variable names of templates, such as `image_token`."""
    own = {f"{role}_token" for role in ROLES}
    found = {name: token for name, token in settings.items() if name.endswith("_token") and name not in own}
    more = [settings.get(name) for name in ("extra_special_tokens", "model_specific_special_tokens")]
    named = [one for one in more if isinstance(one, dict)]
    return {name: token for one in (found, *named) for name, token in one.items() if _is_token(token)}


def without_tokens(tokens: Collection[str], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as if these tokens had never been added."""
    kept = {
        name: value
        for name, value in settings.items()
        if not name.endswith("_token") or token_content(value) not in tokens
    }
    for name in ("added_tokens_decoder", *EXTRA_TOKEN_KEYS):
        if isinstance(stated := kept.get(name), dict):
            kept[name] = {key: token for key, token in stated.items() if token_content(token) not in tokens}
        elif isinstance(stated, list):
            kept[name] = [token for token in stated if token_content(token) not in tokens]
    return kept


def with_token_objects(backend: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with every added token as an object, as the reference requires; older files, with an
    `added_tokens.json`, have only its text.

    backend: the serialised tokenizer, which has the other attributes.
    """
    stated = settings.get("added_tokens_decoder")
    if not stated or all(isinstance(token, dict) for token in stated.values()):
        return settings
    added = [
        {name: fact for name, fact in token.items() if name != "id"} for token in json.loads(backend)["added_tokens"]
    ]
    known = {token["content"]: token for token in added}
    whole = {
        i: token if isinstance(token, dict) else known.get(token, {"content": token}) for i, token in stated.items()
    }
    return settings | {"added_tokens_decoder": whole}


def with_type_marks(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the `__type` key by which the reference recognises token objects; older files lack it."""
    holders = (*EXTRA_TOKEN_KEYS, "model_specific_special_tokens")
    return {
        name: _with_type_mark(value) if name.endswith("_token") or name in holders else value
        for name, value in settings.items()
    }


def _with_type_mark(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_type_mark(one) for one in value]
    if not isinstance(value, dict) or "__type" in value:
        return value
    if _is_token(value, empty=True):
        return {"__type": "AddedToken"} | value | {"special": True}
    return {name: _with_type_mark(one) for name, one in value.items()}


def token_content(token: Any) -> str | None:
    """The text of a token, which files store as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _as_list(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value or []


def _read_object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _checked_settings(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings, with the values that are used checked for their type; null counts as absent for `_NULLABLE`."""

    def expect(name: str, fits: bool, expected: str) -> None:
        if not fits:
            raise CorruptFileError(f"{path}: {name} is {repr(settings[name])[:60]}, expected {expected}")

    for name in _FLAGS:
        expect(name, isinstance(settings.get(name), bool | None), "true or false")
    for name in (f"{role}_token" for role in ROLES):
        expect(name, settings.get(name) is None or _is_token(settings[name], empty=True), "a token")
    for name in EXTRA_TOKEN_KEYS:
        is_listed = isinstance(settings.get(name), list | dict | None)
        expect(name, is_listed and all(map(_is_token, _as_list(settings.get(name)))), "a list of tokens")
    count: Any = settings.get("extra_ids", 0)
    expect("extra_ids", type(count) is int and 0 <= count <= 10_000, "a whole number to 10,000")
    for name in _SIDES:
        expect(name, settings.get(name) in (None, "left", "right"), "'left' or 'right'")
    if "added_tokens_decoder" in settings:
        _tokens_by_id(settings["added_tokens_decoder"], path, ids_first=True)
    return {name: value for name, value in settings.items() if value is not None or name not in _NULLABLE}


def _is_token(token: Any, empty: bool = False) -> bool:
    text = token_content(token)
    flags = [token.get(name) for name in _TOKEN_FLAGS] if isinstance(token, dict) else []
    return isinstance(text, str) and (empty or text != "") and all(isinstance(flag, bool | None) for flag in flags)


def _tokens_by_id(stated: Any, path: Path, ids_first: bool = False) -> dict[str, Any]:
    """Tokens by id, as in `added_tokens_decoder`; `added_tokens.json` maps tokens to ids."""
    if not isinstance(stated, dict):
        raise CorruptFileError(f"{path}: the added tokens are a {type(stated).__name__}, expected an object")
    pairs = stated.items() if ids_first else ((i, token) for token, i in stated.items())
    found = {}
    for i, token in pairs:
        if type(i) not in (int, str) or not (str(i).isascii() and str(i).isdigit() and len(str(i)) < 10):
            raise CorruptFileError(f"{path}: the id of an added token is {repr(i)[:60]}, expected a whole number")
        if not _is_token(token):
            raise CorruptFileError(f"{path}: added token {i} is {repr(token)[:60]}, expected a token")
        found[str(i)] = token
    return found


def _read_templates(folder: Path) -> dict[str, Any]:
    """The chat template, or templates by name, from files of their own, which override those in the settings."""
    named = {path.stem: path for path in sorted(folder.glob("additional_chat_templates/*.jinja"))}
    if (default := folder / "chat_template.jinja").exists():
        named = {"default": default, **named}
    if named:
        texts = [{"name": name, "template": read_text(path)} for name, path in named.items()]
        return {"chat_template": texts[0]["template"] if list(named.values()) == [default] else texts}
    return {}
