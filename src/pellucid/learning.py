"""Training and evaluation: a model, data and a task give a trained model and a report."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pellucid.checkpoints.families import Config
from pellucid.checkpoints.load import open_checkpoint, read_tokenizer
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import DEFAULT_OPTIONS, HubOptions
from pellucid.config.checks import check_bool
from pellucid.errors import Argument, InputError, PellucidError, blaming, did_you_mean, format_count
from pellucid.files import write_atomically
from pellucid.model import Model, build
from pellucid.paths import path_of
from pellucid.streams import use_threads
from pellucid.text.special_token_ids import check_vocabulary_rows, special_token_ids
from pellucid.text.truncation import replace_surrogates
from pellucid.training.arguments import convert_options, objective_and_settings, options_of
from pellucid.training.card import model_card
from pellucid.training.data import normalise_columns, read
from pellucid.training.inputs import DataArguments
from pellucid.training.log import replace_non_finite
from pellucid.training.low_rank import check_base
from pellucid.training.names import OBJECTIVES, Name, objective_named
from pellucid.training.objective import Objective
from pellucid.training.recipe import RECIPE, Recipe, overlap_warning, read_recipe, recipe_or_empty
from pellucid.training.report import Outcome, Result, RunStart
from pellucid.training.settings import Settings
from pellucid.training.start import check_finite
from pellucid.training.summary import recipe_of, summary_lines
from pellucid.training.training_run import run_training
from pellucid.view.curves import Curves, curves

log = logging.getLogger("pellucid")

CARD, DRAWING = "README.md", "curves.svg"


@dataclass(frozen=True, kw_only=True)
class Report(Outcome):
    """The report of a training. task: the task's name.  rows, held_out: how many rows were trained on and held out."""

    task: str
    rows: int
    held_out: int

    @property
    def curves(self) -> Curves:
        """Losses, scores and learning rates over the steps, to be shown in a notebook or saved by `svg` and `png`."""
        return curves(self.log, f"{self.task}, {format_count(self.rows, 'row')}")

    def data(self) -> dict[str, Any]:
        """All of it except the log, ready for JSON: a score that is not finite is None."""
        found = {name: value for name, value in vars(self).items() if name != "log"}
        return replace_non_finite(found | {"folder": None if self.folder is None else str(self.folder)})

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items()) or "nothing was held out"
        return f"Report({self.task}: {scores}; {format_count(self.steps, 'step')}, {self.seconds:,.0f} s)"


class Trained(Model):
    """A model that was trained here."""

    def __init__(self, loaded: Loaded, report: Report | None = None) -> None:
        super().__init__(loaded)
        self._report = report

    @property
    def report(self) -> Report:
        """How the training went. Raises PellucidError for a model that an edit, `reading` or `saying` made."""
        if self._report is None:
            made = "an edited model, or one with another tokenizer or config, has no report"
            raise PellucidError(f"{made}: use that of the model that was trained")
        return self._report


