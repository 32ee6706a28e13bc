"""A whole training: from a model and data to a folder that every command opens; broken off, it goes on where it was."""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pellucid.bars import bar
from pellucid.checkpoints.adapter_save import check_apart
from pellucid.checkpoints.folder import place_of
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.save import save_checkpoint
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.unchanged import marked
from pellucid.errors import InputError, Interrupted, PellucidError, Words
from pellucid.files import to_disk
from pellucid.machine import inference_mode
from pellucid.training import low_rank
from pellucid.training.advice import RESUME
from pellucid.training.distributed import Ranks, joined
from pellucid.training.inputs import Given
from pellucid.training.interrupt import interruptible
from pellucid.training.log import Log
from pellucid.training.loop import DivergedError, Loop, Told, numbers_of
from pellucid.training.objective import Objective
from pellucid.training.plan import Plan, planned
from pellucid.training.report import Begun, Result
from pellucid.training.settings import Settings
from pellucid.training.start import learned
from pellucid.training.state import LOG, State, check_folder, clear, hold

log = logging.getLogger("pellucid")

RECIPE = "recipe.toml"

PAUSE = 30.0
"""Seconds: where nobody says how often, a look that comes sooner after a state keeps none of its own."""


@inference_mode(False)  # and it learns, whatever a caller has turned off around it
def learn(
    base: Loaded,
    given: Given,
    objective: Objective,
    settings: Settings,
    *,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    begun: Callable[[Begun], object] = lambda one: None,
    told: Callable[[Told], object] = lambda one: None,
    done: Callable[[Path, Result], object] = lambda folder, result: None,
) -> Result:
    """Learns an objective from what was given; `base` stays as it is.

    out: a folder to write. While it learns, `out/training` holds what it goes on from.
    resume: goes on where a training of the same model, data and settings was broken off; the result is the same, bit
        for bit. Where there is nothing to go on from, it begins.  overwrite: begins anew in a folder that holds files.
    progress: a bar on stderr; None shows it at a terminal.
    begun: called once before the first step.  told: with every step and every look.  done: with `out`, once the model
        stands there, and before what it could go on from is removed. All of them in the first process alone.

    Raises InputError (data, settings, or a folder that belongs to something else), CorruptFileError (a damaged state),
    DivergedError (losses that are no numbers) and ResourceError (no room); what was kept is then still there.
    KeyboardInterrupt once a step has ended and its state is kept.
    """
    given.check(objective)
    folder = check_folder(out, resume=resume, overwrite=overwrite)
    if out is not None and settings.adapter_only:
        check_apart(out, base)
    elif out is not None:
        check_apart(out, base, "a training needs to go on where it was broken off")
    plan = planned(base, given, objective, settings)
    device = next(plan.loaded.module.parameters()).device
    with contextlib.ExitStack() as held:
        ranks = held.enter_context(joined(device))
        if folder is not None and ranks.first:
            held.enter_context(hold(folder))
            check_folder(out, resume=resume, overwrite=overwrite)  # again: another one may have ended there meanwhile
            if out is not None:
                place_of(out)  # tried now, and not once everything is learned
            if overwrite:
                clear(folder, (RECIPE,))
        ranks.total(0.0)  # nobody reads before the first is ready
        return _Course(plan, folder, ranks, progress, begun, told, done)()


def _tell_of_rates(settings: Settings, steps: int) -> None:
    """Says what a person hardly means: a rate of nothing, or one that only rises."""
    if not settings.learning_rate:
        log.warning("learning_rate is 0: nothing will be learned")
    elif settings.warmup >= max(steps, 2) or (steps > 2 and settings.warmup_steps(steps) == steps - 1):
        said = settings.warmup if settings.warmup < 1 else int(settings.warmup)
        log.warning("warmup is %s, and the training has %d steps: the rate rises to the end", said, steps)


# -- from the first step to the folder --------------------------------------------------------------------------------


