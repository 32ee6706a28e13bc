"""What a task is: a question with its options, which answers items one after the other.

    a person's items --check_item()--> checked --answer_items()--> answers, in the same order

There are two kinds. A `Reader` (`tasks/reader.py`) reads a text once and takes its answer from what the head says. A
`Writer` (`tasks/writer.py`) lets the model write. Options are the fields of a frozen dataclass, so that a value that
cannot be is refused before anything is read.
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

TaskAnswer = Answer | Answers


@dataclass
class TextCounts:
    """What was met on the way through all items.  texts: how many; unknown: those that are unknown tokens alone."""

    texts: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Work:
    """How to compute, as opposed to what.

    loaded: the model.  dtype: compute in this; None for the model's own.
    progress: show a bar for what takes long of one answer; None where a terminal waits for it.
    text_counts: what was counted over all items, for a warning at the end.
    """

    loaded: Loaded
    dtype: torch.dtype | None = None
    progress: bool | None = None
    text_counts: TextCounts = field(default_factory=TextCounts)


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A question with its options.

    long: what happens to a text that is longer than the model reads: "error" refuses it, "truncate" cuts its end off
        (its beginning where the tokenizer's `truncation_side` is "left", and before a text goes on, where it is not
        "right") and says how much, "windows" reads all of it in stretches and merges what they say; each task says how.
    max_length: tokens that are read at once, at most; by default what the model can read.
    stride: tokens that a stretch shares with the one before; by default a quarter of what it holds.
    explain: tell beside each answer how much each token mattered, by integrated gradients from padding; of what was
        written by gradient x input. See `AnswerAttribution.method` for what either does not show. The former takes 32
        to 64 gradients for each answer and stretch, some hundred times what the answer costs; the latter one. Answers
        that stand below another one (`all`) are not explained.
    """

    long: str = "error"
    max_length: int | None = None
    stride: int | None = None
    explain: bool = False

    name: ClassVar[str]
    heads: ClassVar[tuple[str | None, ...]]
    """The heads that can answer, by name; None is a body without one."""
    inputs: ClassVar[tuple[str, ...]]
    """What a person gives, by name, in order; these are no options."""

    def __post_init__(self) -> None:
        check_choice("long", self.long, RULES)
        check_bool("explain", self.explain)
        if self.max_length is not None:
            check_count("max_length", self.max_length)
        if self.stride is not None:
            check_count("stride", self.stride, least=0)

    @classmethod
    def options(cls) -> list[str]:
        """What may be asked for, by name."""
        return [field.name for field in fields(cls)]

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a question to this model: those given, and what the checkpoint says where nothing is."""
        return dict(options)

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        """Refuses a model that cannot answer such questions, and one that would answer from random numbers."""
        head = loaded.config.head.name if loaded.config.head else None
        if head not in cls.heads:
            expected = " or ".join(one or "no head" for one in cls.heads)
            raise InputError(
                f"{loaded.name} has {head or 'no'} head, and {cls.name} needs {expected}: choose another model"
            )
        check_readable(loaded, loaded.untrained)

    @classmethod
    def items_from_arguments(cls, arguments: Mapping[str, Any]) -> Any:
        """What was given by name, as the items that `is_single_item` and `check_item` understand.

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
        """Whether this is one item, not several."""
        return isinstance(value, str | tuple | Mapping)

    @abstractmethod
    def check_item(self, item: Any, index: int) -> Any:
        """One item, checked; raises InputError, which names its number, for what cannot be one."""

    @abstractmethod
    def answer_items(self, work: Work, items: Sequence[Any], first: int) -> Iterator[TaskAnswer]:
        """The answers to some checked items, in their order.  first: the number of the first one."""

    def warn_about_items(self, work: Work) -> None:
        """Says what is to be said of all items together, once these are answered; here nothing."""
        return


def check_readable(loaded: Loaded, parts: Sequence[str]) -> None:
    """Refuses a model without a tokenizer, and one of which some of these parts have random numbers."""
    if random := [part for part in loaded.untrained if part in parts]:
        raise InputError(f"{loaded.name} is not trained ({join_names(random)}): its answers would be random")
    _ = loaded.required_tokenizer  # refuses a model without a tokenizer


def single_text(item: Any, index: int, name: str = "text") -> str:
    """A text, or one as a dict by its name."""
    if isinstance(item, Mapping) and set(item) == {name}:
        item = item[name]
    if isinstance(item, Mapping):
        keys = join_names(map(str, item)) or "none"
        raise InputError(Item(index), f" has the keys {keys}, expected a text, or a dict with a text under {name!r}")
    if not isinstance(item, str):
        raise InputError(Item(index), f" is {type(item).__name__}, expected a text")
    return item


def text_or_pair(item: Any, index: int, names: tuple[str, str] = ("text", "text_pair")) -> tuple[str, str | None]:
    """A text, a pair of texts as a tuple, or either as a dict by `names`."""
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
