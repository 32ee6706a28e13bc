"""pellucid run"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.display import answer_renderables
from pellucid.cli.options import NameValueOption, NonEmptyPath
from pellucid.cli.output import (
    check_output_path,
    print_path,
    print_rich,
    print_table,
    progress_option,
    report_empty,
    say,
    to_json,
)
from pellucid.cli.reading import NEVER_FILE, TEXT, stdin_location, typed_location, with_locations
from pellucid.cli.task_items import TypedItems, item_line, parse_settings
from pellucid.cli.task_options import task_option_names
from pellucid.errors import InputError, format_count
from pellucid.files import write_atomically
from pellucid.paths import target_of
from pellucid.tasks.names import TASKS, TaskInfo, find_task
from pellucid.training.names import OBJECTIVES

if TYPE_CHECKING:
    from pellucid.pipeline import Pipeline
    from pellucid.tasks.answer import Answer, Answers

TASK_ROWS: list[tuple[str, ...]] = [(one.name, one.summary) for one in TASKS]
"""Each task with a line about it."""

TASK_ALIASES = ", ".join(f"{alias} for {one.name}" for one in TASKS for alias in one.aliases)

_TASKS = "\n".join(f"  {name:<24} {says}" for name, says in TASK_ROWS)

HELP = f"""Run a task on texts.

TASK is one of the list below. Texts are the arguments, the lines of standard input (`-`), the lines of a FILE, or a
column of a table.

\b
Tasks:
{_TASKS}

Other names: {TASK_ALIASES}.

\b
Examples:
  pellucid run ner "My name is Ada, and I live in London."
  pellucid run sentiment-analysis reviews.csv --column text --json
  pellucid run question-answering "Who came?" --context "Ada came at five."
  pellucid run zero-shot-classification "It ended 2:1." --labels sport,art
  pellucid run text-ranking --query "a fruit" "An apple a day." "A stone."
  pellucid run ner mail.txt --whole --long windows -O stride=32
