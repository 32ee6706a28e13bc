"""What the reference's tokenizers say of their vocabulary, and the tokens that are added to it."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.errors import InputError, near
from pellucid.text import Tokenizer
from pellucid.text.files import with_tokens
from pellucid.text.layouts import ROLES

_EXTRA = ("additional_special_tokens", "extra_special_tokens")


class Vocabulary:
    """Special tokens and added tokens of a tokenizer.  pellucid: our own; another takes its place when it grows."""

    pellucid: Tokenizer

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return {f"{role}_token": token for role in ROLES if (token := self.pellucid.special_token(role))}

    @property
    def all_special_tokens(self) -> list[str]:
        return list(dict.fromkeys((*self.special_tokens_map.values(), *self.pellucid.additional_special_tokens)))

    @property
    def all_special_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.all_special_tokens)

    @property
    def chat_template(self) -> Any:
        return self.pellucid.settings.get("chat_template")

    @property
    def model_input_names(self) -> list[str]:
        return ["input_ids", *(["token_type_ids"] if self.pellucid.token_types else []), "attention_mask"]

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens stand around a text, or around a pair."""
        return self.pellucid.added_tokens(pair=pair)

    def get_vocab(self) -> dict[str, int]:
        """Every token and its id."""
        return self.pellucid.vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens beyond the model's own vocabulary, and the special ones, with their ids."""
        return self.pellucid.added_vocab

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """One token as its id, or several as theirs; what the vocabulary lacks is the unknown token."""
        found = self.pellucid.convert_tokens_to_ids([tokens] if isinstance(tokens, str) else tokens)
        known = [self.pellucid.unk_token_id if i is None else i for i in found]
        return known[0] if isinstance(tokens, str) else known

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Adds a token or several; gives how many were new: `model.resize_token_embeddings(len(tokenizer))` follows."""
        one = isinstance(new_tokens, str) or not isinstance(new_tokens, Sequence)
        tokens = [new_tokens] if one else list(new_tokens)
        for token in tokens:
            if not isinstance(getattr(token, "content", token), str) or not str(token):
                raise InputError(f"a token to be added is {repr(token)[:60]}, expected a text, or an AddedToken")
        vars(self)["pellucid"], new = with_tokens(self.pellucid, tokens, special=special_tokens)
        return new

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Gives roles to tokens, `{"pad_token": "[PAD]"}`, which are added where they are missing; gives how many were.

        special_tokens_dict: roles, and under `additional_special_tokens` a list of tokens without one.
        replace_extra_special_tokens: whether these stand in place of those that there were, or behind them.
        """
        known = [*(f"{role}_token" for role in ROLES), *_EXTRA]
        if strange := [name for name in special_tokens_dict if name not in known]:
            raise InputError(f"no special token is called {strange[0]!r}{near(strange[0], known)}")
        new = 0
        for name, value in special_tokens_dict.items():
            new += self.add_tokens(value, special_tokens=True)
            if name not in _EXTRA:
                setattr(self, name, str(value))
                continue
            before = [] if replace_extra_special_tokens else self.pellucid.additional_special_tokens
            nothing: dict[str, Any] = {key: [] for key in _EXTRA}
            vars(self)["pellucid"] = self._with(**nothing | {name: list(dict.fromkeys([*before, *map(str, value)]))})
        return new

    def _with(self, **settings: Any) -> Tokenizer:
        own = copy.copy(self.pellucid)
        vars(own)["settings"] = own.settings | settings
        return own
