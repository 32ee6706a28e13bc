"""pellucid embed"""

import json
import sys
from pathlib import Path

import rich_click as click

from pellucid.cli.look import DEFAULT_MODEL
from pellucid.cli.output import quiet, say


@click.command("embed")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT... | FILE | -")
@click.option("--model", "-m", default=DEFAULT_MODEL, show_default=True, help="A folder, hub id or installed model.")
@click.option("--column", "-c", metavar="NAME", help="The column of a .csv, .tsv or .jsonl FILE that holds the texts.")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the vectors as .npy.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per text, with the text and its vector.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "auto"]), default="float32", show_default=True)
@click.option("--pooling", metavar="NAME", help="mean, cls, max, ...; by default what the model says.")
@click.option("--normalize/--no-normalize", default=None, help="Scale to length 1; by default what the model says.")
def command(
    texts: tuple[str, ...],
    model: str,
    column: str | None,
    output: Path | None,
    as_json: bool,
    dtype: str,
    pooling: str | None,
    normalize: bool | None,
) -> None:
    """Turn texts into vectors.

    Each is one line of numbers. Texts are the arguments, the lines of standard input (`-`), the lines of a FILE, or
    a column of a table.

    \b
    Examples:
      pellucid embed "Apple Inc." "Microsoft Corp" --json
      pellucid embed reviews.csv --column text -o reviews.npy
      cat lines.txt | pellucid embed - -o lines.npy
    """
    import numpy as np

    import pellucid
    from pellucid.files import write_whole

    given = _texts(texts, column)
    vectors = pellucid.load(model).embed(
        given, dtype=dtype, pooling=pooling, normalize=normalize, progress=False if quiet() else None
    )
    if output is not None:
        write_whole(output, lambda file: np.save(file, np.asarray(vectors)))
        say(f"{vectors.shape[0]} vectors of {vectors.shape[1]} numbers")
        click.echo(output)
        return
    for text, vector in zip(given, vectors.tolist()):
        click.echo(json.dumps({"text": text, "vector": vector}) if as_json else " ".join(f"{x:.7g}" for x in vector))


def _texts(arguments: tuple[str, ...], column: str | None) -> list[str]:
    from pellucid.errors import InputError
    from pellucid.text.rows import read_texts

    if arguments == ("-",):
        return [line.rstrip("\r\n") for line in sys.stdin]
    path = Path(arguments[0])
    if len(arguments) == 1 and (column or (path.suffix and len(path.name) < 256 and path.is_file())):
        if not path.is_file():
            raise InputError(f"there is no file {arguments[0]!r}")
        found = list(read_texts(path, column))
        if not found:
            raise InputError(f"{path} holds no rows")
        return found
    return list(arguments)
