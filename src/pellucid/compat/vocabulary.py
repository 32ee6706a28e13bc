"""The vocabulary and settings of the reference's tokenizers, and how to change them."""

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.compat.arguments import check_save_arguments, output_folder
from pellucid.compat.encoding import check_side
from pellucid.config.checks import check_bool, plain_number
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.integers import as_integer
from pellucid.text import Tokenizer
from pellucid.text.encoded import input_names
from pellucid.text.files import backend_copy, with_reading, with_tokens, write_tokenizer
from pellucid.text.layouts import ROLES, ROLES_AS_ADDED
from pellucid.text.settings import EXTRA_TOKEN_KEYS, stated_length

_SIDES = ("padding_side", "truncation_side")
_TOKENS = tuple(f"{role}_token" for role in ROLES)
_IDS = tuple(f"{name}_id" for name in _TOKENS)
SETTABLE = (*_TOKENS, *_SIDES, "model_max_length", "chat_template", "clean_up_tokenization_spaces")
"""Attributes that can be set, besides the ids of special tokens."""


READING = tuple(
    "add_prefix_space do_lower_case strip_accents tokenize_chinese_chars trim_offsets split_special_tokens".split()
)
"""Settings of how texts are read that may be given when a tokenizer is opened."""

_FIXED = ("legacy", "add_bos_token", "add_eos_token")

OPENING = (*SETTABLE, *READING, *_FIXED, *EXTRA_TOKEN_KEYS, "config", "tokenizer_file")
"""Arguments that may be given when a tokenizer is opened."""

NO_LIMIT = int(1e30)
"""The reference's value for a tokenizer without a maximum length."""


