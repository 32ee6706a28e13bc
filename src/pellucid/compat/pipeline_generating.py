"""Arguments and answers of the reference's text-generation pipeline, for texts and conversations."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pellucid.compat.pipeline_call import NO_LIMIT, ItemGroup
from pellucid.compat.pipeline_writing import GenerationCall
from pellucid.config.checks import check_count, check_one_of
from pellucid.errors import InputError
from pellucid.tasks.task_settings import prefix_of
from pellucid.tasks.text_generation import append_text
from pellucid.text.chunks import PrefixedEncoder


class TextGenerationCall(GenerationCall):
    """Continuations of texts and conversations."""

    input_argument = "text_inputs"
    takes = (
        GenerationCall.takes
        + " return_full_text prefix handle_long_generation continue_final_message skip_special_tokens "
        "tokenizer_encode_kwargs add_special_tokens"
    )
    defaults: ClassVar[Mapping[str, Any]] = {"do_sample": True, "temperature": 0.7}
    fixed_options: ClassVar[Mapping[str, Any]] = {"parse_special_tokens": True, "parse_in_messages": True}
    _own_options = "return_full_text prefix continue_final_message skip_special_tokens add_special_tokens".split()

    def options(self) -> dict[str, Any]:
        arguments = self.arguments
        own = {name: arguments[name] for name in self._own_options if arguments.get(name) is not None}
        own["clean_up_tokenization_spaces"] = arguments.get("clean_up_tokenization_spaces") is not False
        long = self.truncation_options(
            {"max_length": self.typed_arguments.get("max_length")} | self._encode_arguments()
        )
        check_one_of("handle_long_generation", arguments.get("handle_long_generation"), ("hole", None))
        if arguments.get("handle_long_generation") is not None:
            if self._is_truncating():
                raise InputError("handle_long_generation is 'hole' and truncation is set too: leave one out")
            long = {"long": "truncate", "max_length": None, "truncation_side": "left"}
        elif "long" in long:
            long["truncation_side"] = self.tokenizer.truncation_side
        options: dict[str, Any] = super().options() | own | long
        if self.typed_arguments.get("min_length") is not None and self.typed_arguments.get("min_new_tokens") is None:
            check_count("min_length", options["min_length"], minimum=0)
            options["min_length"] += self._prefix_length()
        return options

    def item_groups(self, items: Iterable[Any]) -> Iterator[ItemGroup]:
        """`max_length` alone truncates texts, but not conversations."""
        uncut = not self._is_truncating() and self.arguments.get("handle_long_generation") is None
        overrides = {"long": "error", "max_length": NO_LIMIT} if uncut else {}
        for texts, some in itertools.groupby(items, lambda one: isinstance(one, str)):
            for few, options in super().item_groups(some):
                yield few, options if texts else options | overrides

    def _is_truncating(self) -> bool:
        """Whether truncation is requested other than by `max_length` alone."""
        return "long" in self.truncation_options(self._encode_arguments() | {"max_length": None})

    def _encode_arguments(self) -> dict[str, Any]:
        return {
            "truncation": self.arguments.get("truncation"),
            **self.tokenizer_arguments("tokenizer_encode_kwargs", self.arguments),
        }

    def is_single_item(self, items: list[Any]) -> bool:
        return bool(items) and isinstance(items[0], Mapping)

    def format_answer(self, answer: Any, item: Any) -> Any:
        if self.arguments.get("return_tensors"):
            return [{"generated_token_ids": row} for row in self.padded_rows([*answer.read.ids], answer)]
        return [
            {"generated_text": append_text(one["generated_text"], tail)}
            for one, tail in self.texts_with_endings(answer)
        ]

    def prompt_length(self, item: Any) -> int:
        read, options = len(self._prompt_ids(item)), self.options()
        max_tokens = options["max_length"] if isinstance(item, str) and options.get("long") == "truncate" else None
        return (read if max_tokens is None else min(read, max_tokens)) - self._prefix_length()

    def _prefix_length(self) -> int:
        """The tokens of the prefix, which do not count towards a requested length."""
        if not (prefix := self._prefix()):
            return 0
        special = bool(self.arguments.get("add_special_tokens"))
        return len(PrefixedEncoder(self.tokenizer, "", True, special).whole_chunk(prefix).ids)

    def _prompt_ids(self, item: Any) -> list[int]:
        """The tokens of a prompt without truncation."""
        if isinstance(item, str):
            special = self.arguments.get("add_special_tokens") is not False
            return PrefixedEncoder(self.tokenizer, self._prefix(), True, special).whole_chunk(item).ids
        last = self.arguments.get("continue_final_message")
        continues = item[-1]["role"] == "assistant" if last is None else last
        chat_options: dict[str, Any] = {"add_generation_prompt": not continues, "continue_final_message": continues}
        return [int(i) for i in self.tokenizer.apply_chat_template(item, tokenize=True, **chat_options)]

    def _prefix(self) -> str:
        prefix = self.arguments.get("prefix")
        if not isinstance(prefix, str | None):
            raise InputError(f"prefix is {type(prefix).__name__}, expected a text")
        return (prefix_of(self.model.loaded, [self.task]) or "") if prefix is None else prefix
