"""Tasks that write: what to read of each item, and what becomes of the texts that the model writes for it.

items --prompts()--> ids --side by side, those of one length together--> texts --answer()--> answers, in their order
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import truth
from pellucid.errors import InputError
from pellucid.generation import Settings
from pellucid.generation.checkpoint_settings import with_ends
from pellucid.generation.options import tokens
from pellucid.generation.prompts import Order
from pellucid.generation.settings import names as names_of_writing
from pellucid.generation.stops import cut
from pellucid.generation.texts import Draft, written
from pellucid.tasks.answer import Answer, Read, Reason
from pellucid.tasks.attribution import reason_of_writing
from pellucid.tasks.task import Found, Task, Work, text_alone
from pellucid.tasks.task_settings import prefix_of, settled
from pellucid.text import Tokenizer
from pellucid.text.cut import clean_text
from pellucid.text.portions import Portion

TOGETHER = 64
"""So many items are sorted by length at a time; their answers are there before the next ones are read."""


@dataclass(frozen=True)
class Prompt:
    """What the model reads for an item, or for a stretch of it.

    portion: its tokens, and where they stand.  ends: tokens that end an answer to it, beside the model's own.
    """

    portion: Portion
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """A text that was written.  draft: its tokens, and why they end."""

    text: str
    draft: Draft
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class Writer(Task):
    """A task that writes. Every option of writing is an option of it by its name: max_new_tokens, num_beams, do_sample,
    temperature, seed, stop, num_return_sequences and all others.

    settings: how to write, from these options; what is not asked for is as the checkpoint says, first for this task
        (`task_specific_params`), then for all writing, and else the task's own default.
    prefix: a text before each item, and before each stretch of it; by default what the checkpoint says for this task.
    parse_special_tokens: whether `<extra_id_0>`, typed in an item, is that token; else it is plain characters. In the
        prefix it is that token.
    eos_token_id: the tokens that end a text in place of the model's own; `stop_token_ids` come beside them.
    clean_up_tokenization_spaces: takes the space away before `.`, `,`, `n't` and their like, as the reference may; not
        from the texts of BPE, whose tokens spell their spaces.
    keep_stop: whether a text that a `stop` ends keeps it, and the rest of its last token, as in the reference.
    """

    settings: Settings = field(default_factory=Settings)
    prefix: str | None = None
    parse_special_tokens: bool = False
    clean_up_tokenization_spaces: bool = False
    eos_token_id: int | Sequence[int] | None = None
    keep_stop: bool = False

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    defaults: ClassVar[Mapping[str, Any]]
    """Options of writing, where neither the person nor the checkpoint says anything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        truth("parse_special_tokens", self.parse_special_tokens)
        truth("clean_up_tokenization_spaces", self.clean_up_tokenization_spaces)
        truth("keep_stop", self.keep_stop)
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise InputError(f"prefix is {type(self.prefix).__name__}, expected a text")
        if self.eos_token_id is not None:
            tokens("eos_token_id", self.eos_token_id, None)

    @classmethod
    def options(cls) -> list[str]:
        own = [one.name for one in fields(cls) if one.name != "settings"]
        return [*own, *(name for name in names_of_writing() if name not in own)]

    @classmethod
    def fitting(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        own = {one.name for one in fields(cls)}
        given = {name: value for name, value in options.items() if name in own}
        asked = {name: value for name, value in options.items() if name not in own}
        names = cls.names(loaded, given)
        if given.get("prefix") is None:
            given["prefix"] = prefix_of(loaded, names)
        return given | {"settings": settled(loaded, asked, names, cls.defaults)}

    @classmethod
    def names(cls, loaded: Loaded, options: Mapping[str, Any]) -> list[str]:
        """What a checkpoint may call this task, the best first."""
        return [cls.name]

    @abstractmethod
    def prompts(self, work: Work, item: Any, index: int) -> list[Prompt]:
        """What is read for an item: one prompt, or one for each stretch of it."""

    @abstractmethod
    def text(self, words: Tokenizer, prompt: Prompt, draft: Draft) -> Text:
        """The text of what was written behind a prompt."""

    @abstractmethod
    def answer(self, work: Work, item: Any, prompts: list[Prompt], texts: list[list[Text]]) -> Answer:
        """The answer to an item.  texts: for each of its prompts, as many as were asked for, the best first."""

    def item(self, given: Any, index: int) -> Any:
        return clean_text(text_alone(given, index), index, "item")

    def solve(self, work: Work, items: Sequence[Any], first: int) -> Iterator[Found]:
        numbered = enumerate(items, first)
        while some := list(itertools.islice(numbered, TOGETHER)):
            asked = [self.prompts(work, item, number) for number, item in some]
            texts = iter(self._written(work, list(itertools.chain.from_iterable(asked))))
            for (_, item), prompts in zip(some, asked):
                yield self.answer(work, item, prompts, list(itertools.islice(texts, len(prompts))))

    def _written(self, work: Work, prompts: list[Prompt]) -> list[list[Text]]:
        """The texts behind each prompt."""
        found: dict[int, list[Text]] = {}
        words, loaded = work.loaded.target_words, work.loaded
        if work.dtype is not None:
            loaded = replace(loaded, module=loaded.module.swift(work.dtype))
        for ends in dict.fromkeys(prompt.ends for prompt in prompts):
            which = [i for i, prompt in enumerate(prompts) if prompt.ends == ends]
            rows = [prompts[i].portion.ids for i in which]
            order = Order(self._ending(loaded, ends), words, rows, self.settings)
            for group in order.groups():
                for i, drafts in zip(group, written(order, group)):
                    found[which[i]] = [self.text(words, prompts[which[i]], draft) for draft in drafts]
        return [found[i] for i in range(len(prompts))]

    def _ending(self, loaded: Loaded, ends: tuple[int, ...]) -> Loaded:
        """The model with the tokens that end a text."""
        if self.eos_token_id is None:
            return with_ends(loaded, ends)
        given = (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)
        return replace(loaded, config=loaded.config.replace(eos_token_id=given))

    def decoded(self, words: Tokenizer, ids: Sequence[int], skip: bool = True) -> str:
        """Ids as a text, cleaned where that was asked for.  skip: leaves special tokens out."""
        return words.cleaned(words.decode(ids, skip_special_tokens=skip), self.clean_up_tokenization_spaces)

    def ended(self, whole: str, draft: Draft) -> Text:
        """What was written, up to a stop."""
        text, stopped = cut(whole, self.settings.stop)
        return Text(whole if self.keep_stop else text, draft, "stop" if stopped else draft.why)

    def why(self, work: Work, prompts: Sequence[Prompt], texts: Sequence[Text]) -> Reason | None:
        """What mattered for these texts, each behind its prompt; None where nobody asked."""
        if not self.explain:
            return None
        pairs = zip(prompts, texts)
        reasons = [reason_of_writing(work.loaded, prompt.portion.ids, text.draft.ids) for prompt, text in pairs]
        tokens = tuple(token for reason in reasons for token in reason.tokens)
        scores = tuple(score for reason in reasons for score in reason.scores)
        return Reason(reasons[0].said, tokens, scores, reasons[0].method)


def what_was_read(text: str, portions: Sequence[Portion]) -> Read:
    """What was read of an item's text."""
    return Read(tuple(one.span for one in portions), sum(one.cut for one in portions), not text.strip())
