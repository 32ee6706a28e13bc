"""pellucid train"""

import logging
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import NameValueOption, NonEmptyPath
from pellucid.cli.output import enable_info_log, is_quiet, print_path, print_rich, progress_option, say, to_json
from pellucid.cli.reading import TEXT
from pellucid.cli.scores import scores_table
from pellucid.cli.task_items import parse_settings, split_name_values
from pellucid.cli.task_options import objective_option_names, training_setting_names, training_task
from pellucid.errors import format_count
from pellucid.training.names import OBJECTIVES

if TYPE_CHECKING:
    from pellucid.learning import Report

_TASKS = "\n".join(
    textwrap.fill(line, 76, initial_indent=f"  {name:<22} ", subsequent_indent=" " * 25, break_on_hyphens=False)
    for one in OBJECTIVES
    for name, line in (
        (one.name, one.summary),
        *(("", f"Also: {', '.join(one.aliases)}.") for _ in one.aliases[:1]),
        ("", f"Columns: {one.reads}."),
    )
)

HELP = f"""Train a model on DATA.

TASK is one of the list below. DATA is a table (.csv, .tsv, .jsonl) with the columns of the task, a file of plain text,
or for a translation two files whose lines belong together. What is written is an ordinary model, with a card, its
scores, the curves of the training, and a recipe that repeats it. A training that was interrupted continues with
--resume, bit for bit.

\b
Tasks:
{_TASKS}

\b
Examples:
  pellucid train classify train.csv --model all-MiniLM-L6-v2 -o my-model
  pellucid train classify train.csv -m all-MiniLM-L6-v2 \\
      --column label=sentiment --epochs 2 --lora 16 -o my-model
  pellucid train tag train.conll -m all-MiniLM-L6-v2 --validation dev.conll \\
      -o my-tagger
  pellucid train text-generation book.txt --recipe small.toml \\
      --set schedule=cosine -o my-writer
  pellucid train --recipe my-model/recipe.toml -o the-same-again
"""

_COMMON = ("epochs", "learning_rate", "batch_size", "seed", "lora")
"""Settings that have an option of the same name."""


