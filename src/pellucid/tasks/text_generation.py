"""Text generation: the continuation of a text, or the next turn of a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pellucid.config.checks import check_bool, check_choice
from pellucid.errors import Argument, InputError, Item, format_count
from pellucid.generation.prompts import end_of_turn
from pellucid.generation.texts import GeneratedSequence
from pellucid.tasks.answer import Answer, TextCoverage
from pellucid.tasks.task import Work
from pellucid.tasks.writer import GeneratedText, Prompt, Writer, chunk_coverage
from pellucid.text import Tokenizer
from pellucid.text.chat import check_messages
from pellucid.text.chunks import PrefixedEncoder, TextChunk, ending_chunks
from pellucid.text.truncation import clean_text

Messages = list[dict[str, Any]]
_CUT, _OLDEST = Argument("long", "truncate"), " to leave its oldest turns out"


@dataclass(frozen=True, kw_only=True)
class TextGeneration(Writer):
    """The continuation of a text, or the next turn of a conversation, `{"generated_text"}`; alternatives are in `.all`.

    parse_in_messages: whether `<|im_end|>` in a message is that token, as in the reference; otherwise it is plain text,
        so that no message can end a turn.
    return_full_text: the text with its continuation, or the conversation with its new turn; else the new part only.
    continue_final_message: continues the last message instead of replying to it; by default where it is the
        assistant's.
    add_special_tokens: whether a text begins with the tokenizer's usual special tokens.
    skip_special_tokens: whether generated special tokens are left out of the answer.
    truncation_side: which end of a text is cut off, "left" its beginning or "right" its end; by default the
        tokenizer's, or its beginning where it sets none. In a conversation the oldest turns are left out; its system
        message stays.
    max_length: by default the lower of the model's and its tokenizer's limits; if given, it replaces the tokenizer's.
    A text is too long where it exceeds the model's positions. Truncated, it leaves room for `max_new_tokens`, or for
    half of the model's limit where that is less. In windows, each is continued; the answer continues the last one,
    which is a full one, and those of the others are in `.all`, in their order. Conversations cannot be read in windows.
    """

    parse_special_tokens: bool = True
    parse_in_messages: bool = False
    return_full_text: bool = True
    continue_final_message: bool | None = None
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    truncation_side: str | None = None

    name: ClassVar[str] = "text-generation"
    heads: ClassVar[tuple[str | None, ...]] = ("causal-lm",)
    defaults: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 256}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.continue_final_message is not None:
            check_bool("continue_final_message", self.continue_final_message)
        if self.truncation_side is not None:
            check_choice("truncation_side", self.truncation_side, ("left", "right"))

    @classmethod
    def is_single_item(cls, value: Any) -> bool:
        return super().is_single_item(value) or _is_conversation(value)

    def check_item(self, item: Any, index: int) -> str | Messages:
        if not _is_conversation(item):
            return super().check_item(item, index)
        try:
            check_messages(item)
        except InputError as error:
            raise InputError(Item(index), ": ", error) from error
        return [{key: _clean(value, index) for key, value in message.items()} for message in item]

    def prompts(self, work: Work, item: str | Messages, index: int) -> list[Prompt]:
        tokenizer = work.loaded.required_tokenizer
        limit = work.loaded.max_length if self.max_length is None else work.loaded.config.max_sequence_length
        if isinstance(item, str):
            return [Prompt(portion) for portion in self._portions(work, tokenizer, item, index, limit)]
        ends = tuple(end_of_turn(tokenizer))
        return [Prompt(self._conversation(tokenizer, item, index, limit), ends)]

    def generated_text(self, tokenizer: Tokenizer, prompt: Prompt, sequence: GeneratedSequence) -> GeneratedText:
        """Decoded together with the prompt, so that the space between the two is kept."""
        prompt_ids, skip = prompt.portion.ids, self.skip_special_tokens
        ids = sequence.ids[:-1] if sequence.finish_reason == "end" and skip else sequence.ids
        before, whole = self.decode(tokenizer, prompt_ids, skip), self.decode(tokenizer, [*prompt_ids, *ids], skip)
        return self.finish_text(whole[len(before) :], sequence)

    def answer(
        self, work: Work, item: str | Messages, prompts: list[Prompt], texts: list[list[GeneratedText]]
    ) -> Answer:
        portions = [prompt.portion for prompt in prompts]
        read = chunk_coverage(item, portions) if isinstance(item, str) else TextCoverage(cut=portions[0].cut)
        read = replace(read, ids=tuple(portions[-1].ids))
        window = len(prompts) - 1 if len(prompts) > 1 else None
        every = [self._one_answer(work, item, prompts[-1], one).replace(read=read, window=window) for one in texts[-1]]
        for i, prompt in enumerate(prompts[:-1]):
            start, end = prompt.portion.span
            every += [
                self._one_answer(work, item[start:end], prompt, one).replace(read=read, window=i) for one in texts[i]
            ]
        return every[0].replace(all=every if len(every) > 1 else ())

    def _one_answer(self, work: Work, item: Any, prompt: Prompt, text: GeneratedText) -> Answer:
        answer: Any = text.text
        if self.return_full_text and (isinstance(item, str) or self._continues_last_message(item)):
            answer = append_text(item, answer)
        elif self.return_full_text:
            answer = [*item, {"role": "assistant", "content": answer}]
        why = self.attribution(work, [prompt], [text])
        return Answer({"generated_text": answer}, ids=text.sequence.ids, finish_reason=text.finish_reason, why=why)

    def _continues_last_message(self, messages: Messages) -> bool:
        last = messages[-1]["role"] == "assistant"
        return last if self.continue_final_message is None else self.continue_final_message

    def _token_limit(self, limit: int | None, index: int, tokens: int, *advice: str | Argument) -> int | None:
        """To how many of `tokens` a prompt is truncated; None for none. InputError for one that must not be truncated.

        advice: the end of that error.
        """
        if limit is not None and self.long != "error":
            limit -= min(self.settings.max_new_tokens, limit // 2)
        max_tokens = min(n for n in (self.max_length, limit, tokens) if n is not None)
        if tokens <= max_tokens:
            return None
        if self.long == "error":
            excess = format_count(tokens - max_tokens, "token")
            fault = f" has {excess} more than the {max_tokens:,} that can be continued: pass "
            raise InputError(Item(index), fault, _CUT, *advice)
        return max_tokens

    def _portions(self, work: Work, tokenizer: Tokenizer, text: str, index: int, limit: int | None) -> list[TextChunk]:
        reading = PrefixedEncoder(tokenizer, self.prefix or "", self.parse_special_tokens, self.add_special_tokens)
        whole = reading.whole_chunk(text)
        if not whole.ids:
            start = work.loaded.config.bos_token_id
            if start is None:
                raise InputError(Item(index), " has no tokens: a model needs one to begin with")
            return [replace(whole, ids=[start])]
        windows_advice = (" to cut it, or ", Argument("long", "windows"), " to continue each window of it")
        max_tokens = self._token_limit(limit, index, len(whole.ids), *windows_advice)
        if max_tokens is None:
            return [whole]
        side = self.truncation_side or tokenizer.settings.get("truncation_side", "left")
        options: dict[str, Any] = {"rule": self.long, "stride": self.stride, "left": side == "left"}
        return ending_chunks(reading, text, index, room=max_tokens, **options)

    def _conversation(self, tokenizer: Tokenizer, messages: Messages, index: int, limit: int | None) -> TextChunk:
        ids = self._ids(tokenizer, messages, index)
        max_tokens = self._token_limit(limit, index, len(ids), _OLDEST)
        whole, remaining = len(ids), list(messages)
        if max_tokens is not None and self.long == "windows":
            raise InputError(Item(index), " is a conversation too long to be read at once: pass ", _CUT, _OLDEST)
        while max_tokens is not None and len(ids) > max_tokens:
            remaining = without_oldest_turn(remaining)
            if not remaining:
                raise InputError(
                    Item(index),
                    f": the last message alone does not fit into {format_count(max_tokens, 'token')}: shorten it",
                )
            ids = self._ids(tokenizer, remaining, index)
        return TextChunk(ids, (0, 0), whole - len(ids))

    def _ids(self, tokenizer: Tokenizer, messages: Messages, index: int) -> list[int]:
        options: dict[str, Any] = {"continue_final_message": self._continues_last_message(messages)}
        options["parse_special_tokens"] = self.parse_in_messages
        try:
            return [int(i) for i in tokenizer.apply_chat_template(messages, tokenize=True, **options)]
        except InputError as error:
            raise InputError(Item(index), ": ", error) from error


def _clean(value: Any, index: int) -> Any:
    return clean_text(value, index, "item") if isinstance(value, str) else value


def _is_conversation(value: Any) -> bool:
    """Whether this is a list of messages."""
    several = isinstance(value, Sequence) and not isinstance(value, str) and bool(value)
    return several and isinstance(value[0], Mapping) and "role" in value[0]


def append_text(item: str | Messages, text: str) -> str | Messages:
    """A text, or the last message of a conversation, with more text appended."""
    if isinstance(item, str):
        return item + text
    return [*item[:-1], item[-1] | {"content": item[-1]["content"] + text}]


def without_oldest_turn(messages: Messages) -> Messages:
    """A conversation without its oldest turn, a question with its answer; [] where there is only one."""
    first = 1 if messages[0]["role"] == "system" else 0
    later = [i for i in range(first + 1, len(messages)) if messages[i]["role"] == "user"]
    return [*messages[:first], *messages[later[0] :]] if later else []