class Vocabulary:
    """The special tokens, added tokens and settings of a tokenizer.

    pellucid: our own `Tokenizer`, which is immutable: each change replaces it.
    """

    pellucid: Tokenizer

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return {f"{role}_token": token for role in ROLES_AS_ADDED if (token := self.pellucid.special_token(role))}

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
    def padding_side(self) -> str:
        return self.pellucid.settings.get("padding_side", "right")

    @property
    def model_input_names(self) -> list[str]:
        return input_names(self.pellucid.token_types)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many special tokens are added to a text, or to a pair."""
        return self.pellucid.added_tokens(pair=pair)

    def get_vocab(self) -> dict[str, int]:
        """Every token and its id."""
        return self.pellucid.vocab

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens beyond the model's own vocabulary, and the special ones, with their ids."""
        return self.pellucid.added_vocab

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of one token, or the ids of several; the unknown token's for those that the vocabulary lacks."""
        found = self.pellucid.convert_tokens_to_ids([tokens] if isinstance(tokens, str) else tokens)
        known = [self.pellucid.unk_token_id if i is None else i for i in found]
        return known[0] if isinstance(tokens, str) else known

    @property
    def backend_tokenizer(self) -> Any:
        """The `tokenizers` library's object, as a copy: changes to it have no effect here."""
        return backend_copy(self.pellucid)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The added and special tokens by their ids, with how each is matched in a text."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    @property
    def init_kwargs(self) -> dict[str, Any]:
        """The settings of its files and those set since, as a copy."""
        return copy.deepcopy(self.pellucid.settings)

    @property
    def model_max_length(self) -> int:
        return self.pellucid.model_max_length or NO_LIMIT

    @property
    def max_len_single_sentence(self) -> int:
        """The maximum number of a text's own tokens."""
        return self.model_max_length - self.num_special_tokens_to_add()

    @property
    def max_len_sentences_pair(self) -> int:
        """The maximum number of a pair's own tokens."""
        return self.model_max_length - self.num_special_tokens_to_add(pair=True)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **arguments: Any) -> tuple[str, ...]:
        """Writes the tokenizer into a folder, created where it is missing; returns the paths of the files.

        arguments: as of the model's `save_pretrained`.
        """
        check_save_arguments(arguments)
        with output_folder(save_directory) as folder:
            write_tokenizer(with_settings(self.pellucid, {"padding_side": self.padding_side}), folder)
        return tuple(str(folder / name) for name in ("tokenizer_config.json", "tokenizer.json"))

    def _apply_opening(self, arguments: Mapping[str, Any], model_type: str | None) -> None:
        """Applies arguments of `OPENING`; raises InputError for those that are not supported."""
        settings = self.pellucid.settings
        for name, value in arguments.items():
            if name in (*READING, *_FIXED) and value is not None:
                check_bool(name, value)
            if name in _FIXED and value not in (None, settings.get(name)):
                raise InputError(
                    f"{name} is {value!r}, and its tokenizer_config.json differs: write it there, or leave it "
                    + ("out" if name == "legacy" else "out; a call takes add_special_tokens=False")
                )
            if name == "tokenizer_file" and value is not None:
                raise InputError(f"tokenizer_file is {shorten(repr(value))}: give the folder that holds it as the name")
        if reading := {name: value for name, value in arguments.items() if name in READING and value is not None}:
            self._set_tokenizer(with_settings(with_reading(self.pellucid, reading, model_type), {}))
        for name in [name for name in SETTABLE if name in arguments]:
            setattr(self, name, arguments[name])
        if extra := {name: arguments[name] for name in EXTRA_TOKEN_KEYS if name in arguments}:
            self.add_special_tokens(extra)

    # -- changes ------------------------------------------------------------------------------------------------------

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Adds tokens; returns how many were new. `model.resize_token_embeddings(len(tokenizer))` should follow."""
        one = isinstance(new_tokens, str) or not isinstance(new_tokens, Sequence)
        tokens = [new_tokens] if one else list(new_tokens)
        for token in tokens:
            _check_token(token)
        own, new = with_tokens(self.pellucid, tokens, special=special_tokens)
        self._set_tokenizer(own)
        return new

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_extra_special_tokens: bool = True
    ) -> int:
        """Assigns roles to tokens, `{"pad_token": "[PAD]"}`, adding missing ones; returns how many were added.

        special_tokens_dict: roles, and under `additional_special_tokens` a list of tokens without one.
        replace_extra_special_tokens: whether these replace the existing ones or are appended to them.
        """
        known = [*_TOKENS, *EXTRA_TOKEN_KEYS]
        if not isinstance(special_tokens_dict, Mapping):
            raise InputError(
                f"special_tokens_dict is {shorten(repr(special_tokens_dict))}, expected a dict of tokens by their "
                "roles, such as {'pad_token': '[PAD]'}; add_tokens takes tokens without one"
            )
        for name, value in special_tokens_dict.items():
            if name not in known:
                raise InputError(f"no special token is called {name!r}{did_you_mean(name, known)}")
            if name in _TOKENS:
                _check_token(value, name)
            elif not isinstance(value, list | tuple):
                raise InputError(f"{name} is {shorten(repr(value))}, expected a list of tokens")
        new = 0
        for name, value in special_tokens_dict.items():
            new += self.add_tokens(value, special_tokens=True)
            if name in _TOKENS:
                self._set_special_token(name, str(value))
                continue
            before = [] if replace_extra_special_tokens else self.pellucid.additional_special_tokens
            nothing: dict[str, Any] = {key: [] for key in EXTRA_TOKEN_KEYS}
            every = list(dict.fromkeys([*before, *map(str, value)]))
            self._set_tokenizer(with_settings(self.pellucid, nothing | {name: every}))
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _IDS:
            self._set_special_token(name.removesuffix("_id"), self._token_of(name, value))
        elif name in _TOKENS:
            self._set_special_token(name, value)
        elif name in SETTABLE:
            _check_setting(name, value := plain_number(value))
            self._set_tokenizer(with_settings(self.pellucid, {name: value}))
        else:
            raise InputError(
                f"{name!r} of a tokenizer cannot be set{did_you_mean(name, SETTABLE)}; {', '.join(SETTABLE)} can"
            )

    def _token_of(self, name: str, number: Any) -> str | None:
        if number is None:
            return None
        if (index := as_integer(number)) is None:
            raise InputError(f"{name} is {shorten(repr(number))}, expected the id of a token, or None")
        return self.pellucid.convert_ids_to_tokens([index])[0]

    def _set_special_token(self, name: str, token: Any) -> None:
        """name: such as "pad_token".  token: one of the vocabulary, or None, which clears the role."""
        if token is not None and (not isinstance(token, str) or token not in self.pellucid.vocab):
            adds = f": tokenizer.add_special_tokens({{{name!r}: ...}}) adds it" if isinstance(token, str) else ""
            raise InputError(f"{name} is {shorten(repr(token))}, and this vocabulary has no such token{adds}")
        self._set_tokenizer(with_settings(self.pellucid, {name: token}))

    def _set_tokenizer(self, own: Tokenizer) -> None:
        vars(self)["pellucid"] = own


def with_settings(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> Tokenizer:
    """The same tokenizer with other settings. Its limit is theirs: the reference's ignores the model's."""
    own = copy.copy(tokenizer)
    own.settings = own.settings | dict(settings)
    own.model_max_length = stated_length(own.settings)
    return own


def _check_setting(name: str, value: Any) -> None:
    if name in _SIDES:
        check_side(name, value)
    elif value is None:
        return
    elif name == "clean_up_tokenization_spaces":
        check_bool(name, value)
    elif name == "model_max_length" and (type(value) not in (int, float) or not value >= 1):
        raise InputError(f"{name} is {shorten(repr(value))}, expected a whole number from 1, or None for no limit")


def _check_token(token: Any, name: str = "a token to be added") -> None:
    if not isinstance(getattr(token, "content", token), str) or not str(token):
        raise InputError(
            f"{name} is {shorten(repr(token))}, expected a text of at least one character, or an AddedToken with one"
        )
