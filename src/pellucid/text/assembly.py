"""What is added to a tokenizer once its model exists: special tokens, added tokens, post-processing template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from pellucid.errors import CorruptFileError
from pellucid.text.layouts import ROLES, ROLES_AS_ADDED, Layout
from pellucid.text.settings import added_tokens, extra_tokens, token_content


def with_default_roles(roles: Mapping[str, str], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with the family's token for each role that they leave out; an explicit null means no token."""
    return {f"{role}_token": token for role, token in roles.items()} | settings


def add_tokens_and_template(
    backend: tokenizers.Tokenizer, layout: Layout, settings: dict[str, Any], path: Path
) -> None:
    """Adds the special tokens and the added tokens, then the post-processing.

    Raises CorruptFileError where a token has another id than the settings state, or the vocabulary lacks a token that
    the template adds to each text.
    """
    _add_tokens(backend, layout, settings, path)
    single, pair = _templates(layout, settings)
    tokens = {role: token_content(settings.get(f"{role}_token")) for role in ROLES}
    used = [role for role in ROLES if "{" + role + "}" in single + pair]
    ids = {role: backend.token_to_id(tokens[role] or "") for role in used}
    if missing := [str(tokens[role] or role) for role in used if ids[role] is None]:
        raise CorruptFileError(f"{path} lacks {', '.join(missing)}, needed around every text of this family")
    # Templates are split at spaces, and a token may contain a space or a `$`: so each is named by its role.
    names = {role: f"<{role}>" for role in used}
    backend.post_processor = processors.TemplateProcessing(
        single=single.format(**names),
        pair=pair.format(**names),
        special_tokens=[{"id": names[role], "ids": [ids[role]], "tokens": [tokens[role]]} for role in used],
    )


def add_special_tokens(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    """Adds the tokens of the settings that a `tokenizer.json` does not list, as the reference does: tokens of its
    vocabulary become special, others get the next ids."""
    roles: list[Any] = [token for role in ROLES_AS_ADDED if token_content(token := settings.get(f"{role}_token"))]
    extra, listed = extra_tokens(settings), _added_tokens_by_content(backend)
    special, any_special = set(map(token_content, roles)), set(map(token_content, [*roles, *extra]))
    added = []
    for token in added_tokens(settings).values():
        if len(token) > 1:
            added.append(_added_token(token, special=token["content"] in special))
        elif token["content"] not in listed:  # `added_tokens.json` has only the text of a token
            added.append(_added_token(token, special=token["content"] in any_special))
    backend.add_tokens(added)
    listed = _added_tokens_by_content(backend)
    further: dict[str, AddedToken] = {}
    for token in roles:
        content = str(token_content(token))
        known = listed.get(content)
        if known is None:
            further.setdefault(content, _added_token(token, special=True))
        elif not known.special:
            further[content] = known
    for token in extra:
        content = str(token_content(token))
        if content not in listed:
            further.setdefault(content, _added_token(token, special=True))
    backend.add_special_tokens(list(further.values()))


def _added_tokens_by_content(backend: tokenizers.Tokenizer) -> dict[str, AddedToken]:
    return {token.content: token for token in backend.get_added_tokens_decoder().values()}


def _templates(layout: Layout, settings: dict[str, Any]) -> tuple[str, str]:
    adds_bos = settings.get("add_bos_token", layout.adds_bos)
    adds_eos = settings.get("add_eos_token", layout.adds_eos)
    if layout.single != "$A" or not (adds_bos or adds_eos):
        return layout.single, layout.pair
    before, after = "{bos} " if adds_bos else "", " {eos}" if adds_eos else ""
    first = f"{before}$A{after}"
    return first, first + (" {bos}:1" if adds_bos else "") + " $B:1" + (" {eos}:1" if adds_eos else "")


def _add_tokens(backend: tokenizers.Tokenizer, layout: Layout, settings: dict[str, Any], path: Path) -> None:
    numbered = added_tokens(settings)
    added = [_added_token(token) for token in numbered.values()]
    for role in ROLES:
        token = settings.get(f"{role}_token")
        if token_content(token):
            spaced = role == "mask" and layout.mask_takes_space
            added.append(
                _added_token(token if isinstance(token, dict) else {"content": token, "lstrip": spaced}, special=True)
            )
    added += [_added_token(token, special=True) for token in extra_tokens(settings)]
    backend.add_tokens(added)
    for i, token in numbered.items():
        if (found := backend.token_to_id(token["content"])) != i:
            raise CorruptFileError(f"{path}: token {token['content']!a} has the id {found}, the settings say {i}")


def _added_token(token: str | dict[str, Any], special: bool = False) -> AddedToken:
    token = token if isinstance(token, dict) else {"content": token}
    flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word")}
    special = special or bool(token.get("special"))
    normalized = bool(token.get("normalized", not special))
    return AddedToken(token["content"], normalized=normalized, special=special, **flags)
