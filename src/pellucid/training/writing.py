"""Sequence-to-sequence training: an encoder-decoder is trained to generate a translation, a summary or an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head, SequenceToSequenceLM
from pellucid.config.checks import check_bool, check_count, check_range
from pellucid.errors import Argument, InputError, format_count, shorten
from pellucid.generation.checkpoint_settings import required_start_token, with_end_tokens
from pellucid.generation.prompts import GenerationRequest, missing_end_token
from pellucid.generation.texts import decode_sequence, generate_all
from pellucid.tasks import writing as answering
from pellucid.tasks.task_settings import params_of, prefix_of, task_generation_settings, translation_tasks, with_prefix
from pellucid.text.prefix import encode_with_prefix
from pellucid.text.truncation import check_has_tokens, warn_of_truncation
from pellucid.training.data import row_location
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED, vocabulary_loss
from pellucid.training.metrics import require_library, translation_scores
from pellucid.training.objective import Example, Fields, Objective, batch_of, head_for
from pellucid.training.reading import token_limit
from pellucid.training.sequence_packing import padded
from pellucid.training.source_and_target import BY_LANGUAGE, source_and_target_texts
from pellucid.training.token_likelihood import likelihood_scores, target_features

_GENERATION_OPTIONS = ("num_beams", "length_penalty", "max_new_tokens")
"""Options for generating from held-out texts."""

_MAX_EXTRA_TOKENS = 50
"""Tokens that a generated text may have beyond its source (Vaswani et al., 2017, arXiv:1706.03762, section 6.1)."""


@dataclass(frozen=True, kw_only=True)
class TextToText(Objective):
    """Prediction of a target text from a source text, token by token (Sutskever et al., 2014, arXiv:1409.3215);
    cross-entropy. Rows hold `text` and `target`, or a `translation`, {"en": ..., "de": ...}.

        source --> encoder --.
                              v
        start  w1  w2 --> decoder --> w1  w2  end        (inputs and labels of the decoder)

    max_length: tokens of a source, special ones included.  max_target_length: of a target.
    label_smoothing: probability mass spread evenly over the vocabulary in training.
    prefix: text before each source; None for the checkpoint's. It is saved with the model.
    src_lang, tgt_lang: language codes. They select T5's prefix, or special tokens of the tokenizer ("__de__" for "de",
        "de_DE"), which are put before the texts; and the two texts of a `translation`.
    parse_special_tokens: whether `<extra_id_0>` in a text is that token, else plain characters. In the prefix it always
        is the token.
    generate: whether to generate from held-out texts, scored by BLEU and chrF: True at each evaluation, False never,
        None once at the end.
    num_beams, length_penalty, max_new_tokens: for generating; None for the checkpoint's, of this task or else of all,
        and for at most 50 tokens more than the longest source (Vaswani et al., 2017, section 6.1).
    """

    max_target_length: int | None = None
    label_smoothing: float = 0.0
    prefix: str | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    parse_special_tokens: bool = True
    generate: bool | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    max_new_tokens: int | None = None

    name: ClassVar[str] = "text2text-generation"
    task_class: ClassVar[type[answering.Writing]] = answering.TextToText
    """The task of models trained by it."""
    columns: ClassVar[tuple[str, ...]] = ("text", "target", BY_LANGUAGE)
    reading_options: ClassVar[tuple[str, ...]] = ("prefix", "src_lang", "tgt_lang", "parse_special_tokens")
    parallel: ClassVar[tuple[str, ...]] = ("text", "target")
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("label_smoothing", self.label_smoothing, minimum=0.0, below=1.0)
        check_bool("parse_special_tokens", self.parse_special_tokens)
        for name in ("max_target_length", "num_beams", "max_new_tokens"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.generate is False and (
            lone := [name for name in _GENERATION_OPTIONS if getattr(self, name) is not None]
        ):
            raise InputError(
                f"{lone[0]} is for generation, and ", Argument("generate", False), " writes nothing: leave one out"
            )
        for name in ("prefix", "src_lang", "tgt_lang"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or (name != "prefix" and not value.strip())):
                raise InputError(f"{name} is {shorten(str(value), 40)!r}, expected a text")

    def fitted(self, rows: Sequence[Fields]) -> Self:
        if self.generate is not False:
            require_library("sacrebleu")
        source_and_target_texts(rows, self.src_lang, self.tgt_lang)
        return self

    def head(self, loaded: Loaded) -> Head:
        if loaded.config.kind != "encoder-decoder":
            own = "an encoder" if loaded.config.kind == "encoder" else f"a {loaded.config.kind}"
            raise InputError(f"{self.name} needs a model with an encoder and a decoder, and this one is {own}")
        return head_for(loaded, SequenceToSequenceLM.name)

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        params = params_of(loaded)
        names = [name for name in self._task_names(loaded) if name in params]
        if self.src_lang and self.tgt_lang and translation_tasks(loaded):
            names.append("translation")  # used for calls without languages
        return with_prefix(loaded, self._prefixes(loaded)[0], names)

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        before, begins = self._prefixes(loaded)
        reads, right = source_and_target_texts(rows, self.src_lang, self.tgt_lang)
        max_tokens, parse = token_limit(loaded, self.max_length), self.parse_special_tokens
        sources = encode_with_prefix(
            loaded.required_tokenizer, before, reads, max_length=max_tokens, parse_special_tokens=parse
        )
        targets = self._targets(loaded, begins, right)
        for row, source in zip(rows, sources):
            check_has_tokens(source.ids, f"{row_location(row)}: 'text'")
        warn_of_truncation(sum(source.cut > 0 for source in sources), len(sources), max_tokens)
        return [
            Example((source.ids, target), (source.type_ids,), text)
            for source, target, text in zip(sources, targets, right)
        ]

    def _targets(self, loaded: Loaded, begins: str, right: Sequence[str]) -> list[list[int]]:
        """The token ids of each target, with its prefix, and with the end token last."""
        target_tokenizer = loaded.required_target_tokenizer
        if not loaded.config.end_tokens:
            raise InputError(
                "this model has no token that ends a text, so it cannot learn to end: name its eos_token_id"
            )
        added = missing_end_token(loaded)
        limits = (loaded.config.max_sequence_length, target_tokenizer.model_max_length, self.max_target_length)
        max_tokens = min((one for one in limits if one), default=None)
        special = target_tokenizer.added_tokens(pair=False) + len(added)
        if max_tokens is not None and max_tokens <= special:
            fault = f"a target may have {format_count(max_tokens, 'token')}, and {special} are special ones: "
            raise InputError(fault, "none is left for its text; raise ", Argument("max_target_length"))
        room = max_tokens if max_tokens is None else max_tokens - len(added)
        rows = encode_with_prefix(
            target_tokenizer, begins, right, max_length=room, parse_special_tokens=self.parse_special_tokens
        )
        warn_of_truncation(sum(row.cut > 0 for row in rows), len(rows), max_tokens, "target")
        return [[*row.ids, *added] for row in rows]

    def _prefixes(self, loaded: Loaded) -> tuple[str, str]:
        """The prefix of each source, and that of each target."""
        marks = [
            _language_token(loaded, language, side)
            for language, side in ((self.src_lang, "src"), (self.tgt_lang, "tgt"))
        ]
        if self.prefix is not None or marks[0] or marks[1]:
            return marks[0] if self.prefix is None else self.prefix, marks[1]
        if self.src_lang or self.tgt_lang:
            return answering.Translation.resolve_options(loaded, self._languages)["prefix"] or "", ""
        return prefix_of(loaded, self.task_class.task_names(loaded, {})) or "", ""

    def _task_names(self, loaded: Loaded) -> list[str]:
        """The names of this task in a checkpoint's task settings, the most specific first."""
        if self.src_lang and self.tgt_lang:
            return [self.name, *answering.Translation.task_names(loaded, self._languages)]
        return self.task_class.task_names(loaded, {})

    @property
    def _languages(self) -> dict[str, str | None]:
        return {"src_lang": self.src_lang, "tgt_lang": self.tgt_lang}

    # -- examples to a loss -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        start, targets = required_start_token(loaded), [one.ids[1] for one in examples]
        width = max(map(len, targets))
        decoder_inputs = padded([[start, *ids][:width] for ids in targets], loaded.config.pad_token_id or 0)
        return batch_of(loaded, examples, decoder_input_ids=decoder_inputs, labels=padded(targets, IGNORED))

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return float((batch["labels"] != IGNORED).sum())

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        features, (weight, bias), labels = target_features(learner, batch)
        return vocabulary_loss(features, weight, bias, labels, smoothing=self.label_smoothing, dtype=learner.dtype)

    # -- scores -------------------------------------------------------------------------------------------------------

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """The unsmoothed loss, perplexity and accuracy of target tokens; with `generate`, also BLEU and chrF."""

        def read(group: list[int]) -> dict[str, Tensor]:
            return self.collate(loaded, [examples[i] for i in group], np.random.default_rng(0))

        found = likelihood_scores(loaded, examples, read)
        return found | (self._generation_scores(loaded, examples) if self.generate else {})

    def final_scores(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        found = self.score(loaded, examples)
        return found if self.generate is not None else found | self._generation_scores(loaded, examples)

    def check_held_out(self, loaded: Loaded, examples: Sequence[Example]) -> None:
        if examples and self.generate is not False:
            self._generation_request(loaded, examples)

    def _generation_scores(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """Generates one text for each source, and compares them with the targets.

        ->  "bleu" and "chrf", from 0 to 100, and "exact_match", the share of texts equal to their target
        """
        request, right = self._generation_request(loaded, examples), [one.target for one in examples]
        found = [decode_sequence(request, draft)[0].strip() for draft, *_ in generate_all(request, None)]
        same = sum(one == truth.strip() for one, truth in zip(found, right))
        return translation_scores(right, found) | {"exact_match": same / len(right)}

    def _generation_request(self, loaded: Loaded, examples: Sequence[Example]) -> GenerationRequest:
        """The request that generates from the sources of some examples."""
        sources = [one.ids[0] for one in examples]
        options = {name: getattr(self, name) for name in _GENERATION_OPTIONS} | {
            "do_sample": False,
            "num_return_sequences": 1,
        }
        length_defaults = {"max_new_tokens": max(map(len, sources)) + _MAX_EXTRA_TOKENS}
        settings = task_generation_settings(loaded, options, self._task_names(loaded), length_defaults)
        return GenerationRequest(with_end_tokens(loaded), loaded.required_target_tokenizer, sources, settings)


@dataclass(frozen=True, kw_only=True)
class Summarization(TextToText):
    """Summaries of texts, read as by the task `summarization`."""

    parse_special_tokens: bool = False

    name: ClassVar[str] = "summarization"
    task_class: ClassVar[type[answering.Writing]] = answering.Summarization


@dataclass(frozen=True, kw_only=True)
class Translation(TextToText):
    """Translations of texts, read as by the task `translation`."""

    parse_special_tokens: bool = False

    name: ClassVar[str] = "translation"
    task_class: ClassVar[type[answering.Writing]] = answering.Translation


def _language_token(loaded: Loaded, language: str | None, side: str) -> str:
    """The special token of a language, as mBART and M2M have them; "" where there is none."""
    if language is None:
        return ""
    tokenizer = loaded.required_tokenizer if side == "src" else loaded.required_target_tokenizer
    forms = (language, f"__{language}__")
    found = zip(forms, tokenizer.convert_tokens_to_ids(forms))
    return next((form for form, i in found if i in tokenizer.special_ids), "")
