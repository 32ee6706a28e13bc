"""What is to be learned: from rows of data to examples, from examples to a batch, from a batch to a loss.

An objective is a frozen record whose fields are its options, as a task is; the loop knows nothing of it but this page.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head
from pellucid.config.checks import check_count
from pellucid.tasks.passes import run_in_order
from pellucid.training.distributed import Ranks
from pellucid.training.learner import Learner

Fields = Mapping[str, Any]
"""One row of data, by column."""

MicroBatches = list[tuple[int, dict[str, Tensor]]]
"""Batches of one step, each with its number."""


class Example(NamedTuple):
    """What a model reads, and what it should answer.

    ids, types: one row of tokens, or several (the two texts that are compared; source and target).
    target: as the objective needs it.
    """

    ids: tuple[list[int], ...]
    types: tuple[list[int], ...]
    target: Any = None

    @property
    def length(self) -> int:
        """Positions of its longest row."""
        return max(map(len, self.ids))


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """One objective with its options.

    max_length: tokens of a row, special ones among them; None for what the model reads. Longer ones are cut, and
        counted in a note.
    """

    max_length: int | None = None

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    """What the columns of its data are called, where nothing else is said; some of them may be missing."""
    reading_options: ClassVar[tuple[str, ...]] = ()
    """Options that say what stands around a text: a model is scored with those that it has learned with."""
    parallel: ClassVar[tuple[str, ...]] = ()
    """The columns that two files hold whose lines belong together; none where such are no data."""
    default_settings: ClassVar[dict[str, Any]] = {}
    """Its own defaults for `Settings`."""
    best_metric: ClassVar[str] = "loss"
    """The number of `score` by which the best state is chosen; the greatest, but of "loss" and "perplexity"."""
    held_out_share: ClassVar[float] = 0.1
    """The part of the data that is held out where nothing else is said; 0 for none."""

    def __post_init__(self) -> None:
        if self.max_length is not None:
            check_count("max_length", self.max_length)

    @property
    def ordered(self) -> bool:
        """Whether the rows are one text, one after the other, so that its end is held out."""
        return False

    def fitted(self, rows: Sequence[Fields]) -> Self:
        """The same objective, knowing what only the data tells, such as its labels. Raises InputError for bad rows."""
        return self

    def min_examples(self, examples: Sequence[Example]) -> int:
        """How many of these a step must have for something to be learned from them."""
        return 1

    @abstractmethod
    def head(self, loaded: Loaded) -> Head | None:
        """The head that it needs on this body."""

    def labels(self, loaded: Loaded) -> tuple[str, ...]:
        """The labels that its head has."""
        return loaded.config.labels

    def facts(self) -> dict[str, Any]:
        """What the saved config says of the task beside head and labels, by the reference's keys, which change no
        number of a pass: "problem_type"."""
        return {}

    def stratum(self, row: Fields) -> Hashable:
        """What a row is one of many of: of each group the same share is held out. None where there are no groups."""
        return None

    def labels_of_row(self, row: Fields) -> Collection[str]:
        """The labels of a row that has several: none of them is held out with all of its rows."""
        return ()

    @abstractmethod
    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        """Rows as the model reads them."""

    @abstractmethod
    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        """Examples as one batch: what the model takes, and beside it what `loss` needs.

        generator: the source of whatever is drawn, such as masks; the same for each piece of a step. What is drawn for
            an example has to follow from it and from the example alone, see
            `pellucid.training.sequence_packing.example_generators`.
        """

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        """What the batch counts in its step: texts, or tokens. The losses of a step are summed and divided by it."""
        return float(len(batch["labels"]))

    @abstractmethod
    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        """The sum of the losses of a batch, Float32[Tensor, ""]; of a mean loss, that mean times `weight`."""

    def link_micro_batches(
        self, learner: Learner, ranks: Ranks, step: int, micro_batches: MicroBatches
    ) -> MicroBatches:
        """The pieces of a step that this process has, each with its number, with whatever they have to know of those
        of all processes: for losses that compare the examples of a whole batch with each other."""
        return micro_batches

    @abstractmethod
    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """How good the model is on held-out examples: numbers by name, `best_metric` among them."""

    def check_held_out(self, loaded: Loaded, examples: Sequence[Example]) -> None:
        """Refuses held-out examples that `score` or `final_scores` could not answer, before anything is learned."""
        return

    def final_scores(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """The same of a finished model, with what would take too long at every evaluation, such as writing."""
        return self.score(loaded, examples)

    def for_scoring(self, rows: Sequence[Fields]) -> Self:
        """The same objective, to score a model that has learned it elsewhere, on these rows; labels are the model's."""
        return self

    def baseline_scores(self, learned: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        """What the baseline scores on held-out examples, by names of `score`: always the label that most of
        those have that are learned from, always their mean."""
        return {}

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        """The model before it learns, with the facts that have to be saved beside what it will learn."""
        return loaded


def head_for(loaded: Loaded, name: str) -> Head:
    """The model's own head of this kind, by its name; where it has none, the one that its family would have."""
    own = loaded.config.head
    if own is not None and own.name == name:
        return own
    head = loaded.family.head_named(name)
    loaded.family.page(head)  # refuses a head that the family does not have
    return head


def batch_of(loaded: Loaded, examples: Sequence[Example], **loss_inputs: Any) -> dict[str, Tensor]:
    """The first row of each example as the model takes them together, and on its device what a loss needs beside them,
    tensors or arrays by name."""
    device = loaded.module.device
    batch = as_batch(loaded, [one.ids[0] for one in examples], [one.types[0] for one in examples])
    return batch | {name: torch.as_tensor(value, device=device) for name, value in loss_inputs.items()}


def logits_of(loaded: Loaded, examples: Sequence[Example]) -> list[Tensor]:
    """The logits of the first row of each, float32 on the processor, padding cut away; in their order.

    ->  of each Float[Tensor, "labels"] where a text has one answer, Float[Tensor, "seq labels"] where a token has
    """
    module, lengths = loaded.module.packed_copy(), [len(one.ids[0]) for one in examples]

    def logits_of_group(group: list[int]) -> list[Tensor]:
        logits = module.logits(**batch_of(loaded, [examples[i] for i in group])).float().cpu()
        return [one[: lengths[i]] if logits.dim() == 3 else one for i, one in zip(group, logits)]

    return run_in_order(module, lengths, logits_of_group)
