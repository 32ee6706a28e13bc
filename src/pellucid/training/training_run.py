"""A whole training run, from a model and data to a saved checkpoint folder; an interrupted one can be resumed."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pellucid.bars import progress_bar
from pellucid.checkpoints.adapter_save import check_not_base_folder
from pellucid.checkpoints.folder import temporary_parent
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.save import save_checkpoint
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.unchanged import with_stamps
from pellucid.errors import InputError, Interrupted, MessagePart, PellucidError, format_count
from pellucid.files import sync_to_disk
from pellucid.machine import dtype_name, inference_mode
from pellucid.training import low_rank
from pellucid.training.advice import RESUME
from pellucid.training.distributed import join_processes
from pellucid.training.inputs import DataArguments
from pellucid.training.interrupt import interruptible
from pellucid.training.log import Log
from pellucid.training.loop import DivergedError, Event, Loop, log_line
from pellucid.training.manifest import TrainingIdentity
from pellucid.training.objective import Objective
from pellucid.training.plan import make_plan
from pellucid.training.report import Result, RunStart
from pellucid.training.settings import Settings
from pellucid.training.start import mark_trained
from pellucid.training.state import LOG, State, check_folder, clear, lock_folder

log = logging.getLogger("pellucid")

SAVE_INTERVAL = 30.0
"""Minimum seconds between two saved states where `save_every` is None."""


@inference_mode(False)  # gradients are needed, whatever a caller has turned off
def run_training(
    base: Loaded,
    data_arguments: DataArguments,
    objective: Objective,
    settings: Settings,
    *,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    on_start: Callable[[RunStart], object] = lambda one: None,
    on_event: Callable[[Event], object] = lambda one: None,
    on_saved: Callable[[Path, Result], object] = lambda folder, result: None,
) -> Result:
    """Trains a copy of `base` on an objective and data; `base` is unchanged.

    out: a folder to write. During training `out/training` holds the state to resume from.
    resume: continues an interrupted run of the same model, data and settings; the result is the same bit for bit. Where
        there is no state, it starts from the beginning.  overwrite: starts again in a folder that holds files.
    progress: whether to show a progress bar on stderr; None for only at a terminal.
    on_start: called once before the first step.  on_event: called with every step and every evaluation.  on_saved:
        called with `out`, once the model is saved there and before the state is removed. All are called in the first
        process only.

    Raises InputError (data, settings, or a folder that belongs to something else), CorruptFileError (a damaged state),
    DivergedError (losses that are not finite) and ResourceError (no space); saved states are then still there. Raises
    Interrupted, a KeyboardInterrupt, once a step has ended and its state is saved.
    """
    data_arguments.check(objective)
    folder = check_folder(out, resume=resume, overwrite=overwrite)
    if out is not None and settings.adapter_only:
        check_not_base_folder(out, base)
    elif out is not None:
        check_not_base_folder(out, base, "a training needs to resume")
    plan = make_plan(base, data_arguments, objective, settings)
    device = next(plan.loaded.module.parameters()).device
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(join_processes(device))
        if folder is not None and ranks.is_first:
            stack.enter_context(lock_folder(folder))
            check_folder(out, resume=resume, overwrite=overwrite)  # again: another run may have ended there meanwhile
            temporary_parent(folder.parent)  # fails now, and not after the training
            if overwrite:
                clear(folder)
        ranks.total(0.0)  # all wait until the first process is ready
        loop = Loop(plan.loaded, plan.objective, settings, plan.examples, plan.held_out_examples, ranks)
        state = None if folder is None else State(folder, TrainingIdentity.of(plan))
        if state is not None:
            loop.best_checkpoint = state
            if state.manifest is not None:
                state.restore(loop)
        step = loop.progress.step
        if ranks.total(step) != step * ranks.world_size:
            raise InputError(f"the processes find different states: {folder} must be one folder for all of them")
        ranks.broadcast_tensors(loop.parameters.values())
        own_state = state if ranks.is_first else None
        step_log = stack.enter_context(contextlib.closing(Log(own_state.folder / LOG if own_state else None, step)))
        precision = dtype_name(loop.learner.dtype)
        start = RunStart(folder, plan, loop.steps, step, precision, ranks)
        if ranks.is_first:
            _warn_of_learning_rate(settings, loop.steps)
            on_start(start)
        run = _TrainingRun(start, loop, own_state, step_log, on_event, on_saved, time.monotonic())
        run.run_steps(progress if ranks.is_first else False)
        return run.finish()


def _warn_of_learning_rate(settings: Settings, steps: int) -> None:
    """Warns of a learning rate of 0, or of one that rises to the end."""
    if not settings.learning_rate:
        log.warning("learning_rate is 0: nothing will be learned")
    elif settings.warmup >= max(steps, 2) or (steps > 2 and settings.warmup_steps(steps) == steps - 1):
        warmup = settings.warmup if settings.warmup < 1 else int(settings.warmup)
        log.warning(
            "warmup is %s, and the training has %s: the rate rises to the end", warmup, format_count(steps, "step")
        )


# -- from the first step to the folder --------------------------------------------------------------------------------


@dataclass
class _TrainingRun:
    """One process's part of a training run.

    state: of the first process, which alone saves; None in the others, and where nothing is written.
    last_saved: by `time.monotonic`.
    """

    start: RunStart
    loop: Loop
    state: State | None
    log: Log
    on_event: Callable[[Event], object]
    on_saved: Callable[[Path, Result], object]
    last_saved: float
    logged_warnings: set[str] = field(default_factory=set)

    def run_steps(self, shown: bool | None) -> None:
        """Trains to the last step, and saves states.  shown: whether a progress bar is, see `progress_bar`."""
        loop = self.loop
        if self.state is not None:
            self.state.delete_stale_files()
        steps = {"total": loop.steps, "initial": loop.progress.step, "unit": " steps"}
        with interruptible() as loop.stop_requested, progress_bar("training", shown=shown, **steps) as bar:
            if loop.progress.step == 0 and self.start.plan.can_score_before:
                loop.evaluate_before()
            while loop.has_next_step:
                events = loop.advance()
                for event in events:
                    self._report(event, bar)
                self._warn_of_changed_files()
                self._save_if_due(len(events) > 1)

    def _report(self, event: Event, bar: Any) -> None:
        if not self.start.ranks.is_first:
            return
        self.log.write(log_line(event))
        self.on_event(event)
        if event.skipped:
            log.warning(
                "step %s was left out: its loss is %g and its gradient norm %g",
                event.step, event.metrics["loss"], event.metrics["gradient_norm"],
            )  # fmt: skip
        bar.update(0 if event.is_evaluation else 1)
        bar.set_postfix_str(_short(event, self.loop), refresh=event.is_evaluation)

    def _warn_of_changed_files(self) -> None:
        """Warns, at the end of an epoch, of data files that have changed since they were read; once for each."""
        if self.start.ranks.is_first and self.loop.ends_epoch:
            for data in filter(None, (self.start.plan.data, self.start.plan.held_out)):
                message = data.change_message()
                if message is not None and message not in self.logged_warnings:
                    self.logged_warnings.add(message)
                    log.warning("%s; this training continues with what it read", message)

    def _save_if_due(self, evaluated: bool) -> None:
        """Saves a state where one is due. Raises Interrupted where a stop was requested, and DivergedError."""
        loop, every = self.loop, self.start.plan.settings.save_every
        try:
            loop.check_diverged()
        except DivergedError as error:
            loop.undo_skipped_steps()
            self._save_state(diverged=True)
            stored = f"; the weights of step {loop.progress.step:,} are kept in {self.start.folder}: "
            again = (stored, RESUME, " takes another rate and continues from there") if self.start.folder else ()
            raise DivergedError(error, again) from error
        ends = evaluated or loop.ends_epoch or not loop.has_next_step
        is_overdue = time.monotonic() - self.last_saved >= SAVE_INTERVAL
        is_due = (loop.progress.step % every == 0 or not loop.has_next_step) if every else (ends and is_overdue)
        if is_due or loop.stopped:
            self._save_state()
        if loop.stopped:
            advice: MessagePart = "nothing is kept, since it has no folder (out)"
            if self.start.folder:
                stored_state = f"it is kept in {self.start.folder}: run the same again with "
                advice = (stored_state, RESUME, " to continue from there")
            raise Interrupted(f"interrupted after step {loop.progress.step:,} of {loop.steps:,}; ", advice)

    def _save_state(self, *, diverged: bool = False) -> None:
        if self.state is not None:
            self.state.save(self.loop, self.log, diverged=diverged)
            self.last_saved = time.monotonic()

    def finish(self) -> Result:
        """Saves the model with its best weights, and only then removes the state."""
        loop, plan, folder = self.loop, self.start.plan, self.start.folder
        found = loop.finish()
        unchanged = loop.progress.consecutive_skips == loop.progress.step  # every step was skipped
        untrained = found.untrained if unchanged else mark_trained(found).untrained
        plain = replace(low_rank.merge_adapters(found), untrained=untrained, initial_versions=())  # as it is saved
        now, out = loop.progress, folder.parent if folder else None
        base = plan.base.source if plan.settings.adapter_only else None
        held_out = plan.held_out_examples
        source = None if out is None else Source(str(out), out.resolve(), "folder", base=base)
        result = Result(
            loaded=replace(plain, source=source),
            start=self.start,
            scores=self._final_scores(plain),
            before=now.before,
            baseline=plan.objective.baseline_scores(plan.examples, held_out) if held_out else {},
            best_step=now.best_step if plan.settings.keep_best else 0,
            steps=now.step,
            seconds=round(now.seconds, 3),
            log=tuple(self.log.lines),
            folder=out,
        )
        if out is not None and self.state is not None:
            try:
                self._save_model(found, plain, out)
            except PellucidError as error:
                raise type(error)(error, self._save_state_instead()) from error
            self.log.copy(out / LOG)
            self.on_saved(out, result)
            sync_to_disk(out)
            self.state.remove()
        self.start.ranks.total(0.0)  # every process returns only once the folder is complete
        return replace(result, loaded=replace(result.loaded, source=source and with_stamps(source)))

    def _save_model(self, found: Loaded, plain: Loaded, out: Path) -> None:
        if self.start.plan.settings.adapter_only:
            low_rank.save(found, self.start.plan.settings, out, overwrite=True)
        else:
            save_checkpoint(plain, out, overwrite=True)

    def _save_state_instead(self) -> MessagePart:
        """Saves the state of a run whose model could not be saved. ->  the end of the error message"""
        try:
            self._save_state()
        except PellucidError:
            return f"; the trained weights could not be kept in {self.start.folder} either"
        return (f"; the trained weights are kept in {self.start.folder}: ", RESUME, " only writes it")

    def _final_scores(self, plain: Loaded) -> dict[str, float]:
        """Scores of the kept weights, with the slow scores of the objective where it has such."""
        plan = self.start.plan
        if not plan.held_out_examples or type(plan.objective).final_scores is Objective.final_scores:
            return self.loop.progress.scores
        return self.start.ranks.broadcast(
            plan.objective.final_scores(plain, plan.held_out_examples) if self.start.ranks.is_first else None
        )


def _short(event: Event, loop: Loop) -> str:
    """The few numbers that fit into a progress bar."""
    best, scores = loop.objective.best_metric, loop.progress.scores
    score = f", {best} {scores[best]:.4g}" if best in scores else ""
    if event.is_evaluation:
        return f"{best} {event.metrics[best]:.4g}"
    return f"loss {event.metrics['loss']:.4g}, rate {event.metrics['learning_rate']:.2g}{score}"
