"""How a text, or a conversation, goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pellucid.config.checks import choice, truth
from pellucid.errors import Argument, InputError, Item, counted
from pellucid.generation.prompts import end_of_turn
from pellucid.generation.texts import Draft
from pellucid.tasks.answer import Answer, Read
from pellucid.tasks.task import Work
from pellucid.tasks.writer import Prompt, Text, Writer, what_was_read
from pellucid.text import Tokenizer
from pellucid.text.chat import check_messages
from pellucid.text.cut import clean_text
from pellucid.text.portions import Portion, Reading, endings

Messages = list[dict[str, Any]]
_CUT, _OLDEST = Argument("long", "truncate"), " to leave its oldest turns out"


@dataclass(frozen=True, kw_only=True)
class TextGeneration(Writer):
    """How a text goes on, or the next turn of a conversation, `{"generated_text"}`; others are in `.all`.

    parse_in_messages: whether `<|im_end|>`, typed in a message, is that token, as in the reference; else it is plain
        characters, so that no message can end a turn.
    return_full_text: the text with what follows it, or the conversation with its new turn; else what is new alone.
    continue_final_message: goes on with the last message instead of answering it; by default where it is the
        assistant's.
    add_special_tokens: whether a text begins with the tokenizer's usual special tokens.
    skip_special_tokens: whether special tokens that are written are left out of the answer.
    truncation_side: what gives way in a text that is cut, "left" its beginning or "right" its end; by default as the
        tokenizer says, and where it says nothing its beginning. Of a conversation it is the oldest turns; its system
        message stays.
    max_length: by default what the model can read by its own word and its tokenizer's; given, it stands for the latter.
    A text is too long where the model has no place for all of it. Cut, it leaves room for `max_new_tokens`, or for half
    of what the model reads where that is less. In stretches, each is gone on with; the answer follows the last one,
    which is a full one, and what follows the others is in `.all`, in their order. A conversation is not read in
    stretches.
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
        for option in ("parse_in_messages", "return_full_text", "add_special_tokens", "skip_special_tokens"):
            truth(option, getattr(self, option))
        if self.continue_final_message is not None:
            truth("continue_final_message", self.continue_final_message)
        if self.truncation_side is not None:
            choice("truncation_side", self.truncation_side, ("left", "right"))

    @classmethod
    def single(cls, given: Any) -> bool:
        return super().single(given) or _is_conversation(given)

    def item(self, given: Any, index: int) -> str | Messages:
        if not _is_conversation(given):
            return super().item(given, index)
        try:
            check_messages(given)
        except InputError as error:
            raise InputError(Item(index), ": ", error) from error
        return [{key: _clean(value, index) for key, value in message.items()} for message in given]

    def prompts(self, work: Work, item: str | Messages, index: int) -> list[Prompt]:
        tokenizer = work.loaded.words
        limit = work.loaded.longest if self.max_length is None else work.loaded.config.longest
        if isinstance(item, str):
            return [Prompt(portion) for portion in self._portions(work, tokenizer, item, index, limit)]
        ends = tuple(end_of_turn(tokenizer))
        return [Prompt(self._conversation(tokenizer, item, index, limit), ends)]

    def text(self, words: Tokenizer, prompt: Prompt, draft: Draft) -> Text:
        """Decoded with what stands before it, so that the space between the two is there."""
        given, skip = prompt.portion.ids, self.skip_special_tokens
        ids = draft.ids[:-1] if draft.why == "end" and skip else draft.ids
        before, whole = self.decoded(words, given, skip), self.decoded(words, [*given, *ids], skip)
        return self.ended(whole[len(before) :], draft)

    def answer(self, work: Work, item: str | Messages, prompts: list[Prompt], texts: list[list[Text]]) -> Answer:
        portions = [prompt.portion for prompt in prompts]
        read = what_was_read(item, portions) if isinstance(item, str) else Read(cut=portions[0].cut)
        read = replace(read, ids=tuple(portions[-1].ids))
        window = len(prompts) - 1 if len(prompts) > 1 else None
        every = [self._one(work, item, prompts[-1], one).but(read=read, window=window) for one in texts[-1]]
        for i, prompt in enumerate(prompts[:-1]):
            start, end = prompt.portion.span
            every += [self._one(work, item[start:end], prompt, one).but(read=read, window=i) for one in texts[i]]
        return every[0].but(all=every if len(every) > 1 else ())

    def _one(self, work: Work, item: Any, prompt: Prompt, text: Text) -> Answer:
        said: Any = text.text
        if self.return_full_text and (isinstance(item, str) or self._goes_on(item)):
            said = continued(item, said)
        elif self.return_full_text:
            said = [*item, {"role": "assistant", "content": said}]
        why = self.why(work, [prompt], [text])
        return Answer({"generated_text": said}, ids=text.draft.ids, finish_reason=text.finish_reason, why=why)

    def _goes_on(self, messages: Messages) -> bool:
        last = messages[-1]["role"] == "assistant"
        return last if self.continue_final_message is None else self.continue_final_message

    def _most(self, limit: int | None, index: int, tokens: int, *advice: str | Argument) -> int | None:
        """How many of so many tokens may be read; None where all may. InputError where all must be read and cannot.

        advice: what helps then.
        """
        if self.long == "error":
            most = min(n for n in (self.max_length, limit, tokens) if n is not None)
            if tokens > most:
                much = counted(tokens - most, "token")
                raise InputError(
                    Item(index), f" has {much} more than the {most:,} that can be gone on with: pass ", _CUT, *advice
                )
            return None
        new = 0 if limit is None else min(self.settings.max_new_tokens, limit // 2)
        most = min(n for n in (self.max_length, limit and limit - new, tokens) if n is not None)
        return most if tokens > most else None

    def _portions(self, work: Work, tokenizer: Tokenizer, text: str, index: int, limit: int | None) -> list[Portion]:
        reading = Reading(tokenizer, self.prefix or "", self.parse_special_tokens, self.add_special_tokens)
        whole = reading.whole(text)
        if not whole.ids:
            start = work.loaded.config.bos_token_id
            if start is None:
                raise InputError(Item(index), " has no tokens: a model needs one to begin with")
            return [replace(whole, ids=[start])]
        stretches = (" to cut it, or ", Argument("long", "windows"), " to go on with each stretch of it")
        most = self._most(limit, index, len(whole.ids), *stretches)
        if most is None:
            return [whole]
        side = self.truncation_side or tokenizer.settings.get("truncation_side", "left")
        how: dict[str, Any] = {"rule": self.long, "stride": self.stride, "left": side == "left"}
        return endings(reading, text, index, room=most, **how)

    def _conversation(self, tokenizer: Tokenizer, messages: Messages, index: int, limit: int | None) -> Portion:
        ids = self._ids(tokenizer, messages, index)
        most = self._most(limit, index, len(ids), _OLDEST)
        whole, kept = len(ids), list(messages)
        if most is not None and self.long == "windows":
            raise InputError(Item(index), " is a conversation too long to be read at once: pass ", _CUT, _OLDEST)
        while most is not None and len(ids) > most:
            kept = shorter(kept)
            if not kept:
                raise InputError(
                    Item(index), f": the last message alone does not fit into {counted(most, 'token')}: shorten it"
                )
            ids = self._ids(tokenizer, kept, index)
        return Portion(ids, (0, 0), whole - len(ids))

    def _ids(self, tokenizer: Tokenizer, messages: Messages, index: int) -> list[int]:
        on: dict[str, Any] = {"continue_final_message": self._goes_on(messages)}
        on["parse_special_tokens"] = self.parse_in_messages
        try:
            return [int(i) for i in tokenizer.apply_chat_template(messages, tokenize=True, **on)]
        except InputError as error:
            raise InputError(Item(index), ": ", error) from error


def _clean(value: Any, index: int) -> Any:
    return clean_text(value, index, "item") if isinstance(value, str) else value


def _is_conversation(given: Any) -> bool:
    """Whether this is a list of messages."""
    several = isinstance(given, Sequence) and not isinstance(given, str) and bool(given)
    return several and isinstance(given[0], Mapping) and "role" in given[0]


def continued(item: str | Messages, said: str) -> str | Messages:
    """A text, or the last message of a conversation, with some more behind it."""
    if isinstance(item, str):
        return item + said
    return [*item[:-1], item[-1] | {"content": item[-1]["content"] + said}]


def shorter(messages: Messages) -> Messages:
    """A conversation without its oldest turn, which is a question with its answer; [] where there is but one."""
    first = 1 if messages[0]["role"] == "system" else 0
    later = [i for i in range(first + 1, len(messages)) if messages[i]["role"] == "user"]
    return [*messages[:first], *messages[later[0] :]] if later else []
