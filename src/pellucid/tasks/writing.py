"""A text in fewer words, in another language, or whatever else an encoder-decoder writes for it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, Blank, InputError, Item, short
from pellucid.generation.texts import Draft
from pellucid.tasks.answer import Answer
from pellucid.tasks.languages import LANGUAGES, code_of, language
from pellucid.tasks.task import Work
from pellucid.tasks.task_settings import pairs_of, params_of, prefix_of
from pellucid.tasks.writer import Prompt, Text, Writer, what_was_read
from pellucid.text import Tokenizer
from pellucid.text.cut import check_read
from pellucid.text.portions import Reading, sentences

_OF_LANGUAGES = re.compile(r"<2\w+> |translate [\w ]+ to [\w ]+: ")
"""What a model is told of two languages, see `Translation.fitting`."""


@dataclass(frozen=True, kw_only=True)
class Writing(Writer):
    """What an encoder-decoder writes for a text, under one key; what else it found is in `.all`.

    A text read in stretches is cut where a sentence ends, else where a word does, with nothing shared; each stretch is
    written for alone, and what was written is joined by spaces.
    max_length: by default what the model can read; where it has no such limit (T5), what its tokenizer states.
    """

    heads: ClassVar[tuple[str | None, ...]] = ("sequence-to-sequence-lm",)
    defaults: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 256, "num_beams": 4}
    key: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride:
            raise InputError(f"stride is {self.stride}, and stretches of {self.name} share nothing: leave it out")

    def prompts(self, work: Work, item: str, index: int) -> list[Prompt]:
        tokenizer = work.loaded.words
        reading = Reading(tokenizer, self.prefix or "", self.parse_special_tokens)
        limit = work.loaded.most(self.max_length or tokenizer.model_max_length)
        portions = sentences(reading, item, index, rule=self.long, limit=limit)
        check_read(portions[0].ids, Item(index))
        return [Prompt(portion) for portion in portions]

    def text(self, words: Tokenizer, prompt: Prompt, draft: Draft) -> Text:
        ids = draft.ids[:-1] if draft.why == "end" else draft.ids
        return self.ended(self.decoded(words, ids), draft)

    def answer(self, work: Work, item: str, prompts: list[Prompt], texts: list[list[Text]]) -> Answer:
        portions = [prompt.portion for prompt in prompts]
        every = [self._one(work, item, prompts, list(rank)) for rank in zip(*texts)]
        every = [one.but(read=what_was_read(item, portions)) for one in every]
        return every[0].but(all=every if len(every) > 1 else ())

    def _one(self, work: Work, item: str, prompts: list[Prompt], texts: list[Text]) -> Answer:
        whole = texts[0].text if len(texts) == 1 else " ".join(filter(None, (one.text.strip() for one in texts)))
        ids = [i for one in texts for i in one.draft.ids]
        ends = next(
            (one.finish_reason for one in texts if one.finish_reason in ("length", "time")), texts[-1].finish_reason
        )
        return Answer({self.key: whole}, ids=ids, finish_reason=ends, why=self.why(work, prompts, texts))


@dataclass(frozen=True, kw_only=True)
class Summarization(Writing):
    """A text in fewer words, `{"summary_text"}`."""

    name: ClassVar[str] = "summarization"
    key: ClassVar[str] = "summary_text"


@dataclass(frozen=True, kw_only=True)
class TextToText(Writing):
    """What an encoder-decoder writes for a text, `{"generated_text"}`. Tokens like `<extra_id_0>` may be typed."""

    parse_special_tokens: bool = True

    name: ClassVar[str] = "text2text-generation"
    key: ClassVar[str] = "generated_text"


@dataclass(frozen=True, kw_only=True)
class Translation(Writing):
    """A text in another language, `{"translation_text"}`.

    src_lang, tgt_lang: the languages, by code ("de") or by name ("German"); translation_en_to_de says both. They choose
        what the checkpoint tells of these two, and what T5 is told where it tells nothing; of a model that knows but
        one pair they say nothing. Where neither is named, it is the pair that the checkpoint tells of: English to
        German where that is one of them, as in the reference.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None

    name: ClassVar[str] = "translation"
    key: ClassVar[str] = "translation_text"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, said in (("src_lang", self.src_lang), ("tgt_lang", self.tgt_lang)):
            if said is not None and (not isinstance(said, str) or not said.strip()):
                raise InputError(f"{option} is {short(str(said), 40)!r}, expected a language, such as 'de' or 'German'")

    @classmethod
    def names(cls, loaded: Loaded, options: Mapping[str, Any]) -> list[str]:
        source, target = options.get("src_lang"), options.get("tgt_lang")
        if source is None and target is None:
            told = pairs_of(loaded)
            return ["translation", *(["translation_en_to_de"] if "translation_en_to_de" in told else told[:1])]
        codes = (code_of(one) if isinstance(one, str) else one for one in (source, target))
        return [f"translation_{source}_to_{target}", "translation_{}_to_{}".format(*codes)]

    @classmethod
    def fitting(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        given = super().fitting(loaded, options)
        source, target = given.get("src_lang"), given.get("tgt_lang")
        if options.get("prefix") is None and isinstance(target, str) and _of_another(loaded, cls.names(loaded, given)):
            given["prefix"] = None
        if given["prefix"] is not None or source is target is None:
            return given
        if isinstance(target, str) and (mark := _mark(loaded, target)):
            return given | {"prefix": f"{mark} "}
        both, pairs = loaded.family.told_languages, pairs_of(loaded)
        if (source is None or target is None) and (both or pairs):
            one, said, lacks = ("src_lang", source, "tgt_lang") if target is None else ("tgt_lang", target, "src_lang")
            told = f"{one} is {short(str(said), 40)!r}, and this model is told both languages: pass "
            raise InputError(told, Argument(lacks, Blank("CODE")), " too")
        if both and isinstance(source, str) and isinstance(target, str):
            pair = language("src_lang", source), language("tgt_lang", target)
            given["prefix"] = "translate {} to {}: ".format(*pair)
        return given


def _mark(loaded: Loaded, target: str) -> str | None:
    """The token that names the language to write, as MADLAD has them; None for a model that has none for any.
    Raises InputError for a language that such a model lacks."""
    words = loaded.tokenizer
    if words is None or not loaded.family.told_languages:
        return None
    known = [f"<2{code}>" for code in (target, code_of(target), *LANGUAGES)]
    found = [mark for mark, i in zip(known, words.convert_tokens_to_ids(known)) if i is not None]
    if not found or found[0] in known[:2]:
        return next(iter(found), None)
    raise InputError(
        f"tgt_lang is {short(target, 40)!r}, and this model has no token for it, such as {found[0]}: what it is told "
        "otherwise can be said with prefix"
    )


def _of_another(loaded: Loaded, names: Sequence[str]) -> bool:
    """Whether the text that the checkpoint tells of any task is that of the languages that it has learned, and none of
    these names is told one of its own."""
    own = any("prefix" in params_of(loaded).get(name, {}) for name in names)
    said = None if own or not loaded.family.told_languages else prefix_of(loaded, [])
    return said is not None and _OF_LANGUAGES.fullmatch(said) is not None