def train(
    model: str | os.PathLike[str] | Model | None = None,
    data: Any = None,
    task: str | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    validation: Any = None,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    recipe: str | os.PathLike[str] | None = None,
    from_scratch: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    **settings: Any,
) -> Trained:
    """Trains a model on data. The given model stays unchanged; a new one is returned, in evaluation mode.

    model: a name or folder as for `pellucid.load`, or a model.
    data: a file (.csv, .tsv, .jsonl, ...), rows as dicts, a dict of columns, a data frame or a `datasets.Dataset`.
    task: "text-classification", ... or an alias ("classify"); `pellucid train --help` lists them with their columns.
    out: a folder to write: an ordinary checkpoint with a model card, the recipe, the log and the curves. During
        training, `out/training` holds the state from which an interrupted training is resumed.
    validation: data of the same kind, or the fraction of the rows to hold out; None for 0.1, 0 for nothing.
    columns: {"label": "sentiment"} reads the column "sentiment" where the task wants "label".
    encoding: of the files; None for the recipe's, or UTF-8.
    recipe: a file such as the `recipe.toml` beside a trained model; arguments given here override it.
    from_scratch: uses the architecture and the tokenizer of `model`, with random weights of the seed.
    resume: continues an interrupted training with the same model, data and settings, bit for bit.
    overwrite: starts again in a folder that holds files.  progress: a bar on stderr; None shows it at a terminal.
    settings: those of `pellucid.training.settings.Settings` (`epochs`, `learning_rate`, `batch_size`, `seed`, ...), and
        the task's own options.

    ->  a model whose `report` holds the scores beside those before training and of the baseline, the log and the
        curves.

    Raises InputError for an invalid task, setting, row or folder, NotFoundError, CorruptFileError for a damaged state,
    ResourceError where memory or disk runs out, and PellucidError where losses are not finite; the state saved in `out`
    by then is kept. KeyboardInterrupt is raised after the current step, whose state is kept.

    >>> better = train("all-MiniLM-L6-v2", "train.csv", "classify", out="my-model")       # doctest: +SKIP
    >>> better.report.scores                                                              # doctest: +SKIP
    {'loss': 0.31, 'accuracy': 0.88, ...}
    """
    use_threads()
    for flag, value in (("from_scratch", from_scratch), ("resume", resume), ("overwrite", overwrite)):
        check_bool(flag, value)
    stored_recipe = Recipe() if recipe is None else read_recipe(path_of(recipe))
    name = objective_named(_argument_or_recipe("task", task, stored_recipe.task))
    options = convert_options(name, stored_recipe.options_and_settings, f"{stored_recipe.file}: ") | settings
    objective, chosen = objective_and_settings(name, options)
    base = _base_model(model, stored_recipe, from_scratch, chosen)
    if chosen.adapter_only and isinstance(model, Model):
        check_base(base.loaded)
    arguments = DataArguments(
        _argument_or_recipe("data", data, stored_recipe.files("data") if data is None and stored_recipe.file else None),
        stored_recipe.held_out if validation is None else validation,
        {**stored_recipe.data.get("columns", {}), **normalise_columns(columns)},
        stored_recipe.data.get("encoding", "utf-8") if encoding is None else encoding,
    )
    result = run_training(
        base.loaded, arguments, objective, chosen, out=None if out is None else path_of(out),
        resume=resume, overwrite=overwrite, progress=progress,
        on_start=partial(_log_and_write_start, stored_recipe), on_saved=partial(_write_result, name),
    )  # fmt: skip
    return Trained(result.loaded, _report(result))


def evaluate(
    model: str | os.PathLike[str] | Model,
    data: Any,
    task: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
    **options: Any,
) -> dict[str, float]:
    """The scores of a model on data, by name, such as {"loss": 0.31, "accuracy": 0.88, ...}.

    data, columns, encoding: as for `train`.  task: None for the one that fits the model's head.
    options: of the task. Those that set how a text is read, such as its languages, default to the recipe beside the
        model.
    Warns where the rows are those that the model was trained with, as far as the recipe beside it shows.
    Raises InputError where the model cannot answer the task or a part of it was never trained, and CorruptFileError
    where its weights are NaN or infinite.
    """
    use_threads()
    loaded = (model if isinstance(model, Model) else _open_float32(model)).loaded
    name = _objective_for_head(loaded) if task is None else objective_named(task)
    known = options_of(name)
    for one in options:
        if one not in known:
            raise InputError(f"{name.name} has no option {one!r}{did_you_mean(one, known)}: it has {', '.join(known)}")
    recipe = recipe_or_empty(loaded.source.folder / RECIPE) if loaded.source else Recipe()
    recipe_options = {one: recipe.options[one] for one in name.objective().reading_options if one in recipe.options}
    objective, _ = objective_and_settings(name, convert_options(name, recipe_options, f"{recipe.file}: ") | options)
    _check_head(loaded, objective)
    check_finite(loaded)
    dataset = read(data, columns, objective, encoding)
    if warning := overlap_warning(recipe, dataset):
        log.warning("%s", warning)
    rows, objective = dataset.rows, objective.for_scoring(dataset.rows)
    return objective.final_scores(loaded, objective.examples(loaded, rows))


def _log_and_write_start(recipe: Recipe, run_start: RunStart) -> None:
    """Logs what will be done, and writes the recipe into the training folder."""
    for sentence in recipe.differences(run_start):
        log.warning("%s", sentence)
    for line in summary_lines(run_start):
        log.info("%s", line)
    if run_start.folder is not None:
        _write_text(run_start.folder / RECIPE, recipe_of(run_start).toml())


def _write_result(name: Name, out: Path, result: Result) -> None:
    """Writes the card, the recipe and the curves beside the model."""
    summary = {"steps": result.steps, "best_step": result.best_step, "seconds": result.seconds}
    recipe = recipe_of(result.start, summary | {"scores": result.scores})
    _write_text(out / RECIPE, recipe.toml())
    _write_text(out / CARD, model_card(result, name))
    _write_text(out / DRAWING, _report(result).curves.text())


def _report(result: Result) -> Report:
    """The report that the trained model carries."""
    plan = result.start.plan
    outcome = {one.name: getattr(result, one.name) for one in fields(Outcome)}
    return Report(task=plan.objective.name, rows=len(plan.data), held_out=len(plan.held_out or ()), **outcome)


