"""The training loop: batches, losses, gradients, optimizer steps, and regular evaluations on the held-out examples."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, PellucidError
from pellucid.machine import no_grad
from pellucid.training.batch_order import BatchOrder
from pellucid.training.distributed import Ranks
from pellucid.training.learner import Learner
from pellucid.training.log import replace_non_finite
from pellucid.training.objective import Example, Objective
from pellucid.training.optimizer import build_optimizer, gradient_norm, optimizer_step
from pellucid.training.schedule import learning_rate_factor
from pellucid.training.settings import Settings

DIVERGED_STEPS = 3
"""Consecutive steps without a finite loss and gradient that end a training run; fewer are skipped."""

_LESS_IS_BETTER = ("loss", "perplexity")


class DivergedError(PellucidError):
    """Losses or gradients are not finite any more; the weights of the last applied step are intact."""


@dataclass(frozen=True)
class Event:
    """The report of a finished step, or of an evaluation on the held-out examples.

    metrics: of a step its loss, learning_rate, gradient_norm (before clipping), epoch and tokens; of an evaluation its
        scores.  is_best: the best one so far.  skipped: its loss or gradient was not finite, so it was not applied.
    """

    step: int
    metrics: dict[str, float]
    is_evaluation: bool = False
    is_best: bool = False
    skipped: bool = False
    seconds: float = 0.0


@dataclass
class Progress:
    """The progress of a training run.

    step: steps done.  consecutive_skips: how many of the last ones were skipped.
    best: the best evaluation's score, higher is better.  evaluations_since_best: number of evaluations since then.
    best_step, scores: its step and all its scores (the last evaluation's where the best is not kept).
    before: scores before the first step.  seconds: of all steps and evaluations.
    """

    step: int = 0
    consecutive_skips: int = 0
    best: float | None = None
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    evaluations_since_best: int = 0
    before: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class CheckpointStore:
    """Keeps the best weights during training: in memory, for a run that writes nothing."""

    def __init__(self) -> None:
        self.numbers: dict[str, Tensor] = {}

    def put(self, step: int, numbers: Mapping[str, Tensor]) -> None:
        """Keeps a copy of these weights in place of earlier ones."""
        self.numbers = {name: tensor.detach().clone() for name, tensor in numbers.items()}

    def get(self) -> dict[str, Tensor]:
        """The weights that were put last; {} where none were."""
        return self.numbers


@dataclass
class Loop:
    """One training run: iterating over it trains the model; each event is one step or one evaluation.

    All that resuming needs is in `progress`, `parameters`, `optimizer` and `best_checkpoint`; random numbers and the
    order of examples follow from the seed and the step.

    stop_requested: whether this process should stop; `stopped` is then true in all processes, after the same step.
    """

    loaded: Loaded
    objective: Objective
    settings: Settings
    examples: Sequence[Example]
    held_out: Sequence[Example] = ()
    ranks: Ranks = Ranks()
    progress: Progress = field(default_factory=Progress)
    best_checkpoint: CheckpointStore = field(default_factory=CheckpointStore)
    stop_requested: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        settings = self.settings
        self.learner = Learner(self.loaded, settings)
        self.parameters: dict[str, nn.Parameter] = self.learner.parameters()
        self.optimizer = build_optimizer(self.parameters, settings)
        lengths = tuple(example.length for example in self.examples)
        min_examples = self.objective.min_examples(self.examples)
        self.order = BatchOrder(lengths, settings.batch_size, settings.tokens_per_batch, settings.seed, min_examples)
        self.steps = settings.max_steps or self.order.steps(settings.epochs)
        self.epoch, self.stopped, self.last_loss_and_norm = 0, False, (0.0, 0.0)

    def __iter__(self) -> Iterator[Event]:
        while self.has_next_step:
            yield from self.advance()
            self.check_diverged()

    @property
    def has_next_step(self) -> bool:
        """Whether there are steps left and `patience` is not exhausted."""
        out_of_patience = (
            self.settings.patience is not None and self.progress.evaluations_since_best >= self.settings.patience
        )
        return self.progress.step < self.steps and not out_of_patience

    def advance(self) -> list[Event]:
        """Runs one step, and the evaluation that is due after it."""
        events = [self._train_step()]
        if self.held_out and self._evaluation_due:
            events.append(self._evaluate())
            self.stopped |= self.ranks.total(float(self.stop_requested())) > 0  # requests during the evaluation
        self.progress.seconds += sum(event.seconds for event in events)
        return events

    # -- one step -----------------------------------------------------------------------------------------------------

    def _train_step(self) -> Event:
        started, step = time.perf_counter(), self.progress.step
        self.epoch, numbers = self.order.epoch_and_batch(step)
        micro_batches = self._micro_batches(step, numbers)
        weight = self.ranks.total(sum(self.objective.weight(batch) for _, batch in micro_batches)) or 1.0
        loss = 0.0
        for number, batch in self.objective.link_micro_batches(self.learner, self.ranks, step, micro_batches):
            self.learner.seed_dropout(step, number)
            part = self.objective.loss(self.learner, batch) / weight
            part.backward()
            loss += float(part.detach())
        factor = learning_rate_factor(
            self.settings.schedule, step, self.steps, self.settings.warmup_steps(self.steps), self.settings.floor
        )
        loss, norm = self._apply_gradients(loss, factor * self.settings.learning_rate)
        metrics = {"epoch": self.epoch, "loss": loss, "learning_rate": factor * self.settings.learning_rate}
        metrics |= {"gradient_norm": norm, "tokens": sum(sum(map(len, self.examples[i].ids)) for i in numbers)}
        return Event(
            step + 1, metrics, skipped=self.progress.consecutive_skips > 0, seconds=time.perf_counter() - started
        )

    def _micro_batches(self, step: int, numbers: Sequence[int]) -> list[tuple[int, dict[str, Tensor]]]:
        """This process's micro-batches of a step, each with its number."""
        many = min(self.settings.accumulation * self.ranks.world_size, len(numbers))
        found = []
        for number in range(self.ranks.rank, many, self.ranks.world_size):
            chosen = [self.examples[i] for i in numbers[number::many]]
            generator = np.random.default_rng((self.settings.seed, step))  # the same in every micro-batch
            found.append((number, self.objective.collate(self.loaded, chosen, generator)))
        return found

    def _apply_gradients(self, loss: float, learning_rate: float) -> tuple[float, float]:
        """Sums the gradients over all processes, clips them and updates the weights where loss and norm are finite.

        ->  the loss over all processes, and the norm of all gradients before clipping
        """
        loss, stop_requests = self.ranks.totals([loss, float(self.stop_requested())])
        self.ranks.sum_gradients(self.parameters.values())
        norm, max_norm = gradient_norm(self.parameters.values()), self.settings.clip
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            optimizer_step(self.optimizer, learning_rate, min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0)
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        self.progress.consecutive_skips = 0 if is_finite else self.progress.consecutive_skips + 1
        self.stopped = stop_requests > 0
        self.last_loss_and_norm = loss, norm
        return loss, norm

    def check_diverged(self) -> None:
        """Raises DivergedError after `DIVERGED_STEPS` skipped steps in a row."""
        if self.progress.consecutive_skips < DIVERGED_STEPS:
            return
        loss, norm = self.last_loss_and_norm
        raise DivergedError(
            f"step {self.progress.step}: the loss is {loss:g} and the gradient norm {norm:g}, the last "
            f"{DIVERGED_STEPS} steps were not applied: try a smaller ",
            Argument("learning_rate"),
            f" (it is {self.settings.learning_rate:g}) or a longer ",
            Argument("warmup"),
        )

    def undo_skipped_steps(self) -> None:
        """Sets the step count back to the last applied step; the skipped ones since changed no weights."""
        self.progress.step -= self.progress.consecutive_skips
        self.progress.consecutive_skips = 0

    # -- one evaluation -----------------------------------------------------------------------------------------------

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        step = self.progress.step
        return step == self.steps or self.order.epoch_and_batch(step)[0] != self.epoch

    @property
    def _evaluation_due(self) -> bool:
        every, last = self.settings.evaluate_every, self.progress.step == self.steps
        if self.progress.consecutive_skips:  # the weights are as evaluated before, and skipped steps may be undone
            return last and self.progress.consecutive_skips < DIVERGED_STEPS
        return self.ends_epoch if every is None else self.progress.step % every == 0 or last

    def evaluate_before(self) -> None:
        """Scores the model before training, into `progress.before`."""
        self.progress.before = self._held_out_scores()

    def _held_out_scores(self) -> dict[str, float]:
        """Scores on the held-out examples, computed by the first process and broadcast to the others."""
        self.loaded.module.eval()
        return self.ranks.broadcast(self.objective.score(self.loaded, self.held_out) if self.ranks.is_first else None)

    def _evaluate(self) -> Event:
        started, now = time.perf_counter(), self.progress
        scores = self._held_out_scores()
        metric = self.objective.best_metric
        score = -scores[metric] if metric in _LESS_IS_BETTER else scores[metric]
        better = now.best is None or score > now.best
        if better and not math.isnan(score):
            now.best, now.best_step, now.evaluations_since_best, now.scores = score, now.step, 0, scores
            if self.settings.keep_best and self.ranks.is_first:
                self.best_checkpoint.put(now.step, self.parameters)
        else:
            now.evaluations_since_best += 1
        if not self.settings.keep_best:
            now.scores = scores
        return Event(now.step, scores, True, now.evaluations_since_best == 0, seconds=time.perf_counter() - started)

    @no_grad()
    def finish(self) -> Loaded:
        """The trained model with its best weights, in evaluation mode."""
        for name, numbers in (self.best_checkpoint.get() if self.ranks.is_first else {}).items():
            self.parameters[name].copy_(numbers)
        self.ranks.broadcast_tensors(self.parameters.values())
        self.loaded.module.eval()
        return self.loaded


def log_line(event: Event) -> dict[str, Any]:
    """An event as a line of the log; numbers that are not finite become None."""
    metrics = replace_non_finite(event.metrics)
    if event.is_evaluation:
        return {"step": event.step, "scores": metrics, "best": event.is_best, "seconds": round(event.seconds, 4)}
    skipped = {"skipped": True} if event.skipped else {}
    return {"step": event.step, **metrics, **skipped, "seconds": round(event.seconds, 4)}
