"""A task and its model: text in, a typed answer out.

The module is callable, so that `pellucid.pipeline("ner")` works whether or not this module has been imported.
"""

import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import torch

from pellucid.bars import check_progress, progress_bar
from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.location import HubOptions
from pellucid.config.checks import is_list_like, materialize_iterators, plain_numbers, unwrap_arrow
from pellucid.errors import Argument, InputError, did_you_mean, format_count, join_names
from pellucid.machine import choose_dtype
from pellucid.model import Model
from pellucid.streams import growing_batches
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.names import TaskInfo, find_task
from pellucid.tasks.task import Task, Work

CHUNK = 1_024
"""Items that are sorted by length and answered together, whatever their total number."""

FIRST = 32
"""The size of the first chunk where the number of items is unknown; it doubles each time, up to `CHUNK`."""


def pipeline(
    task: str,
    model: str | os.PathLike[str] | Model | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    **options: Any,
) -> "Pipeline":
    """A task by its name, such as "ner" or "question-answering", with a model that answers it.

    model: a name or folder as for `pellucid.load`, or a model; None for the task's own default.
    device: as for `pellucid.load`; by default the CPU.
    dtype: as for `pellucid.load`; "bfloat16", or "auto" for the fastest that is safe, is for speed. Of the loading
        options these two alone are allowed with a loaded model.
    options: of the task, for every call. With `top_k` text-classification and question-answering still give one dict,
        the best answer, whose `.all` holds as many as requested.

    >>> pipeline("ner")("My name is Ada.")        # doctest: +SKIP
    [{'entity_group': 'GIVEN_NAME', 'score': 0.99, 'word': 'Ada', 'start': 11, 'end': 14}]

    Raises InputError for an unknown task or option, or a model that cannot answer it; and all that `load` raises.
    """
    info, task_options = find_task(task)
    hub_options = HubOptions(revision, token, local_files_only)
    is_compute_dtype = isinstance(dtype, str | torch.dtype) and dtype in ("auto", "bfloat16", torch.bfloat16)
    kind = None if is_compute_dtype else dtype
    if isinstance(model, Model):
        _check_no_load_options({"device": device, "dtype": kind, **vars(hub_options)})
        opened = model
    else:
        source = info.default_model if model is None else model
        opened = Model(
            open_checkpoint(source, device="cpu" if device is None else device, dtype=kind, hub_options=hub_options)
        )
    return Pipeline(info, opened, dtype if is_compute_dtype else None, task_options | options)


def _check_no_load_options(load_options: Mapping[str, Any]) -> None:
    """Refuses options that have no effect on a model that is already loaded."""
    if ignored := [name for name, value in load_options.items() if value is not None and value is not False]:
        raise InputError(
            f"the model is loaded already, so {join_names(ignored)} would have no effect: pass it to pellucid.load"
        )


