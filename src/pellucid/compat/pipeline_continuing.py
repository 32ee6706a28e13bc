"""What is asked of the reference's pipeline that goes on with texts and conversations."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pellucid.compat.pipeline_call import UNBOUNDED, Round
from pellucid.compat.pipeline_writing import Written
from pellucid.config.checks import among
from pellucid.errors import InputError
from pellucid.tasks.task_settings import prefix_of
from pellucid.tasks.text_generation import continued
from pellucid.text.portions import Reading


class Continued(Written):
    """How texts and conversations go on."""

    named = "text_inputs"
    takes = (
        Written.takes + " return_full_text prefix handle_long_generation continue_final_message skip_special_tokens "
        "tokenizer_encode_kwargs add_special_tokens"
    )
    defaults: ClassVar[Mapping[str, Any]] = {"do_sample": True, "temperature": 0.7}
    fixed: ClassVar[Mapping[str, Any]] = {"parse_special_tokens": True, "parse_in_messages": True}
    _ours = "return_full_text prefix continue_final_message skip_special_tokens add_special_tokens".split()

    def options(self) -> dict[str, Any]:
        said = self.said
        own = {name: said[name] for name in self._ours if said.get(name) is not None}
        own["clean_up_tokenization_spaces"] = said.get("clean_up_tokenization_spaces") is not False
        how = self._how()
        long = self.cut(how["truncation"], how.get("max_length", self.typed.get("max_length")))
        among("handle_long_generation", said.get("handle_long_generation"), ("hole", None))
        if said.get("handle_long_generation") is not None:
            if self._truncates():
                raise InputError("handle_long_generation is 'hole' and truncation is asked for too: leave one out")
            long = {"long": "truncate", "max_length": None, "truncation_side": "left"}
        elif "long" in long:
            long["truncation_side"] = self.words.truncation_side
        options: dict[str, Any] = super().options() | own | long
        if self.typed.get("min_length") is not None and self.typed.get("min_new_tokens") is None:
            options["min_length"] = options["min_length"] + self._ahead()
        return options

    def rounds(self, items: Iterable[Any]) -> Iterator[Round]:
        """A greatest length alone cuts texts, and no conversations."""
        uncut = not self._truncates() and self.said.get("handle_long_generation") is None
        whole = {"long": "error", "max_length": UNBOUNDED} if uncut else {}
        for texts, some in itertools.groupby(items, lambda one: isinstance(one, str)):
            for few, options in super().rounds(some):
                yield few, options if texts else options | whole

    def _truncates(self) -> bool:
        """Whether somebody asks for cutting, and not by a greatest length alone."""
        return "long" in self.cut(self._how()["truncation"], None)

    def _how(self) -> dict[str, Any]:
        return {"truncation": self.said.get("truncation"), **self.how("tokenizer_encode_kwargs", self.said)}

    def single(self, given: list[Any]) -> bool:
        return bool(given) and isinstance(given[0], Mapping)

    def shape(self, answer: Any, item: Any) -> Any:
        if self.said.get("return_tensors"):
            return [{"generated_token_ids": row} for row in self.rows([*answer.read.ids], answer)]
        return [{"generated_text": continued(one["generated_text"], tail)} for one, tail in self.ended(answer)]

    def before(self, item: Any) -> int:
        read, options = len(self._prompt(item)), self.options()
        most = options["max_length"] if isinstance(item, str) and options.get("long") == "truncate" else None
        return (read if most is None else min(read, most)) - self._ahead()

    def _ahead(self) -> int:
        """The tokens of the prefix, which count towards no length that was asked for."""
        special = bool(self.said.get("add_special_tokens"))
        return len(Reading(self.words, "", True, special).whole(prefix).ids) if (prefix := self._prefix()) else 0

    def _prompt(self, item: Any) -> list[int]:
        """The tokens of a prompt that nothing is cut off."""
        if isinstance(item, str):
            special = self.said.get("add_special_tokens") is not False
            return Reading(self.words, self._prefix(), True, special).whole(item).ids
        last = self.said.get("continue_final_message")
        on = item[-1]["role"] == "assistant" if last is None else last
        how: dict[str, Any] = {"add_generation_prompt": not on, "continue_final_message": on}
        return [int(i) for i in self.words.apply_chat_template(item, tokenize=True, **how)]

    def _prefix(self) -> str:
        said = self.said.get("prefix")
        return (prefix_of(self.model.loaded, [self.task]) or "") if said is None else said
