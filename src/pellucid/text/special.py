"""The special tokens of a tokenizer, by role."""

import re
from typing import Any

import tokenizers

from pellucid.lazy import cached_property
from pellucid.text.layouts import ROLES
from pellucid.text.literal import literal_copy, may_come_from_normalizing
from pellucid.text.settings import extra_tokens, named_tokens, token_content
from pellucid.text.truncation import panics_as_errors


class SpecialTokens:
    """The special tokens of a tokenizer; the id of a role without a token is None."""

    settings: dict[str, Any]
    _backend: tokenizers.Tokenizer

    def __getstate__(self) -> dict[str, Any]:
        """The state for copying and pickling, without cached properties: these are computed anew, since pickling drops
        the switches of a backend."""
        kind = type(self)
        stored_names = (name for name in vars(self) if not isinstance(getattr(kind, name, None), cached_property))
        return {name: vars(self)[name] for name in stored_names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_encode_special_tokens()

    def _set_encode_special_tokens(self) -> None:
        """Reads all special tokens in a text as plain characters where the settings ask for that."""
        self._backend.encode_special_tokens = bool(self.settings.get("split_special_tokens"))

    def special_token(self, role: str) -> str | None:
        """The token in a role: "pad", "unk", "cls", "sep", "mask", "bos" or "eos"."""
        return token_content(self.settings.get(f"{role}_token"))

    def _special_id(self, role: str) -> int | None:
        token = self.special_token(role)
        return None if token is None else self._backend.token_to_id(token)

    pad_token_id = property(lambda self: self._special_id("pad"))
    unk_token_id = property(lambda self: self._special_id("unk"))
    cls_token_id = property(lambda self: self._special_id("cls"))
    sep_token_id = property(lambda self: self._special_id("sep"))
    mask_token_id = property(lambda self: self._special_id("mask"))
    bos_token_id = property(lambda self: self._special_id("bos"))
    eos_token_id = property(lambda self: self._special_id("eos"))
    pad_token = property(lambda self: self.special_token("pad"))
    unk_token = property(lambda self: self.special_token("unk"))
    cls_token = property(lambda self: self.special_token("cls"))
    sep_token = property(lambda self: self.special_token("sep"))
    mask_token = property(lambda self: self.special_token("mask"))
    bos_token = property(lambda self: self.special_token("bos"))
    eos_token = property(lambda self: self.special_token("eos"))

    @property
    def special_names(self) -> dict[str, str | None]:
        """The special tokens that have a name, by the variable names of templates: `eos_token`, `image_token`."""
        named = {name: token_content(token) for name, token in named_tokens(self.settings).items()}
        return named | {f"{role}_token": self.special_token(role) for role in ROLES if self.special_token(role)}

    @property
    def additional_special_tokens(self) -> list[str]:
        """The special tokens without a role, in the order of the settings."""
        return [str(token_content(token)) for token in extra_tokens(self.settings)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def skipped_ids(self) -> frozenset[int]:
        """The ids that decoding skips: the library keeps special tokens whose spelling its normalizer changes."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(i for i in self.special_ids if self._backend.id_to_token(i) == added[i].content)

    @cached_property
    def _special_tokens(self) -> list[str]:
        added = self._backend.get_added_tokens_decoder().values()
        # Users write masks on purpose; any other special token in a text may be plain characters.
        return sorted(t.content for t in added if t.special and t.content and t.content != self.mask_token)

    @cached_property
    def _special_normalizer(self) -> Any:
        """The normalizer, where it may produce a special token from other characters; else None."""
        with panics_as_errors("the tokenizer failed on its special tokens"):
            return self._backend.normalizer if may_come_from_normalizing(self._backend, self._special_tokens) else None

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        # Where normalisation may produce a special token, every text matches.
        return (
            re.compile("" if self._special_normalizer else "|".join(map(re.escape, self._special_tokens)))
            if self._special_tokens
            else None
        )

    def _looks_special(self, text: str) -> bool:
        return self._special_pattern is not None and self._special_pattern.search(text) is not None

    @cached_property
    def _literal_backend(self) -> tokenizers.Tokenizer:
        return literal_copy(self._backend, self.mask_token)
