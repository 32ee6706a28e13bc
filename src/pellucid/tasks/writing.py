"""Summarization, translation, and other text that an encoder-decoder generates from a text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, InputError, Item, Placeholder, shorten
from pellucid.generation.texts import GeneratedSequence
from pellucid.tasks.answer import Answer
from pellucid.tasks.languages import LANGUAGES, code_of, language
from pellucid.tasks.task import Work
from pellucid.tasks.task_settings import params_of, prefix_of, translation_tasks
from pellucid.tasks.writer import GeneratedText, Prompt, Writer, chunk_coverage
from pellucid.text import Tokenizer
from pellucid.text.chunks import PrefixedEncoder, sentence_chunks
from pellucid.text.truncation import check_has_tokens

_OF_LANGUAGES = re.compile(r"<2\w+> |translate [\w ]+ to [\w ]+: ")
"""Prefixes that name languages, see `Translation.resolve_options`."""


@dataclass(frozen=True, kw_only=True)
class Writing(Writer):
    """The text that an encoder-decoder generates from a text, under one key; alternatives are in `.all`.

    A text read in windows is cut at the end of a sentence, else of a word, without overlap; a text is generated for
    each window separately, and these are joined by spaces.
    max_length: by default the model's limit; where it has none (T5), the tokenizer's.
    """

    heads: ClassVar[tuple[str | None, ...]] = ("sequence-to-sequence-lm",)
    defaults: ClassVar[Mapping[str, Any]] = {"max_new_tokens": 256, "num_beams": 4}
    key: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride:
            raise InputError(f"stride is {self.stride}, and windows of {self.name} do not overlap: leave it out")

    def prompts(self, work: Work, item: str, index: int) -> list[Prompt]:
        tokenizer = work.loaded.required_tokenizer
        reading = PrefixedEncoder(tokenizer, self.prefix or "", self.parse_special_tokens)
        limit = work.loaded.capped_length(self.max_length or tokenizer.model_max_length)
        portions = sentence_chunks(reading, item, index, rule=self.long, limit=limit)
        check_has_tokens(portions[0].ids, Item(index))
        return [Prompt(portion) for portion in portions]

    def generated_text(self, tokenizer: Tokenizer, prompt: Prompt, sequence: GeneratedSequence) -> GeneratedText:
        ids = sequence.ids[:-1] if sequence.finish_reason == "end" else sequence.ids
        return self.finish_text(self.decode(tokenizer, ids), sequence)

    def answer(self, work: Work, item: str, prompts: list[Prompt], texts: list[list[GeneratedText]]) -> Answer:
        read = chunk_coverage(item, [prompt.portion for prompt in prompts])
        every = [self._joined_answer(work, prompts, list(rank)).replace(read=read) for rank in zip(*texts)]
        return every[0].replace(all=every if len(every) > 1 else ())

    def _joined_answer(self, work: Work, prompts: list[Prompt], texts: list[GeneratedText]) -> Answer:
        whole = texts[0].text if len(texts) == 1 else " ".join(filter(None, (one.text.strip() for one in texts)))
        ids = [i for one in texts for i in one.sequence.ids]
        ends = next(
            (one.finish_reason for one in texts if one.finish_reason in ("length", "time")), texts[-1].finish_reason
        )
        return Answer({self.key: whole}, ids=ids, finish_reason=ends, why=self.attribution(work, prompts, texts))


@dataclass(frozen=True, kw_only=True)
class Summarization(Writing):
    """A summary of a text, `{"summary_text"}`."""

    name: ClassVar[str] = "summarization"
    key: ClassVar[str] = "summary_text"


@dataclass(frozen=True, kw_only=True)
class TextToText(Writing):
    """What an encoder-decoder generates from a text, `{"generated_text"}`. Tokens such as `<extra_id_0>` are parsed."""

    parse_special_tokens: bool = True

    name: ClassVar[str] = "text2text-generation"
    key: ClassVar[str] = "generated_text"


@dataclass(frozen=True, kw_only=True)
class Translation(Writing):
    """A translation of a text, `{"translation_text"}`.

    src_lang, tgt_lang: the languages, by code ("de") or by name ("German"); translation_en_to_de sets both. They select
        the checkpoint's settings for this pair, and T5's prefix where it has none; a model for a single pair ignores
        them. Where neither is given, the pair is one that the checkpoint has settings for: English to German if it is
        among them, as in the reference.
    """

    src_lang: str | None = None
    tgt_lang: str | None = None

    name: ClassVar[str] = "translation"
    key: ClassVar[str] = "translation_text"

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, name in (("src_lang", self.src_lang), ("tgt_lang", self.tgt_lang)):
            if name is not None and (not isinstance(name, str) or not name.strip()):
                raise InputError(
                    f"{option} is {shorten(str(name), 40)!r}, expected a language, such as 'de' or 'German'"
                )

    @classmethod
    def task_names(cls, loaded: Loaded, options: Mapping[str, Any]) -> list[str]:
        source, target = options.get("src_lang"), options.get("tgt_lang")
        if source is None and target is None:
            pairs = translation_tasks(loaded)
            return ["translation", *(["translation_en_to_de"] if "translation_en_to_de" in pairs else pairs[:1])]
        codes = (code_of(one) if isinstance(one, str) else one for one in (source, target))
        return [f"translation_{source}_to_{target}", "translation_{}_to_{}".format(*codes)]

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        resolved = super().resolve_options(loaded, options)
        source, target = resolved.get("src_lang"), resolved.get("tgt_lang")
        if (
            options.get("prefix") is None
            and isinstance(target, str)
            and _has_other_languages_prefix(loaded, cls.task_names(loaded, resolved))
        ):
            resolved["prefix"] = None
        if resolved["prefix"] is not None or source is target is None:
            return resolved
        if isinstance(target, str) and (mark := _language_token(loaded, target)):
            return resolved | {"prefix": f"{mark} "}
        both, pairs = loaded.family.prompts_with_languages, translation_tasks(loaded)
        if (source is None or target is None) and (both or pairs):
            one, name, lacks = ("src_lang", source, "tgt_lang") if target is None else ("tgt_lang", target, "src_lang")
            wrong = f"{one} is {shorten(str(name), 40)!r}, and this model needs both languages: pass "
            raise InputError(wrong, Argument(lacks, Placeholder("CODE")), " too")
        if both and isinstance(source, str) and isinstance(target, str):
            pair = language("src_lang", source), language("tgt_lang", target)
            resolved["prefix"] = "translate {} to {}: ".format(*pair)
        return resolved


def _language_token(loaded: Loaded, target: str) -> str | None:
    """The token that names the target language, as MADLAD has them; None for a model without such tokens. Raises
    InputError for a language that such a model lacks."""
    tokenizer = loaded.tokenizer
    if tokenizer is None or not loaded.family.prompts_with_languages:
        return None
    known = [f"<2{code}>" for code in (target, code_of(target), *LANGUAGES)]
    found = [mark for mark, i in zip(known, tokenizer.convert_tokens_to_ids(known)) if i is not None]
    if not found or found[0] in known[:2]:
        return next(iter(found), None)
    raise InputError(
        f"tgt_lang is {shorten(target, 40)!r}, and this model has no token for it, such as {found[0]}: a "
        "prompt in other words can be set with prefix"
    )


def _has_other_languages_prefix(loaded: Loaded, names: Sequence[str]) -> bool:
    """Whether the checkpoint's general prefix names the languages that it was trained for, and none of these tasks has
    a prefix of its own."""
    own = any("prefix" in params_of(loaded).get(name, {}) for name in names)
    prefix = None if own or not loaded.family.prompts_with_languages else prefix_of(loaded, [])
    return prefix is not None and _OF_LANGUAGES.fullmatch(prefix) is not None