class Pipeline:
    """A task with its model: `pipe("a text")` gives one answer, `pipe(["a", "b"])` a list of them.

    task: its name.  model: the `Model`, which can be used on its own.
    """

    def __init__(
        self,
        info: TaskInfo,
        model: Model,
        dtype: str | torch.dtype | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._task_info, self._task_class, self.model = info, info.task_class(), model
        self._options = plain_numbers(materialize_iterators(options or {}))
        self._dtype = None if dtype is None else choose_dtype(dtype, model.dtype, model.device)
        model.module.check_dtype(self._dtype)
        self._task_class.check(model.loaded)
        self._make_task({})

    @property
    def task(self) -> str:
        """The task's canonical name: for "ner" it is "token-classification"."""
        return self._task_info.name

    def __call__(self, *inputs: Any, progress: bool | None = None, **options: Any) -> Any:
        """The answer to one item, or a list of the answers to several, in their order.

        inputs: a text, a pair as a tuple, a dict with the task's own keys, or a list or generator of these; or the
            task's inputs by keyword: `pipe(question="...", context="...")`.
        progress: show a bar; by default for long work at a terminal.
        options: of the task, for this call. `top_k=3` of text-classification or question-answering gives the best
            answer alone, as one dict; its `.all` holds all three.
        """
        items, options = self._split_inputs(inputs, options)
        if self._task_class.is_single_item(items):
            (answer,) = self.many([items], progress=progress, **options)
            return answer
        return list(self.many(items, progress=progress, **options))

    def many(self, items: Iterable[Any], *, progress: bool | None = None, **options: Any) -> Iterator[Answer | Answers]:
        """The answers one after the other, as they are computed; the items may be endless.

        At most 1,024 items and their answers are held at a time. From a generator the first 32 items are read before
        the first answer; where each item depends on the last answer, call the pipeline for each.
        """
        check_progress(progress)
        question, work = self._make_task(options), Work(self.model.loaded, self._dtype, progress)
        return self._answers(question, work, items)

    def _answers(self, question: Task, work: Work, items: Iterable[Any]) -> Iterator[Answer | Answers]:
        if not is_list_like(items):
            raise InputError(f"{type(items).__name__} was given, expected items: a list, a generator, a column")
        source, first = unwrap_arrow(items), 0
        total = len(items) if isinstance(items, Sized) else None
        with progress_bar(self.task, total=total, unit=" items", shown=work.progress if total != 1 else False) as line:
            try:
                for chunk in growing_batches(source, FIRST if total is None else CHUNK, CHUNK):
                    checked = [question.check_item(item, first + i) for i, item in enumerate(chunk)]
                    for answer in question.answer_items(work, checked, first):
                        yield answer
                        line.update()
                    first += len(chunk)
            finally:  # also when the caller stops early
                question.warn_about_items(work)

    def _split_inputs(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Separates the items from the options."""
        names = self._task_class.inputs
        if len(inputs) > len(names):
            first = next((name for name in self.options() if name in self._task_class.__annotations__), names[0])
            advice = f": give options by name, such as {first}=..." if first not in names else ""
            raise InputError(
                f"{self.task} takes {', '.join(names)}, and was given {format_count(len(inputs), 'argument')}{advice}"
            )
        arguments, by_name = dict(zip(names, inputs)), {name: options[name] for name in names if name in options}
        if twice := next((name for name in by_name if name in arguments), None):
            advice = " twice, by position and by name: leave one of them out"
            raise InputError(f"{self.task} was given ", Argument(twice), advice)
        arguments |= by_name
        if not arguments:
            raise InputError(f"{self.task} was given nothing: it takes {', '.join(names)}")
        return self._task_class.items_from_arguments(arguments), {
            name: value for name, value in options.items() if name not in names
        }

    def _make_task(self, options: Mapping[str, Any]) -> Task:
        option_names = self.options()
        for name in {**self._options, **options}:
            if name not in option_names:
                hint = f"'{did_you_mean(name, option_names)}: it has {join_names(option_names, 12)}"
                raise InputError(f"{self.task} has no option '", Argument(name), hint)
        return self._task_class(
            **self._task_class.resolve_options(self.model.loaded, self._options | plain_numbers(options))
        )

    def options(self) -> list[str]:
        """The names of this task's options."""
        return self._task_class.options()

    def on(self, model: Model) -> "Pipeline":
        """The same task, with the same options, on another model."""
        if not isinstance(model, Model):
            raise InputError(f"model is {type(model).__name__}, expected a model, such as pellucid.load returns")
        return Pipeline(self._task_info, model, self._dtype, self._options)

    def __repr__(self) -> str:
        return f"Pipeline({self.task}, {self.model!r})"


class _CallableModule(types.ModuleType):
    __call__ = staticmethod(pipeline)
    __signature__ = inspect.signature(pipeline)  # without it, the first argument would be left out


sys.modules[__name__].__class__ = _CallableModule
