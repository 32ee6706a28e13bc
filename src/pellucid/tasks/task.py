"""The base of all tasks: a task is an operation on items with its options.

    items --check_item()--> checked --answer_items()--> answers, in the same order

There are two kinds. A `Reader` (`tasks/reader.py`) reads a text once and interprets the head's output. A `Writer`
(`tasks/writer.py`) generates text. Options are the fields of a frozen dataclass, so that an invalid value is refused
before anything is read.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_bool, check_choice, check_count, is_list_like, unwrap_arrow
from pellucid.errors import InputError, Item, join_names
from pellucid.tasks.answer import Answer, Answers
from pellucid.text import RULES
from pellucid.text.rows import is_missing
from pellucid.text.truncation import clean_text

TaskAnswer = Answer | Answers


@dataclass
class TextCounts:
    """Counts over all items.  texts: how many; unknown: those that consist of unknown tokens only."""

    texts: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Work:
    """What a task runs on.

    loaded: the model.  dtype: compute in this; None for the model's own.
    progress: show a bar for long work on a single answer; None shows it at a terminal.
    text_counts: counts over all items, for a warning at the end.
    """

    loaded: Loaded
    dtype: torch.dtype | None = None
    progress: bool | None = None
    text_counts: TextCounts = field(default_factory=TextCounts)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task with its options.

    long: what happens to a text that is longer than the model's limit: "error" refuses it; "truncate" cuts off its end
        (its beginning where the tokenizer's `truncation_side` is "left", and for text generation unless it is "right")
        and reports how much; "windows" reads all of it in windows and merges their answers, as each task describes.
    max_length: tokens that are read at once, at most; by default the model's limit.
    stride: tokens that a window shares with the one before; by default a quarter of its length.
    explain: adds to each answer how much each token contributed, by integrated gradients from padding, or for generated
        text by gradient x input. See `AnswerAttribution.method` for what each does not show. The former takes 32 to 64
        gradients per answer and window, some hundred times the cost of the answer; the latter one. Alternatives in an
        answer's `all` are not explained.
    """

    long: str = "error"
    max_length: int | None = None
    stride: int | None = None
    explain: bool = False

    name: ClassVar[str]
    heads: ClassVar[tuple[str | None, ...]]
    """The heads that can answer, by name; None is a body without one."""
    inputs: ClassVar[tuple[str, ...]]
    """The names of the caller's inputs, in order; these are no options."""

    def __post_init__(self) -> None:
        for option in fields(self):
            if option.type is bool:
                check_bool(option.name, getattr(self, option.name))
        check_choice("long", self.long, RULES)
        if self.max_length is not None:
            check_count("max_length", self.max_length)
        if self.stride is not None:
            check_count("stride", self.stride, minimum=0)

    @classmethod
    def options(cls) -> list[str]:
        """The names of the task's options."""
        return [field.name for field in fields(cls)]

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options for this model: those given, completed by the checkpoint's settings."""
        return dict(options)

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        """Refuses a model that cannot do this task, and one that would answer from random weights."""
        head = loaded.config.head.name if loaded.config.head else None
        if head not in cls.heads:
            expected = " or ".join(one or "no head" for one in cls.heads)
            raise InputError(
                f"{loaded.name} has {head or 'no'} head, and {cls.name} needs {expected}: choose another model"
            )
        check_readable(loaded, loaded.untrained)

    @classmethod
    def items_from_arguments(cls, arguments: Mapping[str, Any]) -> Any:
        """Inputs by name, as the items that `is_single_item` and `check_item` accept.

        Of several names a dict may hold lists as well: it is as many items as these are long.
        """
        if len(arguments) == 1:
            only = next(iter(arguments.values()))
            if len(cls.inputs) == 1 or not isinstance(only, Mapping) or not any(map(is_list_like, only.values())):
                return only
            arguments = only
        for name, row in arguments.items():
            if name in cls.inputs and not (row is None or isinstance(row, str) or is_list_like(row)):
                raise InputError(f"{name} is {type(row).__name__}, expected a text or a list of texts")
        columns = {name: list(unwrap_arrow(row)) for name, row in arguments.items() if is_list_like(row)}
        if not columns:
            return dict(arguments)
        lengths = [len(column) for column in columns.values()]
        if len(set(lengths)) > 1:
            raise InputError(f"{join_names(columns)} have {lengths} entries, expected as many of each")
        many = lengths[0]
        return [
            {name: columns[name][i] if name in columns else arguments[name] for name in arguments} for i in range(many)
        ]

    @classmethod
    def is_single_item(cls, value: Any) -> bool:
        return isinstance(value, str | tuple | Mapping)

    def check_item(self, item: Any, index: int) -> Any:
        """One item, checked; raises InputError, which names its number, for an invalid one. Here it is one text."""
        return clean_text(single_text(item, index, self.inputs[0]), index, "item")

    @abstractmethod
    def answer_items(self, work: Work, items: Sequence[Any], first: int) -> Iterator[TaskAnswer]:
        """The answers to some checked items, in their order.  first: the number of the first one."""

    def warn_about_items(self, work: Work) -> None:
        """Warns about all items together, once they are answered; here nothing."""
        return


def check_readable(loaded: Loaded, parts: Sequence[str]) -> None:
    """Refuses a model without a tokenizer, and one in which any of these parts has random weights."""
    if random := [part for part in loaded.untrained if part in parts]:
        raise InputError(f"{loaded.name} is not trained ({join_names(random)}): its answers would be random")
    _ = loaded.required_tokenizer  # refuses a model without a tokenizer


def single_text(item: Any, index: int, name: str = "text") -> str:
    """A text, or a dict with one under `name`."""
    if isinstance(item, Mapping) and set(item) == {name}:
        item = item[name]
    if isinstance(item, Mapping):
        keys = join_names(map(str, item)) or "none"
        raise InputError(Item(index), f" has the keys {keys}, expected a text, or a dict with a text under {name!r}")
    if not isinstance(item, str):
        raise InputError(Item(index), f" is {type(item).__name__}, expected a text")
    return item


def text_or_pair(item: Any, index: int, names: tuple[str, str] = ("text", "text_pair")) -> tuple[str, str | None]:
    """A text, a pair of texts as a tuple, or either as a dict with `names`."""
    if isinstance(item, str):
        return item, None
    if isinstance(item, Mapping):
        unknown = [str(key) for key in item if key not in names]
        if unknown or names[0] not in item:
            keys = join_names(map(str, item)) or "none"
            raise InputError(Item(index), f" has the keys {keys}, expected {' and '.join(names)}")
        item = (item[names[0]], item.get(names[1]))
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(Item(index), f" is {type(item).__name__}, expected a text, or a pair of texts as a tuple")
    first, second = item[0], None if is_missing(item[1]) else item[1]
    for name, one in zip(names, (first,) if second is None else (first, second)):
        if not isinstance(one, str):
            advice = f"; give columns by name, {name}=[...]" if is_list_like(one) else ""
            raise InputError(Item(index), f" holds {type(one).__name__}, expected two texts{advice}")
    return first, second