"""


@click.command("run", help=HELP)
@click.argument("task", required=False)
@click.argument("texts", type=TEXT, nargs=-1, metavar="TEXT... | FILE | -")
@click.option("--model", "-m", help="A folder, hub id or installed model; by default the task's own.")
@click.option("--column", "-c", metavar="NAME", help="The column of a .csv, .tsv or .jsonl FILE that holds the texts.")
@click.option("--pair-column", "--context-column", metavar="NAME", help="The column with the second of each pair.")
@click.option(
    "--pair",
    "--context",
    "second",
    type=NEVER_FILE,
    metavar="TEXT",
    help="The second of a pair, the same for all texts.",
)
@click.option(
    "--question",
    "--query",
    "first",
    type=NEVER_FILE,
    metavar="TEXT",
    help="The question about all texts, or the query.",
)
@click.option(
    "--labels", "candidate_labels", type=TEXT, metavar="A,B,...", help="Your own labels, for zero-shot-classification."
)
@click.option(
    "--top-k",
    type=int,
    metavar="K",
    help="Show the K best answers; of tasks that write, sample from the K likeliest tokens.",
)
@click.option(
    "--long",
    type=click.Choice(["error", "truncate", "windows"]),
    help="What happens to texts longer than is read at once.  [default: error]",
)
@click.option("--stride", type=int, metavar="N", help="Tokens that a window shares with the one before.")
@click.option(
    "--max-length",
    type=int,
    metavar="N",
    help="Tokens that are read at once; --long says what happens to longer texts.",
)
@click.option(
    "-O",
    "--option",
    "more",
    cls=NameValueOption,
    type=TEXT,
    names=task_option_names,
    typed_elsewhere={"task": "TASK", "items": "TEXT", "progress": "pellucid --quiet run"},
    help="Any other option of the task.",
)
@click.option(
    "--why",
    "explain",
    is_flag=True,
    help="Show what each token added, alone, by gradients; a hundred times the work, but for tasks that write "
    "(gradient x input of what was written).",
)
@click.option("--whole", is_flag=True, help="Read FILE, or standard input, as one text.")
@click.option("--encoding", metavar="NAME", default="utf-8", help="Encoding of FILE, where it is not UTF-8.")
@click.option(
    "--skip-bad-rows", is_flag=True, help="Leave out rows that cannot be read or lack a field, and list them."
)
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    metavar="NAME",
    help="Load the model as float32, bfloat16, float16, int8, int4, ...; auto, the fastest that is safe here.",
)
@click.option("--output", "-o", type=NonEmptyPath(dir_okay=False), help="Write JSON lines to a file.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per answer, with all of its fields.")
def command(task: str | None, model: str | None, dtype: str, as_json: bool, output: Path | None, **typed: Any) -> None:
    """Runs the task, and prints its answers; its help is `HELP`."""
    if task is None:
        print_table(TASK_ROWS)
        return
    task_info, options = _find_task(task), _task_options(typed)
    if typed["top_k"] is not None and "do_sample" in task_info.task_class().options():
        beams = options.get("num_beams")
        if "do_sample" not in options and isinstance(beams, int) and beams > 1:
            raise click.UsageError(f"--top-k samples, and -O num_beams={beams} does not: leave one of them out")
        options.setdefault("do_sample", True)  # as in `generate --top-k`
    import pellucid

    typed_items = TypedItems(**{field.name: typed[field.name] for field in fields(TypedItems) if field.name in typed})
    items = typed_items.items(task, task_info.task_class().inputs)
    check_output_path("--output", output, inputs=typed_items.texts)
    if typed["stride"] is not None and options.get("long", task_info.task_class().long) != "windows":
        raise click.UsageError("--stride is for texts that are read in windows: add --long windows, or leave it out")
    pipe = pellucid.pipeline(task, model, dtype=dtype)
    for_people = output is None and not as_json
    task_items, shown_items = itertools.tee(items) if for_people and not isinstance(items, list) else (items, items)
    shows = sys.stdout.isatty() and output is None
    options["progress"] = False if shows else progress_option()
    # a typed line is answered before the next one
    is_line_by_line = typed_items.texts == ("-",) and sys.stdin.isatty() and not isinstance(items, list)
    answers = _report_unread(
        _one_by_one(pipe, task_items, options) if is_line_by_line else pipe.many(task_items, **options)
    )
    location_of = typed_items.location_of or (
        typed_location(len(items), typed_items.item_noun) if isinstance(items, list) else None
    )
    with with_locations(location_of):
        if output is not None:
            write_atomically(
                target_of(output),
                lambda file: file.writelines(_answer_json(answer).encode() + b"\n" for answer in answers),
            )
            print_path(output)
        elif as_json:
            for answer in answers:
                click.echo(_answer_json(answer))
        else:
            several = not isinstance(items, list) or len(items) > 1
            show_all = "top_k" in options or "num_return_sequences" in options
            for answer, item in zip(answers, shown_items):
                print_rich(*answer_renderables(answer, item_line(item), several, show_all))
    typed_items.report_skipped()


def _find_task(task: str) -> TaskInfo:
    """The task of this name. Raises UsageError for an unknown one, and lists all tasks."""
    try:
        return find_task(task)[0]
    except InputError as error:
        for name, says in TASK_ROWS:
            say(f"{name:<24}  {says}")
        objective_task = next((one.task for one in OBJECTIVES if task in (one.name, *one.aliases)), "")
        known = (
            f"unknown task {task!r} (did you mean {objective_task}?)" if objective_task else str(error.parts[0])
        )  # all are listed above
        raise click.UsageError(known) from error


def _task_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the task by their names."""
    found = {name: typed[name] for name in ("top_k", "long", "stride", "max_length") if typed[name] is not None}
    if (labels := typed["candidate_labels"]) is not None:
        found["candidate_labels"] = [label.strip() for label in labels.split(",") if label.strip()]
    if typed["explain"]:
        found["explain"] = True
    return found | {name: _parse_value(value) for name, value in parse_settings("-O", typed["more"], found).items()}


def _parse_value(text: str) -> Any:
    """A value parsed as JSON, or the text itself where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _answer_json(answer: "Answer | Answers") -> str:
    return to_json(answer.whole())


def _one_by_one(pipe: "Pipeline", items: Iterable[Any], options: dict[str, Any]) -> "Iterator[Answer | Answers]":
    """Answers each line of standard input before it reads the next."""
    for number, item in enumerate(items):
        location = stdin_location(number)
        with with_locations(lambda _, location=location: location):
            yield from pipe.many([item], **options)


def _report_unread(answers: "Iterator[Answer | Answers]") -> "Iterator[Answer | Answers]":
    """Passes the answers on; at the end prints how many texts were truncated, and how many are empty."""
    texts = tokens = number = empty = first = 0
    for number, answer in enumerate(answers, 1):
        texts, tokens = texts + bool(answer.read.cut), tokens + answer.read.cut
        empty, first = empty + answer.read.empty, first or answer.read.empty * number
        yield answer
    report_empty(empty, first, number)
    if texts:
        say(f"not read: {format_count(tokens, 'token')} (texts that were cut: {texts:,})")
