"""pellucid look"""

import re
import sys
import time
from pathlib import Path

import rich_click as click

from pellucid.cli.output import say

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@click.command("look")
@click.argument("text")
@click.option("--pair", metavar="TEXT", help="A second text; the model reads both together.")
@click.option("--model", "-m", default=DEFAULT_MODEL, show_default=True, help="A folder, hub id or installed model.")
@click.option("--layer", type=int, default=0, show_default=True, help="The layer that is shown first.")
@click.option(
    "--head", type=int, multiple=True, help="A head that is shown first; may be repeated.  [default: 8, or 0]"
)
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the page.")
@click.option("--precision", type=click.Choice(["auto", "float32", "float16"]), default="auto", show_default=True)
def command(
    text: str, pair: str | None, model: str, layer: int, head: tuple[int, ...], output: Path | None, precision: str
) -> None:
    """Draw the attention of a text as a page.

    The page shows lines between tokens and matrices of weights for every layer and head, with the exact numbers. It
    opens in any browser and asks nobody for anything. `-` reads TEXT from standard input.

    \b
    Examples:
      pellucid look "time flies like an arrow"
      pellucid look "time flies like an arrow" --pair "fruit flies like a banana" --layer 0 --head 8 -o flies.html
    """
    import pellucid

    started = time.perf_counter()
    text = sys.stdin.read().strip() if text == "-" else text
    loaded = pellucid.load(model)
    heads = list(head) or [
        min(8, loaded.config.num_attention_heads - 1) if loaded.config.num_attention_heads > 8 else 0
    ]
    trace = loaded.trace(
        text, pair, keep=["layers.*.attention.query", "layers.*.attention.key", "layers.*.attention.weights"]
    )
    view = pellucid.view(trace, layer=layer, heads=heads, precision=precision)
    path = view.save(output or Path(_file_name(text)))
    if trace.cut:
        say(f"the text was cut to {len(trace.tokens)} tokens, {trace.cut} more did not fit into this model")
    say(f"strongest links of layer {layer}, head {heads[0]}:")
    for source, target, weight in trace.strongest(layer, heads[0]):
        say(f"  {trace.tokens[source]:>14} -> {trace.tokens[target]:<14} {weight:.4f}")
    say(f"{len(trace.tokens)} tokens, {path.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - started:.1f} s")
    click.echo(path)


def _file_name(text: str) -> str:
    words = re.findall(r"\w+", text.lower())[:5]
    return f"{'-'.join(words)[:60] or 'attention'}.html"
