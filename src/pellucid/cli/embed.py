"""pellucid embed"""

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import rich_click as click

from pellucid.bars import progress_bar
from pellucid.cli.options import NonEmptyPath
from pellucid.cli.output import check_output_path, print_path, progress_option, say, to_json
from pellucid.cli.reading import TEXT, read_texts, typed_location, with_locations
from pellucid.errors import format_count
from pellucid.files import write_atomically
from pellucid.paths import target_of
from pellucid.tasks.names import SENTENCES

if TYPE_CHECKING:
    import numpy as np

CHUNK_SIZE = 1_024
"""Texts whose vectors are printed together, so that a reader need not wait for the last."""


@click.command("embed")
@click.argument("texts", type=TEXT, nargs=-1, required=True, metavar="TEXT... | FILE | -")
@click.option("--model", "-m", default=SENTENCES, show_default=True, help="A folder, hub id or installed model.")
@click.option("--column", "-c", metavar="NAME", help="The column of a .csv, .tsv or .jsonl FILE that holds the texts.")
@click.option("--encoding", metavar="NAME", default="utf-8", help="Encoding of FILE, where it is not UTF-8.")
@click.option("--output", "-o", type=NonEmptyPath(dir_okay=False), help="Write the vectors as .npy.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per text, with the text and its vector.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "auto"]),
    default="float32",
    show_default=True,
    help="What to compute in; auto, the fastest that is safe here. The model itself is loaded as float32.",
)
@click.option("--pooling", metavar="NAME", help="mean, cls, max, ...; by default what the model says.")
@click.option("--normalize/--no-normalize", default=None, help="Scale to length 1; by default what the model says.")
def command(
    texts: tuple[str, ...],
    model: str,
    column: str | None,
    encoding: str,
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
    from pellucid.tasks.embed import embed, embed_in_chunks

    options: dict[str, Any] = {"dtype": dtype, "pooling": pooling, "normalize": normalize}
    shown = progress_option()
    check_output_path("--output", output, ".npy", inputs=texts)
    if output is not None and as_json:
        raise click.UsageError("--output writes only vectors, and --json also texts: leave one of them out")
    input_texts, location_of = read_texts(texts, column, encoding)
    location_of = location_of or typed_location(len(input_texts))
    loaded = pellucid.load(model).loaded
    if loaded.pooling is None and pooling is None:
        say(f"{loaded.name} defines no pooling: the mean of its states is used (--pooling, --normalize)")
    if output is not None:
        with with_locations(location_of):
            vectors = np.ascontiguousarray(embed(loaded, input_texts, **options, progress=shown))
        write_atomically(target_of(output), lambda file: _write_npy(vectors, file))
        say(f"{format_count(vectors.shape[0], 'vector')} of {vectors.shape[1]} numbers")
        print_path(output)
        return
    with (
        with_locations(location_of),
        progress_bar("embedding", total=len(input_texts), unit=" texts", shown=shown) as line,
    ):
        pieces = embed_in_chunks(loaded, input_texts, CHUNK_SIZE, **options, progress=line.update)
        for text, vector in zip(input_texts, (vector for piece in pieces for vector in piece.tolist())):
            row = {"text": text, "vector": vector}
            click.echo(to_json(row) if as_json else " ".join(f"{x:.7g}" for x in vector))


def _write_npy(vectors: "np.ndarray", file: IO[bytes]) -> None:
    """Writes an array as `.npy`; NumPy's own function bypasses Python's I/O, and hides that the disk is full."""
    from numpy.lib import format as npy

    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(vectors))
    file.write(vectors.data)
