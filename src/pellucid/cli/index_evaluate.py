"""pellucid index evaluate"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import NonEmptyPath, first_typed
from pellucid.cli.output import check_output_path, clean, on_one_line, plain_table, print_rich, say, to_json
from pellucid.cli.reading import LocationOf, open_table, with_locations
from pellucid.errors import InputError, format_count, shorten

if TYPE_CHECKING:
    from pellucid.search.evaluate import Evaluation
    from pellucid.search.recall_curve import Curve

MAX_MISSES = 10
"""The most failed queries that are shown."""

QUERY_OPTIONS = ("grade_column", "by", "mode", "unlisted", "encoding")
"""Options that only have an effect with labelled QUERIES."""

_FILE = NonEmptyPath(dir_okay=False)


@click.command("evaluate")
@click.argument("index", type=NonEmptyPath(file_okay=False), metavar="INDEX")
@click.argument("queries", type=_FILE, required=False, metavar="[QUERIES]")
@click.option("--query-column", "-q", metavar="NAME", help="The column of QUERIES with the queries.")
@click.option("--id-column", "-i", metavar="NAME", help="The column of QUERIES with the right id of each.")
@click.option("--grade-column", metavar="NAME", help="The column that says how right it is, a number from 0.")
@click.option("--by", metavar="NAME", help="A column of INDEX that right answers are given by, instead of ids.")
@click.option(
    "-k",
    "ks",
    type=int,
    multiple=True,
    help="How many texts; with QUERIES, and without --plot, it may be repeated.  [default: 1, 5, 10; 10 neighbours]",
)
@click.option("--mode", type=click.Choice(["hybrid", "dense", "words"]), default="hybrid", show_default=True)
@click.option(
    "--skip-unlisted",
    "unlisted",
    flag_value="skip",
    default="error",
    help="Leave out queries whose right answer is not in INDEX.",
)
@click.option("--plot", type=_FILE, metavar="FILE", help="Draw recall against time, as .svg or .png.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Of --plot.")
@click.option("--encoding", default="utf-8", show_default=True, metavar="NAME", help="Of QUERIES.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every query that went wrong.")
def command(
    index: Path, queries: Path | None, ks: tuple[int, ...], plot: Path | None, theme: str, as_json: bool, **options: Any
) -> None:
    """Say how good a search of INDEX is.

    With QUERIES, a table with a query and the id of a right text in each row: recall, MRR and nDCG. A query with
    several right texts has several rows. Without QUERIES, or with --plot: how many of the true neighbours are found,
    and how long it takes, at several efSearch.

    \b
    Examples:
      pellucid index evaluate companies.index queries.csv --query-column query \\
          --id-column symbol
      pellucid index evaluate companies.index sp500.csv -q Security -i Symbol \\
          --by symbol --skip-unlisted --json
      pellucid index evaluate companies.index --plot recall.svg
    """
    import pellucid

    _check_options(queries, plot, ks, options)
    opened_index = pellucid.Index.open(index)
    depths = ks or (1, 5, 10)
    evaluation = curve = plot_path = query_texts = None
    if queries is not None:
        labelled, location_of = _read_labelled(queries, options)
        query_texts = list(labelled)
        arguments = {name: options[name] for name in ("by", "unlisted", "mode")}
        with with_locations(location_of):
            evaluation = opened_index.evaluate(query_texts, list(labelled.values()), depths, **arguments)
    if queries is None or plot is not None:
        curve = opened_index.curve(query_texts, k=max(depths))
        if plot is not None:  # before printing, which a closed pipe may end
            plot_path = curve.png(plot, theme) if plot.suffix.lower() == ".png" else curve.svg(plot, theme)
    if as_json:
        click.echo(to_json({name: one.data() for name, one in (("labelled", evaluation), ("curve", curve)) if one}))
    else:
        if evaluation is not None:
            _show_evaluation(evaluation)
        if curve is not None:
            _show_curve(curve)
    if plot_path is not None:
        say(f"recall against time: {plot_path}")


def _check_options(queries: Path | None, plot: Path | None, ks: tuple[int, ...], options: dict[str, Any]) -> None:
    """Raises UsageError for options that contradict each other, before a model is loaded."""
    from pellucid.text.lines import missing_file_error

    for name in ("query_column", "id_column"):
        if (queries is None) != (options[name] is None):
            option = name.replace("_", "-")
            problem = f"name --{option} of {queries}" if queries is not None else f"--{option} is for QUERIES, a table"
            raise click.UsageError(problem)
    if queries is None and (option := first_typed(*QUERY_OPTIONS)):
        raise click.UsageError(f"{option} is for QUERIES, a table, and none was given")
    if plot is None and first_typed("theme"):
        raise click.UsageError("--theme is for --plot, which was not given")
    if len(set(ks)) > 1 and (queries is None or plot is not None):
        reason = "--plot" if plot is not None else "without QUERIES"
        raise click.UsageError(
            f"{reason}: -k is the number of neighbours to search for, and was given several times: give one"
        )
    if queries is not None and not queries.is_file():
        raise missing_file_error(queries)
    check_output_path("--plot", plot, ".svg", ".png")


def _read_labelled(path: Path, options: dict[str, Any]) -> tuple[dict[str, dict[Any, float]], LocationOf]:
    """Each query of a table with the grades of its relevant ids, and the locations where they first occur."""
    found: dict[str, dict[Any, float]] = {}
    lines: list[int] = []
    table = open_table(path, options["encoding"])
    first: dict[tuple[str, Any], int] = {}
    columns = (options["query_column"], options["id_column"], options["grade_column"])
    query_column, *others = (name for name in columns if name is not None)
    read = table.texts(query_column, *others, numbers={*others} - {query_column})
    for query, right, *grades in read:
        line = table.text_lines[-1]
        grade = _parse_grade(grades[0], f"{path}, line {line}") if grades else 1.0
        if query not in found:
            lines.append(line)
        before = found.setdefault(query, {}).setdefault(right, grade)
        if grade != before:
            both = f"{shorten(repr(right))} is graded {before:g} and {grade:g} for {shorten(repr(query))}"
            raise InputError(f"{path}, lines {first[query, right]} and {line}: {both}: leave one of them out")
        first.setdefault((query, right), line)
    return found, lambda number: f"{path}, line {lines[number]}"


def _parse_grade(value: Any, location: str) -> float:
    with contextlib.suppress(ValueError, OverflowError):
        if 0 <= (grade := float(value)) <= 1e30:
            return grade
    raise InputError(f"{location}: the grade is {shorten(repr(value))}, expected a number from 0 to 1e30")


def _show_evaluation(evaluation: "Evaluation") -> None:
    from rich.text import Text

    rows = [(k, evaluation.recall[k], evaluation.mrr[k], evaluation.ndcg[k]) for k in evaluation.recall]
    print_rich(_table(("k", "recall", "MRR", "nDCG"), rows))
    left_out = f", {evaluation.unlisted:,} left out" if evaluation.unlisted else ""
    each = 1000 * evaluation.seconds / evaluation.queries
    query_count = format_count(evaluation.queries, "query", "queries")
    say(f"{query_count}, {each:.1f} ms each{left_out}; {len(evaluation.misses):,} went wrong")
    for miss in evaluation.misses[:MAX_MISSES]:
        rank = "was not found" if miss.rank is None else f"was ranked {miss.rank}"
        first = "nothing was" if miss.instead is None else f"first was {miss.instead}"
        sentence = f"{miss.query[:80]}: {', '.join(miss.expected)[:80]} {rank}, {first}"
        print_rich(Text(f"  {clean(on_one_line(sentence))}"))


def _show_curve(curve: "Curve") -> None:
    rows = [
        ("every row" if p.efSearch is None else p.efSearch, p.recall, p.milliseconds, round(p.queries_per_second))
        for p in curve.points
    ]
    print_rich(_table(("efSearch", f"recall@{curve.k}", "milliseconds", "queries per second"), rows))
    used = "every row is compared" if curve.used is None else f"efSearch is {curve.used}"
    say(f"{format_count(curve.rows, 'row')}, {format_count(curve.queries, 'query', 'queries')}; in this index {used}")


def _table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    table = plain_table()
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row))
    return table
