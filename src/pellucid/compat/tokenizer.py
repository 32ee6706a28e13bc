"""The reference's tokenizers: its methods, implemented by our `Tokenizer`."""

import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pellucid.checkpoints.load import read_config, read_tokenizer
from pellucid.compat.arguments import HUB_ARGUMENTS, accepted_arguments, missing_attribute_error, pop_hub_options
from pellucid.compat.batch import BatchEncoding, build_batch, list_conversations, to_lists
from pellucid.compat.encoding import Request, encode_batch, pad
from pellucid.compat.vocabulary import OPENING, READING, Vocabulary, with_settings
from pellucid.config.checks import check_bool, is_list_like
from pellucid.errors import Argument, InputError, NotFoundError, join_names, shorten
from pellucid.paths import path_text
from pellucid.text import Tokenizer
from pellucid.text.chat import select_template
from pellucid.text.truncation import checked_ids

log = logging.getLogger("pellucid")


class AutoTokenizer(Vocabulary):
    """Text to ids and back, called like the reference's tokenizers.

    pellucid: our own `Tokenizer`, whose attributes (`cls_token_id`, `vocab`, ...) can be read here as well.
    Special tokens and their ids (None clears a role), `padding_side`, `truncation_side`, `model_max_length`,
    `chat_template` and `clean_up_tokenization_spaces` can be set.
    """

    is_fast = True

    def __init__(self, pellucid: Tokenizer, name: str = "") -> None:
        vars(self).update(pellucid=with_settings(pellucid, {}), name_or_path=name)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **arguments: Any) -> "AutoTokenizer":
        """The tokenizer of a checkpoint, or of a folder with only a tokenizer.

        arguments: those of the hub; attributes that may be set; `extra_special_tokens`; and `add_prefix_space`,
            `do_lower_case` and the like, where the reference's class of this tokenizer follows them.
        """
        arguments = accepted_arguments(arguments, {*HUB_ARGUMENTS, *OPENING}, "a tokenizer")
        own = read_tokenizer(name, hub_options := pop_hub_options(arguments))
        if own is None:
            raise NotFoundError(f"{path_text(name)} holds no tokenizer: tokenizer.json, vocab.txt or spiece.model")
        found = cls(own, path_text(name))
        is_set_by_model = not own.settings.get("tokenizer_class") and arguments.keys() & {*READING}
        found._apply_opening(arguments, read_config(name, hub_options).family if is_set_by_model else None)
        return found

    # -- text to ids --------------------------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[Any] | None = None,
        text_pair: str | Sequence[str] | None = None,
        *,
        text_target: str | Sequence[str] | None = None,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        return_overflowing_tokens: bool = False,
        return_tensors: str | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        is_split_into_words: bool = False,
        verbose: bool = True,
        **columns: bool | None,
    ) -> BatchEncoding:
        """Texts, or pairs of texts, to ids and masks.

        is_split_into_words: each text is a list of words.
        text_target: target text, encoded with the same arguments: as `labels`, or alone with all columns.
        truncation: True, "only_first" or "only_second"; a tokenizer without a maximum length truncates nothing.
        return_overflowing_tokens: overflow is returned as further rows, which share `stride` tokens.
        padding_side: in place of the tokenizer's own.  verbose: ignored.
        columns: further columns, such as `return_offsets_mapping=True`.
        """
        request = Request(
            add_special_tokens=add_special_tokens,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=return_overflowing_tokens,
            return_tensors=return_tensors,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=self.padding_side if padding_side is None else padding_side,
            is_split_into_words=is_split_into_words,
            columns=columns,
        )
        if text is None and text_target is not None:
            return encode_batch(self.pellucid, text_target, None, request)
        batch = encode_batch(self.pellucid, text, text_pair, request)
        if text_target is not None:
            batch["labels"] = encode_batch(self.pellucid, text_target, None, request)["input_ids"]
        return batch

    encode_plus = batch_encode_plus = __call__

    def encode(self, text: str, text_pair: str | None = None, **options: Any) -> Any:
        """The ids of one text, or of a pair; with `return_tensors` Int[Tensor, "1 seq"]."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, or of a pair, as spelled in the vocabulary."""
        return self(text, pair, add_special_tokens=add_special_tokens).tokens()

    def pad(
        self,
        encoded_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        padding: bool | str = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Rows that were encoded separately, padded to one batch, with a mask of real tokens."""
        rows = encoded_inputs
        if not isinstance(rows, Mapping):
            if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
                raise InputError(f"the rows to be padded are {shorten(repr(rows))}, expected dicts with input_ids")
            rows = _rows_to_columns(rows)
        columns = {name: to_lists(column) for name, column in rows.items()}
        ids = columns.get("input_ids")
        single = isinstance(ids, list | tuple) and isinstance(next(iter(ids), None), int)
        for name, column in columns.items():
            if not single and not isinstance(column, list):
                raise InputError(f"{name} of the rows to be padded is {shorten(repr(column))}, expected a list of rows")
        features = {name: [column] if single else [to_lists(row) for row in column] for name, column in columns.items()}
        if "input_ids" not in features:
            names = join_names(map(str, features)) or "nothing"
            raise InputError(f"the rows to be padded hold {names}, expected input_ids")
        if return_attention_mask is not False and "attention_mask" not in features:
            features["attention_mask"] = [[1] * len(row) for row in features["input_ids"]]
        side = self.padding_side if padding_side is None else padding_side
        pad(self.pellucid, features, padding, max_length, pad_to_multiple_of, side)
        batch = build_batch(features, return_tensors, single=False)
        return BatchEncoding({name: column[0] for name, column in batch.items()}) if single else batch

    # -- ids to text --------------------------------------------------------------------------------------------------

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        spaces_between_special_tokens: bool | None = None,
    ) -> Any:
        """Ids back to a text, and rows of ids to a list of texts.

        clean_up_tokenization_spaces: removes the space before `.`, `,`, `n't` and the like; by default as the files set
            it; not for BPE, whose tokens include their spaces.
        spaces_between_special_tokens: ignored, as by the reference's own fast tokenizers.
        """
        ids = to_lists(token_ids)
        if clean_up_tokenization_spaces is not None:
            check_bool("clean_up_tokenization_spaces", clean_up_tokenization_spaces)
        if isinstance(ids, list) and ids and isinstance(ids[0], list):
            return self.batch_decode(ids, skip_special_tokens, clean_up_tokenization_spaces)
        if clean_up_tokenization_spaces and self.pellucid.keeps_spaces:
            _warn_of_spaces()
        text = self.pellucid.decode([ids] if isinstance(ids, int) else ids, skip_special_tokens)
        return self.pellucid.cleaned(text, clean_up_tokenization_spaces)

    def batch_decode(
        self,
        sequences: Iterable[Any],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        spaces_between_special_tokens: bool | None = None,
    ) -> list[str]:
        """Rows of ids back to texts."""
        if not is_list_like(to_lists(sequences)):
            raise InputError(f"the rows of ids are {shorten(repr(sequences))}, expected several rows")
        return [self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in to_lists(sequences)]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of one id, or the tokens of several."""
        ids = to_lists(ids)
        if isinstance(ids, int):
            return self.pellucid.convert_ids_to_tokens([ids])[0]
        check_bool("skip_special_tokens", skip_special_tokens)
        special = self.pellucid.special_ids if skip_special_tokens else ()
        return self.pellucid.convert_ids_to_tokens([i for i in checked_ids(ids) if i not in special])

    def get_special_tokens_mask(
        self, token_ids_0: Any, token_ids_1: None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 for each id that is a special token, else 0, as the reference's collators require it."""
        check_bool("already_has_special_tokens", already_has_special_tokens)
        if token_ids_1 is not None or not already_has_special_tokens:
            raise InputError(
                "already_has_special_tokens is not True, or second ids were given, and only ids of whole rows, "
                "with their special tokens, are masked here: encode texts with return_special_tokens_mask=True instead"
            )
        special = {*self.all_special_ids}
        return [int(i in special) for i in checked_ids(to_lists(token_ids_0))]

    def get_chat_template(self, chat_template: str | None = None, tools: Sequence[Any] | None = None) -> str:
        """The chat template: the one of this name, or this text itself."""
        return select_template(self.pellucid.settings, chat_template, tools)

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        sanitize_control_tokens: bool = False,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> Any:
        """A conversation as the text, the batch, or (`return_dict=False`) the ids that a chat model was trained on.

        conversation: messages, or a list of conversations, which gives as many results.
        tokenizer_kwargs: further arguments for the call that tokenizes.
        variables: any others that the template reads.
        """
        if sanitize_control_tokens:
            raise InputError(
                "sanitize_control_tokens is True and is not supported: leave it out, and call "
                "tokenizer.pellucid.apply_chat_template with ",
                Argument("tokenize", True),
                " and ",
                Argument("parse_special_tokens", False),
            )
        if return_assistant_tokens_mask:
            raise InputError("return_assistant_tokens_mask is True, which is not supported: leave it out")
        template_arguments: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, **variables}
        if add_generation_prompt and variables.get("continue_final_message"):
            raise InputError(
                "add_generation_prompt and continue_final_message are True, and a text cannot both continue an old "
                "message and begin a new one: leave one out"
            )
        many, conversations = list_conversations(conversation)
        texts = []
        for i, messages in enumerate(conversations):
            try:
                texts.append(str(self.pellucid.apply_chat_template(messages, tokenize=False, **template_arguments)))
            except InputError as error:
                raise InputError(f"conversation {i}: " if many else "", error) from error
        shown_text = texts if many else texts[0]
        if not tokenize:
            return shown_text
        call_arguments: dict[str, Any] = {"padding": padding, "truncation": truncation, "max_length": max_length}
        call_arguments |= {"add_special_tokens": False, "return_tensors": return_tensors} | dict(tokenizer_kwargs or {})
        batch = self(shown_text, **call_arguments)
        return batch if return_dict else batch["input_ids"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "pellucid":  # copy and pickle read these before they exist
            raise AttributeError(f"this tokenizer has no {name!r}")
        if not hasattr(self.pellucid, name):
            every = [*dir(type(self)), *dir(type(self.pellucid))]
            known = [one for one in every if not one.startswith("_")]
            elsewhere = "; see `pellucid.Tokenizer`"
            if name == "train_new_from_iterator":
                known, elsewhere = [], ": pellucid.train_tokenizer(texts=..., vocab_size=...) trains one"
            raise missing_attribute_error("this tokenizer", name, known, elsewhere)
        return getattr(self.pellucid, name)

    def __len__(self) -> int:
        return len(self.pellucid)

    def __repr__(self) -> str:
        return f"AutoTokenizer({self.name_or_path!r}, {self.pellucid!r}, padding_side={self.padding_side!r})"


def _rows_to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows with the same names, as columns; InputError for one that lacks a name of the first."""
    names = list(rows[0]) if rows else []
    for number, row in enumerate(rows):
        for name in names:
            if name not in row:
                found = join_names(map(str, row)) or "nothing"
                raise InputError(f"row {number} of those to be padded holds {found}, and no {name!r}")
    return {name: [row[name] for row in rows] for name in names}


@functools.cache
def _warn_of_spaces() -> None:
    log.warning("clean_up_tokenization_spaces=True is not supported: this tokenizer's tokens spell their spaces (BPE)")
