"""The reference's `pipeline`: its arguments, its defaults, and the exact nesting of its answers.

The computation is our tasks', with options that give the reference's numbers; this module handles the names of
arguments and the shapes of answers. The reference is `transformers` 4.57.6.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from pellucid.compat.arguments import (
    HUB_ARGUMENTS,
    check_save_arguments,
    missing_attribute_error,
    resolve_device,
    warn_of_remote_code,
    without_unsupported,
)
from pellucid.compat.model import PreTrainedModel
from pellucid.compat.pipeline_call import COMMON, PipelineCall
from pellucid.compat.pipeline_generating import TextGenerationCall
from pellucid.compat.pipeline_reading import (
    FeatureExtractionCall,
    FillMaskCall,
    QuestionAnsweringCall,
    TextClassificationCall,
    TokenClassificationCall,
    ZeroShotCall,
)
from pellucid.compat.pipeline_writing import Text2TextCall
from pellucid.compat.tokenizer import AutoTokenizer
from pellucid.config.checks import (
    check_single_value,
    is_list_like,
    is_one_of,
    materialize_iterators,
    plain_numbers,
    unwrap_arrow,
)
from pellucid.errors import InputError, did_you_mean, join_names
from pellucid.model import Model, load
from pellucid.pipeline import Pipeline as Task
from pellucid.pipeline import pipeline as task_of
from pellucid.tasks.names import find_task
from pellucid.tasks.task_settings import params_of
from pellucid.text import Tokenizer

_CALL_CLASSES: dict[str, type[PipelineCall]] = {
    "text-classification": TextClassificationCall,
    "token-classification": TokenClassificationCall,
    "question-answering": QuestionAnsweringCall,
    "fill-mask": FillMaskCall,
    "zero-shot-classification": ZeroShotCall,
    "feature-extraction": FeatureExtractionCall,
    "text-generation": TextGenerationCall,
    "text2text-generation": Text2TextCall,
    "summarization": Text2TextCall,
    "translation": Text2TextCall,
}

_BY_HEAD = {
    "sequence-classification": "text-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "masked-lm": "fill-mask",
    "causal-lm": "text-generation",
    "sequence-to-sequence-lm": "text2text-generation",
    None: "feature-extraction",
}


def pipeline(
    task: str | None = None,
    model: str | os.PathLike[str] | Model | Any | None = None,
    config: Any = None,
    tokenizer: str | os.PathLike[str] | Tokenizer | AutoTokenizer | None = None,
    *,
    device: int | str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    torch_dtype: str | torch.dtype | None = None,
    **options: Any,
) -> "Pipeline":
    """A task by its name with a model, called like the reference's pipelines and with answers in their shapes.

    task: None for the one that the model's head is for.
    model: a name or folder, a pellucid `Model`, or a model of `pellucid.compat`, whose `config` and `generation_config`
        are read at each call, and whose `forward` is ours; None for the task's own default.
    tokenizer: one in place of the model's own.
    device: a number is a CUDA device, -1 is the CPU; None is the fastest one available.
    dtype, torch_dtype: None is float32, "auto" the checkpoint's.
    options: of the task, under the reference's names; a call may change them. `revision`, `token`, `local_files_only`.
        Of `model_kwargs` these and the dtypes are read; `config`, `framework` and others that change no answer are
        ignored.

    Where versions 4.57 and 5 differ, 4.57 is followed. In pipelines that generate, their own defaults (256 new tokens;
    sampling at temperature 0.7, or four beams) override the model's `generation_config`, and a call's `max_length`;
    each token of `stop_sequence` ends a text, of an encoder-decoder its first; no chat has `tools` or `documents`. A
    stop is searched for only in generated text; the reference also finds one that begins in the prompt.

    Raises InputError for an unknown task or option, and whatever `pellucid.load` raises.
    """
    warn_of_remote_code(options)
    hub_options = _pop_load_options(options)
    network = model if isinstance(model, PreTrainedModel) else None
    own = model if network is None else _current_model(network)
    dtypes = dtype, torch_dtype, hub_options.pop("dtype", None), hub_options.pop("torch_dtype", None)
    chosen_dtype = next((one for one in dtypes if one is not None), None)
    load_options: dict[str, Any] = {
        "device": resolve_device("device", device, "auto"),
        "dtype": "checkpoint" if is_one_of(chosen_dtype, "auto") else chosen_dtype,
    }
    if task is None:
        own = _require_model(own, load_options | hub_options)
        task = task_by_head(own)
    fixed = _find_call_class(find_task(task)[0].name).fixed_options
    own = _DEFAULT_MODELS.get(find_task(task)[0].name) if own is None else own
    same = tokenizer is None or tokenizer is model or (isinstance(tokenizer, str | os.PathLike) and tokenizer == model)
    chosen_tokenizer = None if same else _as_tokenizer(tokenizer)
    if chosen_tokenizer is not None and isinstance(own, Model):  # which may have none
        own = own.reading(chosen_tokenizer.pellucid)
    opened_task = task_of(task, own, **({} if isinstance(own, Model) else load_options | hub_options), **fixed)
    if chosen_tokenizer is None:
        chosen_tokenizer = AutoTokenizer(opened_task.model.loaded.required_tokenizer)
    followed = {name: value for name, value in options.items() if name not in COMMON}
    return Pipeline(task, opened_task, followed, chosen_tokenizer, network)


_DEFAULT_MODELS = {"text-classification": "distilbert/distilbert-base-uncased-finetuned-sst-2-english"}
"""The reference's default models where pellucid's differ, so that ported code gives the same numbers."""


def _pop_load_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that locate a model, and the dtype in `model_kwargs`; removed from the options.

    Raises InputError for others in `model_kwargs`, which would be ignored.
    """
    more = dict(options.pop("model_kwargs", None) or {})
    known = [name for name in HUB_ARGUMENTS if name != "cache_dir"]
    if strange := [name for name in more if name not in (*known, "dtype", "torch_dtype")]:
        raise InputError(
            f"model_kwargs hold {join_names(strange)}, which this pipeline does not use: open the model with "
            "AutoModel.from_pretrained and the like, and pass that"
        )
    return more | {name: options.pop(name) for name in known if name in options}


