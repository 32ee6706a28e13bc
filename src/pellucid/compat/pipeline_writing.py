"""Arguments of the reference's pipelines that generate: lengths, search, decoding; complete for those of
encoder-decoders."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from pellucid.compat.arguments import UnsupportedArguments
from pellucid.compat.generate import (
    DEFAULT_LENGTH,
    REFERENCE_TOP_K,
    TORCH_GENERATOR,
    compatible_lengths,
    new_token_budget,
    without_idle_options,
)
from pellucid.compat.generation_config import UNSUPPORTED, options_from_settings
from pellucid.compat.pipeline_call import ItemGroup, PipelineCall
from pellucid.config.checks import check_count
from pellucid.errors import InputError, shorten
from pellucid.generation.checkpoint_settings import REFERENCE_LENGTH, required_start_token
from pellucid.generation.settings import CONFLICT_NOTE, SAMPLING, check_beams
from pellucid.generation.settings import option_names as names_of_writing
from pellucid.model import Model
from pellucid.tasks.task_settings import params_of, prefix_of

log = logging.getLogger("pellucid")

DEFAULT_NEW_TOKENS = 256
"""The default number of new tokens."""

_WITHOUT_EFFECT = ("use_cache", "cache_implementation", "pad_token_id", "return_text", "return_type")
"""Arguments that do not change the generated text; `pad_token_id` only pads several texts in one tensor."""


class GenerationCall(PipelineCall, ABC):
    """What all pipelines that generate share.

    In this version of the reference the pipeline's own defaults override the checkpoint's, so `max_length`, of a call
    or of `task_specific_params`, is ignored beside the default of 256 new tokens. It only has an effect where
    `generation_config.json` or the arguments of the pipeline set it, or that default is cleared
    (`max_new_tokens=None`). A `generation_config` replaces these defaults; where it sets nothing, the checkpoint's
    settings apply.
    """

    takes = (
        "return_tensors clean_up_tokenization_spaces truncation stop_sequence max_length eos_token_id generation_config"
    )
    clearable_arguments = "eos_token_id add_special_tokens"
    our_names: ClassVar[Mapping[str, str]] = {"stop_strings": "stop"}
    defaults: ClassVar[Mapping[str, Any]]
    unsupported: ClassVar[UnsupportedArguments] = {
        **PipelineCall.unsupported,
        **{name: one and one.replace("model.pellucid.", "pipe.model.") for name, one in UNSUPPORTED.items()},
        "streamer": "pipe.model.stream(prompt) gives a text piece by piece, as it is written",
    }

    def __init__(self, task: str, model: Model, options: Mapping[str, Any], call: Mapping[str, Any]) -> None:
        settings = _first_set("generation_config", call, options)
        self.has_generation_config, self.typed_arguments = settings is not None, call
        if self.has_generation_config:  # which replace the pipeline's generation arguments
            call = options_from_settings(
                model.loaded, settings, self.argument_names(), self.unsupported
            ) | self.as_ours(call)
            writing = {*names_of_writing(), *self.our_names, "max_length", "eos_token_id"}
            options = {name: one for name, one in options.items() if name not in writing}
        super().__init__(task, model, options, call)

    @classmethod
    def argument_names(cls) -> list[str]:
        return list(dict.fromkeys([*cls.takes.split(), *names_of_writing(), *cls.our_names, *_WITHOUT_EFFECT]))

    def item_groups(self, items: Iterable[Any]) -> Iterator[ItemGroup]:
        from_checkpoint = self.model.loaded.generation | self._task_params()
        options, limit = without_idle_options(self.options(), from_checkpoint), self._length_limit()
        effective = {"num_beams": from_checkpoint.get("num_beams", 1), **self._effective_arguments()}
        if (
            effective.get("do_sample")
            and effective["num_beams"] > 1
            and not {"do_sample", "num_beams"} <= self.arguments.keys()
        ):
            does = "searches" if options.get("num_beams", 1) > 1 else "draws"
            log.warning(CONFLICT_NOTE, "these pipelines do both unless a call says otherwise", does)
        if options.get("do_sample", from_checkpoint.get("do_sample") and options.get("num_beams", 1) == 1):
            options.setdefault("seed", TORCH_GENERATOR)
        if "max_new_tokens" in limit:
            yield items, compatible_lengths(options | limit)
        else:  # including the prompt, so the number differs for each
            max_length = check_count("max_length", limit["max_length"])
            for item in items:
                budget = new_token_budget(max_length, self.prompt_length(item))
                yield [item], compatible_lengths(options | {"max_new_tokens": budget})

    def _effective_arguments(self) -> dict[str, Any]:
        """The options of a call over those of the pipeline, over the checkpoint's for this task."""
        task_params, general = self._task_params(), self.model.loaded.generation
        top_k = general.get("top_k", REFERENCE_TOP_K)
        if self.has_generation_config:
            own = {name: general[name] for name in ("do_sample", "num_beams") if name in general}
            return {"top_k": top_k, "num_beams": 1, **own, **self.as_ours(self.call_arguments)}
        from_pipeline = {
            name: value for name, value in self.as_ours(self.pipeline_arguments).items() if name not in task_params
        }
        from_task = {name: task_params[name] for name in self.defaults if name in task_params}
        return {"top_k": top_k, **self.defaults, **from_pipeline, **from_task, **self.as_ours(self.call_arguments)}

    def options(self) -> dict[str, Any]:
        arguments = self._effective_arguments()
        check_beams(arguments.get("num_beams", 1))
        if "do_sample" not in self.arguments and arguments.get("num_beams", 1) > 1:
            arguments["do_sample"] = False
        if "num_beams" not in self.arguments and arguments.get("do_sample"):
            arguments["num_beams"] = 1
        chosen = {name: arguments[name] for name in names_of_writing() if arguments.get(name) is not None}
        chosen["keep_stop"] = self.arguments.get("stop") is None  # pellucid's own name for it
        if not arguments.get("do_sample"):
            chosen = {name: value for name, value in chosen.items() if name not in SAMPLING}
        if (stop := self.arguments.get("stop_sequence")) is not None:  # in place of the model's own end tokens
            if not isinstance(stop, str):
                raise InputError(f"stop_sequence is {type(stop).__name__}, expected a text")
            if not (ids := self.tokenizer(stop, add_special_tokens=False)["input_ids"]):
                raise InputError(
                    f"stop_sequence is {shorten(repr(stop))}, which has no tokens: give another text, or leave it out"
                )
            chosen["eos_token_id"] = self.stop_tokens(ids)
        elif (ends := _first_set("eos_token_id", self.arguments, self.model.loaded.generation)) is not None:
            # in place of those of `config.json`
            chosen["eos_token_id"] = ends
        return chosen | self.truncation_options({"truncation": self.arguments.get("truncation")})

    def texts_with_endings(self, answer: Any) -> list[tuple[Any, str]]:
        """Every text, and the end tokens and padding that the reference leaves after it."""
        every, skip = answer.all or [answer], self.arguments.get("skip_special_tokens") is not False
        ids_of_texts = [one.ids[:-1] if skip and one.finish_reason == "end" else one.ids for one in every]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=skip) for ids in ids_of_texts]
        padded = [self.tokenizer.decode(ids, skip_special_tokens=skip) for ids in self.padded_rows([], answer)]
        return [(one, whole[len(text) :]) for one, text, whole in zip(every, texts, padded)]

    def padded_rows(self, start: list[int], answer: Any) -> list[list[int]]:
        """Every text's tokens, padded to one length; the reference's beam search ignores a padding token of 0."""
        options, own = self.options(), {"pad_token_id": self.tokenizer.pad_token_id}
        pad = _first_set("pad_token_id", self.arguments, self.model.loaded.generation, own)
        if pad is None or (pad == 0 and options.get("num_beams", 1) > 1):
            ends = options.get("eos_token_id", self.model.config.end_tokens)
            pad = ends if isinstance(ends, int) else next(iter(ends), 0)
        rows = [[*start, *one.ids] for one in answer.all or [answer]]
        max_length = max(map(len, rows))
        return [row + [pad] * (max_length - len(row)) for row in rows]

    def _task_params(self) -> dict[str, Any]:
        return params_of(self.model.loaded).get(self.task, {})

    def stop_tokens(self, ids: list[int]) -> list[int]:
        return ids

    def _length_limit(self) -> dict[str, int]:
        """The limit of new tokens, or of all tokens."""
        settings = self.model.loaded.generation, self.pipeline_arguments, self._task_params(), self.call_arguments
        checkpoint, pipeline, task, call = map(_length_arguments, settings)
        arguments = {**self.pipeline_arguments, **self.typed_arguments}
        if arguments.get("max_new_tokens", DEFAULT_NEW_TOKENS) is None:  # cleared by the caller
            own = checkpoint | pipeline | task | call
            limits = {"max_length": own["max_length"]} if "max_length" in own else {"max_new_tokens": DEFAULT_LENGTH}
        elif self.has_generation_config:
            limits = checkpoint | call or {"max_new_tokens": DEFAULT_LENGTH}
        else:
            general = checkpoint.get("max_length", REFERENCE_LENGTH)
            limits = {"max_new_tokens": DEFAULT_NEW_TOKENS, "max_length": general} | pipeline
            if limits["max_new_tokens"] == DEFAULT_NEW_TOKENS and limits["max_length"] != REFERENCE_LENGTH:
                del limits["max_new_tokens"]
            limits |= task | call
        if "max_new_tokens" in limits and "max_length" in call:
            new = limits["max_new_tokens"]
            log.warning("max_length is ignored beside max_new_tokens, which is %s: give max_new_tokens alone", new)
        return {"max_new_tokens": limits["max_new_tokens"]} if "max_new_tokens" in limits else limits

    @abstractmethod
    def prompt_length(self, item: Any) -> int:
        """The tokens that count towards `max_length` before the first new one."""


