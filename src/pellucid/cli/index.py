"""pellucid index"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.index_evaluate import command as evaluate
from pellucid.cli.options import NonEmptyPath, SingleUseGroup, combined_options, first_typed
from pellucid.cli.output import enable_info_log, print_path, print_table, progress_option, say, to_json
from pellucid.cli.reading import TEXT, with_locations
from pellucid.errors import format_count
from pellucid.tasks.names import SENTENCES

if TYPE_CHECKING:
    from pellucid.search import Index

INDEX_ARGUMENT = click.argument("index", type=NonEmptyPath(file_okay=False), metavar="INDEX")
corpus_options = combined_options(
    click.option("--column", "-c", metavar="NAME", help="The column of a .csv, .tsv or .jsonl file with the texts."),
    click.option("--id-column", metavar="NAME", help="The column with the ids; by default rows are numbered."),
    click.option("--encoding", default="utf-8", show_default=True, metavar="NAME", help="Encoding of the files."),
    click.option("--skip-bad-rows", "skip_bad", is_flag=True, help="Leave out rows that do not fit, and list them."),
)
"""The options of a command that reads a corpus."""

MODEL_HELP = "The model that made INDEX's vectors; by default the one that INDEX names."


@click.group("index", cls=SingleUseGroup)
def command() -> None:
    """Build and maintain a search index.

    \b
    Examples:
      pellucid index build companies.csv --column name --id-column symbol \\
          -o companies.index
      pellucid search companies.index "Apple"
      pellucid index add companies.index more.csv
      pellucid index delete companies.index AAPL MSFT
      pellucid index evaluate companies.index queries.csv --query-column query \\
          --id-column symbol
    """


@command.command("build")
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@click.option("--output", "-o", required=True, type=NonEmptyPath(file_okay=False), help="The new folder.")
@corpus_options
@click.option("--model", "-m", default=SENTENCES, show_default=True, help="A folder, hub id or installed model.")
@click.option(
    "--metric",
    type=click.Choice(["cosine", "dot", "euclidean"]),
    default="cosine",
    show_default=True,
    help="How vectors are compared.",
)
@click.option(
    "--kind",
    type=click.Choice(["auto", "flat", "hnsw"]),
    default="auto",
    show_default=True,
    help="Exact search (flat), a graph (hnsw), or a graph from 50,000 rows on (auto).",
)
@click.option("--M", "M", type=int, default=32, show_default=True, help="Neighbours of a vertex of the graph.")
@click.option(
    "--ef-construction",
    "efConstruction",
    type=int,
    default=40,
    show_default=True,
    metavar="N",
    help="Candidates that are kept while the graph is built.",
)
@click.option(
    "--ef-search",
    "efSearch",
    type=int,
    default=16,
    show_default=True,
    metavar="N",
    help="Candidates that a search in the graph keeps; raised where recall, of rows moved aside, is below 0.95.",
)
@click.option("--passage-tokens", type=int, metavar="N", help="Divide longer texts; by default what the model reads.")
@click.option("--prompt", type=TEXT, default="", metavar="TEXT", help="Put before every text.")
@click.option(
    "--on-duplicate",
    type=click.Choice(["error", "keep-last"]),
    default="error",
    show_default=True,
    help="What happens when an id occurs twice.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "auto"]),
    default="float32",
    show_default=True,
    help="What to compute in; auto, the fastest that is safe here.",
)
def build(sources: tuple[str, ...], output: Path, model: str, dtype: str, **options: Any) -> None:
    """Read texts, embed them, write an index.

    FILE is a table with its --column, or files of text, also as a pattern or a folder. What is empty is left out, and
    so are an index among the files and what is hidden in a folder. A build that was interrupted continues where it
    was when it is run again.

    \b
    Examples:
      pellucid index build companies.csv --column name --id-column symbol \\
          -o companies.index
      pellucid index build 'notes/*.md' -o notes.index
    """
    import pellucid

    if options["kind"] == "flat" and (option := first_typed("M", "efConstruction", "efSearch")):
        raise click.UsageError(f"{option} is for a graph, and --kind flat builds none: leave one of them out")
    options |= {"dtype": None if dtype == "float32" else dtype, "progress": progress_option()}
    enable_info_log()
    with with_locations(_text_location):
        pellucid.Index.build(model, _source(sources), output, **options)
    print_path(output)


@command.command("add")
@INDEX_ARGUMENT
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@corpus_options
@click.option("--update", is_flag=True, help="Replace texts with the same id.")
@click.option("--model", "-m", help=MODEL_HELP)
def add(
    index: Path, sources: tuple[str, ...], column: str | None, id_column: str | None, model: str | None, **options: Any
) -> None:
    """Put more texts into INDEX; unchanged ones are not embedded again.

    \b
    Examples:
      pellucid index add companies.index more.csv
      pellucid index add companies.index companies.csv --update
    """
    import pellucid

    options |= {name: value for name, value in (("column", column), ("id_column", id_column)) if value is not None}
    opened_index = pellucid.Index.open(index, model=model)
    enable_info_log()
    with with_locations(_text_location):
        added = opened_index.add(_source(sources), progress=progress_option(), **options)
    say(f"{'+' if added >= 0 else ''}{format_count(added, 'row')}; {_index_summary(opened_index)}")


@command.command("delete")
@INDEX_ARGUMENT
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--where",
    type=TEXT,
    multiple=True,
    metavar="CONDITION",
    help='Instead of ids: "sector = Financials"; all of several must hold.',
)
def delete(index: Path, ids: tuple[str, ...], where: tuple[str, ...]) -> None:
    """Take texts out of INDEX, by their ids or by a condition.

    \b
    Examples:
      pellucid index delete companies.index AAPL MSFT
      pellucid index delete companies.index --where "sector = Financials" \\
          --where "founded < 1900"
    """
    import pellucid

    opened_index = pellucid.Index.open(index)
    deleted = opened_index.delete(list(ids) or None, where=list(where) or None)
    say(f"{format_count(deleted, 'row')} deleted; {_index_summary(opened_index)}")


@command.command("info")
@INDEX_ARGUMENT
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def info(index: Path, as_json: bool) -> None:
    """Show what INDEX holds, who made its vectors, and how neighbours are found.

    \b
    Examples:
      pellucid index info companies.index --json
    """
    import pellucid

    found = pellucid.Index.open(index).info()
    if as_json:
        click.echo(to_json(found, indent=2))
        return
    flat = {name: value for name, value in found.items() if not isinstance(value, dict | list)}
    for part in ("encoder", "settings", "corpus"):
        for own, value in found[part].items():
            name = f"{part} {own}" if part == "encoder" else own
            each = {f"{name} of {key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
            flat |= {name: one for name, one in each.items() if one not in (None, "", [])}
    plain = {name: ", ".join(value) if isinstance(value, tuple) else str(value) for name, value in flat.items()}
    print_table([(name, value[:100]) for name, value in plain.items()])
    for segment in found["segments"]:
        click.echo(
            f"segment  {format_count(segment['rows'], 'row')}, {segment['deleted']:,} deleted, {segment['kind']}"
        )


@command.command("compact")
@INDEX_ARGUMENT
def compact(index: Path) -> None:
    """Write INDEX anew as one segment, without what was deleted.

    \b
    Examples:
      pellucid index compact companies.index
    """
    import pellucid

    opened_index = pellucid.Index.open(index)
    opened_index.compact(progress=progress_option())
    say(_index_summary(opened_index))


@command.command("verify")
@INDEX_ARGUMENT
@click.option("--model", "-m", help=MODEL_HELP)
def verify(index: Path, model: str | None) -> None:
    """Check every file of INDEX by its digest, and that its model still makes the same vectors.

    \b
    Examples:
      pellucid index verify companies.index
    """
    import pellucid

    checked = pellucid.Index.open(index, model=model).verify()
    say(f"{checked:,} vectors made again: all as they are in the index")
    click.echo("ok")


command.add_command(evaluate)


def _source(sources: tuple[str, ...]) -> Any:
    """The source of texts: one argument as typed, several as paths."""
    return sources[0] if len(sources) == 1 else [Path(one) for one in sources]


def _text_location(number: int) -> str:
    """The location of a text: its number among all texts, from 1."""
    return f"text {number + 1}"


def _index_summary(index: "Index") -> str:
    settings = index.manifest.settings
    graph = f"a graph with M {settings.M}, efConstruction {settings.efConstruction}, efSearch {settings.efSearch}"
    walked = any(segment.kind == "hnsw" for segment in index.manifest.segments)
    return f"{format_count(len(index), 'row')}, {graph if walked else 'exact search'}"