@dataclass
class _Course:
    """One process's part of a training. noticed: files that have changed.  kept: when a state was kept last."""

    plan: Plan
    folder: Path | None
    ranks: Ranks
    progress: bool | None
    begun: Callable[[Begun], object]
    told: Callable[[Told], object]
    done: Callable[[Path, Result], object]
    loop: Loop = field(init=False)
    state: State | None = field(init=False)
    log: Log = field(init=False)
    starting: Begun = field(init=False)
    noticed: set[str] = field(init=False, default_factory=set)
    kept: float = field(init=False)

    def __call__(self) -> Result:
        plan, self.kept = self.plan, time.monotonic()
        self.loop = Loop(plan.loaded, plan.objective, plan.settings, plan.examples, plan.held_examples, self.ranks)
        self.state = None if self.folder is None else State(self.folder, plan.about())
        if self.state is not None:
            self.loop.shelf = self.state
            if self.state.manifest is not None:
                self.state.restore(self.loop)
        step = self.loop.progress.step
        if self.ranks.total(step) != step * self.ranks.world:
            raise InputError(f"the processes find different states: {self.folder} must be one folder for all of them")
        self.ranks.same(self.loop.parameters.values())
        self.log = Log(self.folder / LOG if self.folder and self.ranks.first else None, step)
        with contextlib.closing(self.log):
            self.starting = Begun(self.folder, plan, self.loop.steps, step, self.loop.learner.dtype, self.ranks)
            if self.ranks.first:
                _tell_of_rates(plan.settings, self.loop.steps)
                self.begun(self.starting)
            self._all_steps()
            return self._result()

    def _all_steps(self) -> None:
        loop = self.loop
        if self.state is not None and self.ranks.first:
            self.state.sweep()
        shown = self.progress if self.ranks.first else False
        steps = {"total": loop.steps, "initial": loop.progress.step, "unit": " steps"}
        with interruptible() as loop.asked, bar("training", shown=shown, **steps) as line:
            if loop.progress.step == 0 and self.plan.is_old:
                loop.look_before()
            while loop.goes_on:
                turn = loop.turn()
                for one in turn:
                    self._tell(one, line)
                self._notice()
                self._keep(len(turn) > 1)

    def _tell(self, one: Told, line: Any) -> None:
        if not self.ranks.first:
            return
        self.log.write(numbers_of(one))
        self.told(one)
        if one.skipped:
            log.warning(
                "step %s was left out: its loss is %g and its gradient norm %g",
                one.step, one.numbers["loss"], one.numbers["gradient_norm"],
            )  # fmt: skip
        line.update(0 if one.looked else 1)
        line.set_postfix_str(_short(one, self.loop), refresh=one.looked)

    def _notice(self) -> None:
        """Says, at the end of an epoch, that a file of the data is no longer what was read; once of each."""
        if self.ranks.first and self.loop.ends_epoch:
            for data in filter(None, (self.plan.data, self.plan.held_out)):
                said = data.changed()
                if said is not None and said not in self.noticed:
                    self.noticed.add(said)
                    log.warning("%s; this training goes on with what it read", said)

    def _keep(self, looked: bool) -> None:
        """Keeps a state where one is due; ends where the loop was asked to, or its numbers are none any more."""
        loop, every = self.loop, self.plan.settings.save_every
        try:
            loop.check()
        except DivergedError as error:
            loop.back()
            self._save(diverged=True)
            where = f"; the numbers of step {loop.progress.step:,} are kept in {self.folder}: "
            kept = (where, RESUME, " takes another rate and goes on from there") if self.folder else ()
            raise DivergedError(error, kept) from error
        ends = looked or loop.ends_epoch or not loop.goes_on
        late = time.monotonic() - self.kept >= PAUSE
        due = (loop.progress.step % every == 0 or not loop.goes_on) if every else (ends and late)
        if due or loop.stopped:
            self._save()
        if loop.stopped:
            told: Words = "nothing of it is kept, since it has no folder (out)"
            if self.folder:
                told = (f"it is kept in {self.folder}: do the same again with ", RESUME, ", and it goes on from there")
            raise Interrupted(f"interrupted after step {loop.progress.step:,} of {loop.steps:,}; ", told)

    def _save(self, *, diverged: bool = False) -> None:
        if self.state is not None and self.ranks.first:
            self.state.save(self.loop, self.log, diverged=diverged)
            self.kept = time.monotonic()

    def _result(self) -> Result:
        """Takes the best numbers and writes the model; only then is its state removed."""
        loop, plan = self.loop, self.plan
        found = loop.finish()
        left = found if loop.progress.bad == loop.progress.step else learned(found)  # no step at all could be applied
        plain = replace(low_rank.merged(found), untrained=left.untrained, written=())  # as it is written from here on
        now, out = loop.progress, self.folder.parent if self.folder else None
        base = plan.base.source if plan.settings.adapter_only else None
        source = None if out is None else Source(str(out), out.resolve(), "folder", base=base)
        result = Result(
            loaded=replace(plain, source=source),
            begun=self.starting,
            scores=self._scores(plain),
            before=now.before,
            simplest=plan.objective.simplest(plan.examples, plan.held_examples) if plan.held_examples else {},
            best_step=now.best_step if plan.settings.keep_best else 0,
            steps=now.step,
            seconds=round(now.seconds, 3),
            log=tuple(self.log.lines),
            folder=out,
        )
        if out is not None and self.state is not None and self.ranks.first:
            try:
                self._write(found, plain, out)
            except PellucidError as error:
                raise type(error)(error, self._kept_instead()) from error
            self.log.copy(out / LOG)
            self.done(out, result)
            to_disk(out)
            self.state.remove(RECIPE)
        self.ranks.total(0.0)  # when this returns, the folder is whole, whichever process asks
        return replace(result, loaded=replace(result.loaded, source=source and marked(source)))

    def _write(self, found: Loaded, plain: Loaded, out: Path) -> None:
        if self.plan.settings.adapter_only:
            low_rank.save(found, self.plan.settings, out, overwrite=True)
        else:
            save_checkpoint(plain, out, overwrite=True)

    def _kept_instead(self) -> Words:
        """Keeps the state of a training whose model could not be written; the answer says what is kept."""
        try:
            self._save()
        except PellucidError:
            return f"; nor could what was learned be kept in {self.folder}"
        return (f"; what was learned is kept in {self.folder}: ", RESUME, " only writes it")

    def _scores(self, plain: Loaded) -> dict[str, float]:
        """Of the numbers that are kept; by what takes long as well, where the objective has such scores."""
        plan = self.plan
        if not plan.held_examples or type(plan.objective).final is Objective.final:
            return self.loop.progress.scores
        return self.ranks.said(plan.objective.final(plain, plan.held_examples) if self.ranks.first else None)


def _short(one: Told, loop: Loop) -> str:
    """The few numbers that a bar has room for."""
    best, scores = loop.objective.best, loop.progress.scores
    score = f", {best} {scores[best]:.4g}" if best in scores else ""
    if one.looked:
        return f"{best} {one.numbers[best]:.4g}"
    return f"loss {one.numbers['loss']:.4g}, rate {one.numbers['learning_rate']:.2g}{score}"