class Text2TextCall(GenerationCall):
    """Summaries, translations and other outputs of an encoder-decoder."""

    takes = GenerationCall.takes + " src_lang tgt_lang"
    defaults: ClassVar[Mapping[str, Any]] = {"num_beams": 4}
    _keys: ClassVar[Mapping[str, str]] = {"summarization": "summary", "text2text-generation": "generated"}

    def options(self) -> dict[str, Any]:
        prefix = prefix_of(self.model.loaded, [self.task]) or ""
        tidy = {"clean_up_tokenization_spaces": bool(self.arguments.get("clean_up_tokenization_spaces"))}
        return {"prefix": prefix} | super().options() | tidy

    def stop_tokens(self, ids: list[int]) -> list[int]:
        return ids[:1]

    def prompt_length(self, item: Any) -> int:
        return 1  # the start token

    def format_answer(self, answer: Any, item: Any) -> Any:
        key = self._keys.get(self.task, "translation")
        if self.arguments.get("return_tensors"):
            start = required_start_token(self.model.loaded)
            return [{f"{key}_token_ids": torch.tensor(row, device="cpu")} for row in self.padded_rows([start], answer)]
        return [{f"{key}_text": one[f"{key}_text"] + tail} for one, tail in self.texts_with_endings(answer)]

    def format_list(self, answers: list[Any], items: list[Any]) -> Any:
        flat = all(isinstance(one, str) for one in items) and all(len(one) == 1 for one in answers)
        return [one[0] for one in answers] if flat else answers


def _first_set(name: str, *sources: Mapping[str, Any]) -> Any:
    """The value of the first of these that sets it; None where none does."""
    return next((source[name] for source in sources if source.get(name) is not None), None)


def _length_arguments(arguments: Mapping[str, Any]) -> dict[str, int]:
    return {name: arguments[name] for name in ("max_new_tokens", "max_length") if arguments.get(name) is not None}
