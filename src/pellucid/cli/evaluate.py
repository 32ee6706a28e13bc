"""pellucid evaluate"""

from typing import Any

import rich_click as click

from pellucid.cli.options import NameValueOption
from pellucid.cli.output import print_rich, say, to_json
from pellucid.cli.reading import TEXT
from pellucid.cli.scores import scores_table
from pellucid.cli.task_items import parse_settings, split_name_values
from pellucid.cli.task_options import objective_option_names, training_task
from pellucid.training.names import OBJECTIVES

AUTO = "auto"
"""The task that fits the model."""

_NAMES = ", ".join(one.name for one in OBJECTIVES)


@click.command("evaluate", help=f"""Score a model on DATA.

TASK is {_NAMES}, another name for one of these, or {AUTO} for the one that fits the model. DATA is a table with the
columns that `pellucid train` takes.

\b
Examples:
  pellucid evaluate auto test.csv --model my-model
  pellucid evaluate classify test.csv --model my-model \\
      --column label=sentiment --json
  pellucid evaluate similarity sts-test.csv -m all-MiniLM-L6-v2
""")  # fmt: skip
@click.argument("task")
@click.argument("data", nargs=-1, required=True)
@click.option("--model", "-m", required=True, help="A folder, hub id or installed model.")
@click.option(
    "--column", "-c", "columns", multiple=True, metavar="NAME=COLUMN", help="A column that has another name in DATA."
)
@click.option("--encoding", metavar="NAME", default="utf-8", help="Encoding of DATA, where it is not UTF-8.")
@click.option(
    "--set",
    "-s",
    "settings",
    cls=NameValueOption,
    type=TEXT,
    names=objective_option_names,
    typed_elsewhere={"task": "TASK", "data": "DATA"},
    help="Any option of the task (docs/training.md); an unknown name lists them.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    task: str,
    data: tuple[str, ...],
    model: str,
    columns: tuple[str, ...],
    encoding: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Scores the model, and prints the scores; its help is set above."""
    name = None if task == AUTO else training_task(task)
    from pellucid.training.arguments import CommandLineText
    from pellucid.training.log import replace_non_finite

    options: dict[str, Any] = {
        option: CommandLineText(value.lstrip()) for option, value in parse_settings("--set", settings, ()).items()
    }
    renamed = split_name_values("--column", columns, "COLUMN")
    import pellucid

    rows: Any = data[0] if len(data) == 1 else data
    found = pellucid.evaluate(model, rows, name, columns=renamed, encoding=encoding, **options)
    if as_json:
        click.echo(to_json(replace_non_finite(found)))
        return
    print_rich(scores_table(found, {}))
    say(f"{model} on {' and '.join(data)}")
