"""pellucid search"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import NonEmptyPath
from pellucid.cli.output import check_output_path, clean, console, plain_table, print_rich, say, to_json
from pellucid.cli.reading import TEXT, stdin_location, stdin_texts, typed_location, with_locations
from pellucid.errors import shorten

if TYPE_CHECKING:  # --help imports neither
    from rich.table import Table
    from rich.text import Text

    from pellucid.search import Hit, Hits
    from pellucid.search.why import Match

MAX_TEXT_CHARACTERS = 200
"""The most characters of a text, or of its metadata, that are shown where no terminal limits them."""

_FILE = NonEmptyPath(dir_okay=False)


@click.command("search")
@click.argument("index", type=NonEmptyPath(file_okay=False))
@click.argument("queries", type=TEXT, nargs=-1, required=True, metavar="QUERY... | -")
@click.option("-k", "k", type=int, default=5, show_default=True, help="How many texts to return.")
@click.option(
    "--where",
    type=TEXT,
    multiple=True,
    metavar="CONDITION",
    help='A condition on columns beside the text: "sector = Financials", "founded >= 2000", '
    '"headquarters ~ Texas" (contains it); all of several must hold.',
)
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "dense", "words"]),
    default="hybrid",
    show_default=True,
    help="Compare vectors (dense), words (BM25), or both.",
)
@click.option(
    "--rerank", metavar="MODEL", help="A model that reorders the hits, by query and text together or by its vectors."
)
@click.option("--model", "-m", help="The model that embeds the query; by default the model that INDEX names.")
@click.option("--why", is_flag=True, help="Show which words matched which.")
@click.option("--output", "-o", type=_FILE, metavar="FILE", help="Write a page of --why, as .html, with all numbers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per query, with its hits.")
def command(
    index: Path,
    queries: tuple[str, ...],
    model: str | None,
    why: bool,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the texts of INDEX that fit a query best.

    A query is compared by its meaning and by its words; a mistyped word is taken for the nearest that is there. A row
    without the column of a --where fits it neither with = nor with !=.

    \b
    Examples:
      pellucid search companies.index "Apple" -k 5 --json
      pellucid search companies.index "a bank" \\
          --where "sector = Financials" --why
      pellucid search companies.index "soft drinks" --why -o why.html
      cat queries.txt | pellucid search companies.index - --json
    """
    import pellucid

    if output is not None and not why:
        raise click.UsageError("--output writes the page of --why, which was not given")
    check_output_path("--output", output, ".html")
    is_stdin = queries == ("-",)
    query_texts = list(stdin_texts() if is_stdin else queries)
    opened_index = pellucid.Index.open(index, model=model)
    with with_locations(stdin_location if is_stdin else typed_location(len(query_texts), "query")):
        found = opened_index.search(query_texts, **options | {"where": list(options["where"]) or None})
    reasons = [[opened_index.why(hits.corrected or hits.query, hit) for hit in hits] if why else [] for hits in found]
    page = None
    if output is not None and (pages := [match.view() for matches in reasons for match in matches]):
        page = pages[0].beside(*pages[1:]).save(output)  # before printing, which a closed pipe may end
    for hits, matches in zip(found, reasons, strict=True):
        if as_json:
            click.echo(to_json(_hits_json(hits, matches)))
        else:
            _show_hits(hits, matches, several=len(query_texts) > 1)
    if output is not None:
        say(f"which words matched: {page}" if page else f"{output} was not written: no text was found to show")


def _hits_json(hits: "Hits", matches: "list[Match]") -> dict[str, Any]:
    """A query and its hits for JSON."""
    data: dict[str, Any] = {"query": hits.query}
    if hits.corrected is not None:
        data["corrected"] = hits.corrected
    found = [dict(hit) | {"similarity": hit.similarity, "words": hit.words} for hit in hits]
    for hit, match in zip(found, matches):
        hit["why"] = match.pairs()
    return data | {"hits": found}


def _show_hits(hits: "Hits", matches: "list[Match]", several: bool) -> None:
    """Prints a query and its hits as a table."""
    from rich.text import Text

    if hits.corrected is not None:
        say(f"searched for {hits.corrected}, too")
    if not hits:
        say(f"nothing was found for {hits.query}")
        return
    print_rich(*([Text(clean(hits.query), "bold")] if several else []), _table(hits))
    for hit, match in zip(hits, matches):
        print_rich(Text(""), *_match_lines(hit, match))


def _table(hits: "Hits") -> "Table":
    """One row for each hit; at a terminal texts are cut at its width."""
    from rich.text import Text

    def cut(text: str, style: str) -> Text:
        return Text(clean(text), style, no_wrap=True, overflow="ellipsis")

    table = plain_table()
    other = [_metadata_text(hit) for hit in hits]
    table.add_column("score", no_wrap=True, min_width=5)
    table.add_column("id", no_wrap=True, overflow="ellipsis", min_width=min(12, max(len(hit["id"]) for hit in hits)))
    table.add_column("text", min_width=12)
    table.add_column("metadata" if any(other) else "")
    for hit, metadata in zip(hits, other):
        table.add_row(
            f"{hit['score']:.3f}", cut(hit["id"], "dim"), cut(_short(hit["text"]), "bold"), cut(metadata, "dim")
        )
    return table


def _match_lines(hit: "Hit", match: "Match") -> "Iterator[Text]":
    """The words of a text, shaded where there are colours, and the most similar one to each word of the query."""
    from rich.text import Text

    yield Text.assemble(("why: ", "bold"), (clean(_short(hit["text"])), ""))
    paper = console()
    if paper.is_terminal and not paper.no_color:
        yield Text.assemble(
            *(part for word, row in zip(match.text, match.similarity.T) for part in _shaded_word(word, row.max()))
        )
    for query_word, text_word, like in match.pairs():
        yield Text.assemble(f"  {like:+.3f}  ", clean(query_word), (" is like ", "dim"), clean(text_word))


def _shaded_word(word: str, like: float) -> list[tuple[str, str]]:
    """A word on brown, as on the page; brighter, the more similar it is to a word of the query."""
    colour = f"white on rgb({round(40 + 140 * like)},{round(30 + 60 * like)},0)" if like > 0.3 else ""
    return [(clean(word), colour), (" ", "")]


def _metadata_text(hit: "Hit") -> str:
    """The values of the other columns, shortened."""
    return _short(", ".join(str(value) for value in hit["metadata"].values() if value not in ("", None, hit["id"])))


def _short(text: str) -> str:
    """A text on one line, shortened."""
    return shorten(" ".join(text[: 8 * MAX_TEXT_CHARACTERS].split()), MAX_TEXT_CHARACTERS)