def _write_text(path: Path, text: str) -> None:
    """Writes UTF-8, replacing the surrogates that a path that is not UTF-8 contains."""
    write_atomically(path, lambda file: file.write(replace_surrogates(text).encode("utf-8")), only_writer=True)


def _argument_or_recipe(name: str, argument: Any, recipe: Any) -> Any:
    """The argument, or the recipe's value where it is None."""
    value = recipe if argument is None else argument
    if value is None or (isinstance(value, str) and not value):
        raise InputError(f"no {name} is named: a training needs a model, data and a task, or a recipe that names them")
    return value


def _base_model(
    model: str | os.PathLike[str] | Model | None, recipe: Recipe, from_scratch: bool, settings: Settings
) -> Model:
    """The model to train: the given one, or the recipe's."""
    facts = recipe.model if model is None else {}
    if "family" in facts:
        return _build_from_recipe(facts, recipe, settings.seed)
    scratch = from_scratch or bool(facts.get("from_scratch"))
    if scratch and settings.lora is not None:
        lora, anew = Argument("lora", settings.lora), Argument("from_scratch", True)
        raise InputError(lora, " adapts trained weights, and ", anew, " discards them: leave one of them out")
    # the recipe of a model trained from scratch names no model, and lies beside it
    recipe_folder = recipe.file.parent if recipe.file is not None and facts.get("from_scratch") else None
    base = _argument_or_recipe("model", model, recipe.resolve_path(facts["name"]) if "name" in facts else recipe_folder)
    opened = base if isinstance(base, Model) else _open_float32(base, HubOptions(facts.get("revision")))
    if not scratch:
        return opened
    untrained, trained = build(opened.config, seed=settings.seed).loaded, opened.loaded
    kept_fields = {name: getattr(trained, name) for name in ("tokenizer", "target_tokenizer", "pooling", "generation")}
    return Model(replace(untrained, **kept_fields))


def _open_float32(name: str | os.PathLike[str], hub_options: HubOptions = DEFAULT_OPTIONS) -> Model:
    """A checkpoint in float32, the only dtype that `train` and `evaluate` open one in."""
    return Model(open_checkpoint(name, alternatives={}, hub_options=hub_options))


def _build_from_recipe(facts: Mapping[str, Any], recipe: Recipe, seed: int) -> Model:
    """A new model of the architecture that a recipe describes, with the tokenizer that it names."""
    if "tokenizer" not in facts:
        raise InputError(f"{recipe.file}: model.family says what to build: name its tokenizer as model.tokenizer")
    tokenizer = read_tokenizer(recipe.resolve_path(facts["tokenizer"]))
    if tokenizer is None:
        raise InputError(f"{recipe.file}: there is no tokenizer in {facts['tokenizer']!r}")
    stated = dict(facts.get("facts", {}))
    with blaming(f"{recipe.file}, [model]", InputError):
        tokenizer_facts = {"vocab_size": tokenizer.largest_id + 1} | special_token_ids(
            tokenizer, Config.of(facts["family"]), stated
        )
        config = Config.of(facts["family"], **(tokenizer_facts | stated))
        check_vocabulary_rows(config, tokenizer)
    return build(config, seed=seed).reading(tokenizer)  # with the recipe's ids


def _objective_for_head(loaded: Loaded) -> Name:
    """The task that a model's head is for."""
    config = loaded.config
    head = config.head.name if config.head is not None else ""
    one_number = config.inert.get("problem_type") == "regression" or len(config.labels) == 1
    if head == "sequence-classification" and one_number:
        return objective_named("text-regression")
    for one in OBJECTIVES:
        if one.head == head:
            return one
    what = f"a {head} head" if head else "no head"
    raise InputError(
        f"the model has {what}, which belongs to no known task: name one of {', '.join(o.name for o in OBJECTIVES)}"
    )


def _check_head(loaded: Loaded, objective: Objective) -> None:
    """Refuses a model without the head of a task, or with untrained parts."""
    expected_head, actual_head = objective.head(loaded), loaded.config.head
    if type(expected_head) is not type(actual_head):
        has = "none" if actual_head is None else f"one for {actual_head.name}"
        needs = "no head" if expected_head is None else f"a head for {expected_head.name}"
        raise InputError(
            f"{objective.name} needs {needs}, and the model has {has}: train it for {objective.name} first"
        )
    if loaded.untrained:
        raise InputError(f"the model is UNTRAINED ({', '.join(loaded.untrained[:3])}): its scores would be chance")