@click.command("train", help=HELP)
@click.argument("given", nargs=-1, metavar="TASK DATA...")
@click.option("--model", "-m", help="The model to train: a folder, hub id or installed model.")
@click.option("--output", "-o", required=True, type=NonEmptyPath(file_okay=False), help="A folder to write.")
@click.option("--validation", metavar="FILE|SHARE", help="Held-out rows, or the share of DATA that is.  [default: 0.1]")
@click.option(
    "--column", "-c", "columns", multiple=True, metavar="NAME=COLUMN", help="A column that has another name in DATA."
)
@click.option("--encoding", metavar="NAME", help="Encoding of DATA and FILE, where they are not UTF-8.")
@click.option("--epochs", metavar="N", help="How many times every row is read.  [default: 3; similarity: 4]")
@click.option(
    "--learning-rate",
    metavar="R",
    help="Peak learning rate.  [default: 1e-4 or 5e-5, by task; with --lora ten times that]",
)
@click.option(
    "--batch-size", metavar="N", help="Rows per step.  [default: as many as 2,048 tokens hold; similarity: 32]"
)
@click.option("--precision", "--dtype", "precision", metavar="NAME", help="float32, bfloat16 or auto.  [default: auto]")
@click.option("--lora", metavar="RANK", help="Train a LoRA adapter of this rank instead of the whole model.")
@click.option("--teacher", metavar="MODEL", help="Learn from this model's answers as well as from the labels.")
@click.option("--seed", metavar="N", help="Seed of every random choice.  [default: 0]")
@click.option(
    "--set",
    "-s",
    "more",
    cls=NameValueOption,
    type=TEXT,
    names=lambda: training_setting_names() | objective_option_names(),
    typed_elsewhere={"task": "TASK", "data": "DATA", "out": "--output", "progress": "pellucid --quiet train"},
    help="Any setting, or option of the task (docs/training.md); an unknown name lists them.",
)
@click.option(
    "--from-scratch", is_flag=True, help="Take the architecture and tokenizer of --model, with new random weights."
)
@click.option("--recipe", type=NonEmptyPath(dir_okay=False), help="A .toml file with all of this.")
@click.option("--resume", is_flag=True, help="Continue this training where it was interrupted, or start it.")
@click.option("--overwrite", is_flag=True, help="Start again in a folder that holds files.")
@click.option("--json", "as_json", is_flag=True, help="The scores, and what led to them, as JSON.")
def command(
    given: tuple[str, ...],
    model: str | None,
    output: Path,
    validation: str | None,
    columns: tuple[str, ...],
    encoding: str | None,
    recipe: Path | None,
    from_scratch: bool,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Trains the model, and prints the report; its help is `HELP`."""
    task, data = _task_and_data(given, recipe, model)
    typed_settings = _settings(settings)
    import pellucid

    _enable_info_log()
    trained = pellucid.train(
        model, data, task,
        out=output, validation=_share_or_file(validation), columns=split_name_values("--column", columns, "COLUMN"),
        encoding=encoding, recipe=recipe, from_scratch=from_scratch, resume=resume, overwrite=overwrite,
        progress=progress_option() if _is_first_process() else False, **typed_settings,
    )  # fmt: skip
    if not _is_first_process():
        return
    if as_json:
        click.echo(to_json(trained.report.data()))
        return
    _show_report(trained.report)
    print_path(output)


def _task_and_data(typed: tuple[str, ...], recipe: Path | None, model: str | None) -> tuple[str | None, Any]:
    """The task and the data; with a recipe either may be None. Raises UsageError where one is missing without it."""
    task, rest = (typed[0], typed[1:]) if typed else (None, ())
    tasks = {name for one in OBJECTIVES for name in (one.name, *one.aliases)}
    if recipe is not None and len(typed) == 1 and typed[0] not in tasks:
        task, rest = None, typed
    task = None if task is None else training_task(task)
    for missing, what in ((task, "TASK"), (rest, "DATA"), (model, "--model")):
        if not missing and recipe is None:
            raise click.UsageError(
                f"Missing {what}: write pellucid train TASK DATA --model NAME -o FOLDER, or --recipe FILE."
            )
    return task, None if not rest else rest[0] if len(rest) == 1 else rest


def _share_or_file(validation: str | None) -> float | str | None:
    """A share where the value is a number, else a file."""
    if validation is None:
        return None
    try:
        return int(validation) if validation.isdecimal() else float(validation)
    except ValueError:
        return validation


def _settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The given settings and options by name, unparsed."""
    from pellucid.training.arguments import CommandLineText

    found = {name: settings[name] for name in (*_COMMON, "precision", "teacher") if settings[name] is not None}
    found |= parse_settings("--set", settings["more"], found)
    return {name: CommandLineText(value.lstrip()) for name, value in found.items()}


def _show_report(report: "Report") -> None:
    """Prints the scores beside those before training and of the baseline, on stderr."""
    if is_quiet():
        return
    if report.scores:
        print_rich(scores_table(report.scores, {"before": report.before, "baseline": report.baseline}), err=True)
        if report.baseline:
            say("baseline: the commonest label, the mean, or no answer, for every row; - where it has no such score")
    best_note = f"; the weights of step {report.best_step:,} were the best and are kept" if report.best_step else ""
    say(f"{format_count(report.steps, 'step')} in {report.seconds:,.1f} s{best_note}")


def _is_first_process() -> bool:
    """Whether this is the first of the processes that `torchrun` starts, which alone prints."""
    return os.environ.get("RANK", "0") == "0"


def _enable_info_log() -> None:
    """Logs the library's messages at level INFO in the first process, unless `--quiet`; in others only errors."""
    if _is_first_process():
        enable_info_log()
    else:
        logging.getLogger("pellucid").setLevel(logging.ERROR)