def _current_model(network: PreTrainedModel) -> Model:
    """The model with its current settings. Raises InputError for a `forward` of its own."""
    network.check_forward("a pipeline")
    return network.current_model()


def _require_model(model: Any, load_options: Mapping[str, Any]) -> Model:
    if model is None:
        raise InputError("neither a task nor a model was given: pipeline('sentiment-analysis'), or pipeline(model=...)")
    return model if isinstance(model, Model) else load(model, **load_options)


def task_by_head(model: Model) -> str:
    """The task that a model's head is for."""
    head = model.config.head.name if model.config.head else None
    if head not in _BY_HEAD:
        raise InputError(f"no task is made for the head {head!r} of this model: name one")
    return _BY_HEAD[head]


class Pipeline:
    """A task with its model, whose answers have the reference's shapes.

    model: the `Model`, which can be used on its own.  tokenizer: an `AutoTokenizer`; changes to it, and to the
        `network` of `pellucid.compat` that the pipeline was made from, take effect here.
    """

    def __init__(
        self,
        task: str,
        our_task: Task,
        options: Mapping[str, Any],
        tokenizer: AutoTokenizer,
        network: PreTrainedModel | None = None,
    ) -> None:
        self.task, self.tokenizer = _full_task_name(task, our_task), tokenizer
        self._task, self._network = our_task, network
        self._call_class = _find_call_class(our_task.task)
        self._options = materialize_iterators(self._check_options(options))

    @property
    def model(self) -> Model:
        return self._current_task.model

    @property
    def _current_task(self) -> Task:
        """The task with the current settings of the model and the tokenizer."""
        model, tokenizer = self._task.model, self.tokenizer.pellucid
        if self._network is not None:
            model = _current_model(self._network)
        if model.tokenizer is not tokenizer:
            model = model.reading(tokenizer)
        if model.loaded != self._task.model.loaded:
            self._task = self._task.on(model)
        return self._task

    @property
    def device(self) -> torch.device:
        return self.model.device

    def save_pretrained(self, save_directory: str | os.PathLike[str], **arguments: Any) -> None:
        """Writes the model and its tokenizer into one folder.  arguments: those of the model's `save_pretrained`."""
        check_save_arguments(arguments)
        if self._network is not None:
            self._network.save_pretrained(save_directory, **arguments)
        else:
            self.model.save(save_directory, overwrite=True)
        self.tokenizer.save_pretrained(save_directory)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"this pipeline has no {name!r}")
        known = [one for one in dir(type(self)) if not one.startswith("_")]
        raise missing_attribute_error("this pipeline", name, known, ": call it, or use its .model and .tokenizer")

    def __call__(self, *inputs: Any, **call: Any) -> Any:
        """The answer to one item, a list of answers to a list; an iterator for a generator or a dataset."""
        call = {name: value for name, value in call.items() if name not in COMMON}
        items, call = self._call_class.split_inputs(inputs, call)
        this_call = self._call_class(self.task, self.model, self._options, self._check_options(call))
        if is_list_like(items) and not isinstance(items, list | tuple):
            return self._answers(this_call, unwrap_arrow(items))
        is_list = isinstance(items, list) and not this_call.is_single_item(items)
        found = list(self._answers(this_call, items if is_list else [items]))
        return this_call.format_list(found, items) if is_list else this_call.format_single(found[0], items)

    def _answers(self, pipeline_call: PipelineCall, items: Iterable[Any]) -> Iterator[Any]:
        """The answers one after the other, each in the reference's shape."""
        items, originals = itertools.tee(items)
        try:
            for group, options in pipeline_call.item_groups(items):
                for answer in self._current_task.many(group, progress=False, **options):
                    yield pipeline_call.format_answer(answer, next(originals))
        except InputError as error:
            raise pipeline_call.rephrase_error(error) from error.__cause__

    def _check_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The supported options; InputError for one that does not exist, or has another form here."""
        known, elsewhere = self._call_class.argument_names(), self._call_class.unsupported
        elsewhere = {name: one for name, one in elsewhere.items() if name not in known}
        for name in options:
            if name not in known and name not in elsewhere:
                hint = did_you_mean(name, [*known, *elsewhere]) or f": it has {join_names(known, 12)}"
                raise InputError(f"{self.task} has no option {name!r}{hint}")
            if name not in _LIST_ARGUMENTS:
                check_single_value(name, options[name])
        return plain_numbers(without_unsupported(options, elsewhere))


_LIST_ARGUMENTS = "candidate_labels targets ignore_labels eos_token_id function_to_apply".split()
"""Arguments that may hold several values, also in an array, or that have a more specific check of their own."""


def _find_call_class(task: str) -> type[PipelineCall]:
    if task not in _CALL_CLASSES:
        raise InputError(f"the reference has no task {task!r}: use pellucid.pipeline")
    return _CALL_CLASSES[task]


def _full_task_name(task: str, our_task: Task) -> str:
    """The name of this task in a checkpoint's settings; for "translation", the first pair that it has settings for."""
    if task != "translation":
        return task if task.startswith("translation_") else our_task.task
    return next((name for name in params_of(our_task.model.loaded) if name.startswith("translation")), task)


def _as_tokenizer(tokenizer: Any) -> AutoTokenizer:
    if isinstance(tokenizer, str | os.PathLike):
        return AutoTokenizer.from_pretrained(tokenizer)
    if isinstance(tokenizer, AutoTokenizer):
        return tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise InputError(
            f"tokenizer is {type(tokenizer).__name__}, expected a name, a folder, or a tokenizer of pellucid"
        )
    return AutoTokenizer(tokenizer)
