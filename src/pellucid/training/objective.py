"""The interface of objectives: from rows of data to examples, from examples to a batch, from a batch to a loss.

An objective is a frozen record whose fields are its options, as a task is; the loop uses only this interface.
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
"""Micro-batches of one step, each with its number."""


class Example(NamedTuple):
    """The input of a model and its target.

    ids, types: token ids and token types of one row, or of several (two texts to compare; source and target).
    target: in the form that the objective needs.
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

    max_length: maximum tokens of a row, special ones included; None for the model's. Longer rows are truncated, and
        their number is logged.
    """

    max_length: int | None = None

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    """The default names of the columns of its data; some of them may be missing."""
    reading_options: ClassVar[tuple[str, ...]] = ()
    """Options that determine how rows are read: a model is scored with those that it was trained with."""
    parallel: ClassVar[tuple[str, ...]] = ()
    """The columns that two parallel files hold, line by line; empty where the objective does not read such files."""
    default_settings: ClassVar[dict[str, Any]] = {}
    """Its own defaults for `Settings`."""
    best_metric: ClassVar[str] = "loss"
    """The score by which the best state is chosen: the highest, but the lowest of "loss" and "perplexity"."""

    def __post_init__(self) -> None:
        if self.max_length is not None:
            check_count("max_length", self.max_length)

    @property
    def ordered(self) -> bool:
        """Whether the rows are consecutive parts of one text, whose end is held out."""
        return False

    def fitted(self, rows: Sequence[Fields]) -> Self:
        """The same objective with what follows from the data, such as labels. Raises InputError for invalid rows."""
        return self

    def min_examples(self, examples: Sequence[Example]) -> int:
        """The fewest of these examples in a step that give a gradient."""
        return 1

    @abstractmethod
    def head(self, loaded: Loaded) -> Head | None:
        """The head that the objective needs on this model."""

    def labels(self, loaded: Loaded) -> tuple[str, ...]:
        """The labels of its head."""
        return loaded.config.labels

    def facts(self) -> dict[str, Any]:
        """Entries of the saved config that do not affect a pass, by the reference's keys: "problem_type"."""
        return {}

    def stratum(self, row: Fields) -> Hashable:
        """The group of a row: the same share of each group is held out. None where there are no groups."""
        return None

    def labels_of_row(self, row: Fields) -> Collection[str]:
        """The labels of a row that has several: each label keeps at least one training row."""
        return ()

    @abstractmethod
    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        """Converts rows to examples."""

    @abstractmethod
    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        """Examples as one batch: the model's inputs, and what `loss` needs beside them.

        generator: source of all random numbers, such as masks; the same for each micro-batch of a step. What is drawn
            for an example must depend on it and on the example alone, see
            `pellucid.training.sequence_packing.example_generators`.
        """

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        """The weight of the batch in its step: texts, or tokens. The summed losses of a step are divided by its sum."""
        return float(len(batch["labels"]))

    @abstractmethod
    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        """The sum of the losses of a batch, Float32[Tensor, ""]; for a mean loss, that mean times `weight`."""

    def link_micro_batches(
        self, learner: Learner, ranks: Ranks, step: int, micro_batches: MicroBatches
    ) -> MicroBatches:
        """This process's micro-batches of a step, each with its number, extended by what they need of those of all
        processes: for losses that compare all examples of a step with each other."""
        return micro_batches

    @abstractmethod
    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """The model's scores on held-out examples by name, `best_metric` among them."""

    def check_held_out(self, loaded: Loaded, examples: Sequence[Example]) -> None:
        """Raises InputError, before training starts, for held-out examples that cannot be scored."""
        return

    def final_scores(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """Scores of the trained model, with those that are too slow for every evaluation, such as of generated text."""
        return self.score(loaded, examples)

    def for_scoring(self, rows: Sequence[Fields]) -> Self:
        """The same objective for scoring an already trained model on these rows, with the model's labels."""
        return self

    def baseline_scores(self, training_examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        """The baseline's scores on held-out examples, by names of `score`: it always predicts the most frequent label
        of the training examples, or their mean."""
        return {}

    def with_task_settings(self, loaded: Loaded) -> Loaded:
        """The model before training, with the task's settings that are to be saved with it."""
        return loaded


def head_for(loaded: Loaded, name: str) -> Head:
    """The model's own head where it has this name, else the head of this name of its family."""
    own = loaded.config.head
    if own is not None and own.name == name:
        return own
    head = loaded.family.head_named(name)
    loaded.family.page(head)  # refuses a head that the family does not have
    return head


def batch_of(loaded: Loaded, examples: Sequence[Example], **loss_inputs: Any) -> dict[str, Tensor]:
    """The first row of each example as one batch, with `loss_inputs`, tensors or arrays, on the model's device."""
    device = loaded.module.device
    batch = as_batch(loaded, [one.ids[0] for one in examples], [one.types[0] for one in examples])
    return batch | {name: torch.as_tensor(value, device=device) for name, value in loss_inputs.items()}


def logits_of(loaded: Loaded, examples: Sequence[Example]) -> list[Tensor]:
    """The logits of the first row of each example, in order, as float32 on the CPU, without padding.

    ->  for each example Float[Tensor, "labels"] of a text, or Float[Tensor, "seq labels"] of its tokens
    """
    module, lengths = loaded.module.packed_copy(), [len(one.ids[0]) for one in examples]

    def logits_of_group(group: list[int]) -> list[Tensor]:
        logits = module.logits(**batch_of(loaded, [examples[i] for i in group])).float().cpu()
        return [one[: lengths[i]] if logits.dim() == 3 else one for i, one in zip(group, logits)]

    return run_in_order(module, lengths, logits_of_group)
