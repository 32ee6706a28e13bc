"""pellucid look"""

import contextlib
import itertools
import os
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import NonEmptyPath
from pellucid.cli.output import check_output_path, print_path, progress_option, say
from pellucid.cli.reading import NEVER_FILE, TEXT, text_or_stdin
from pellucid.errors import Argument, InputError, Placeholder, format_count
from pellucid.files import MAX_NAME_BYTES, write_atomically
from pellucid.tasks.names import SENTENCES

if TYPE_CHECKING:
    import pellucid
    from pellucid.view import View

VIEWS = ("heads", "matrix", "grid", "neuron", "lens")
LARGE_PAGE_BYTES = 25_000_000
"""Bytes of a page above which a browser loads it faster from a server."""

_FILE = NonEmptyPath(dir_okay=False)


@click.command("look")
@click.argument("text", type=TEXT)
@click.option("--pair", type=NEVER_FILE, metavar="TEXT", help="A second text; the model reads both together.")
@click.option(
    "--target",
    type=NEVER_FILE,
    metavar="TEXT",
    help="What the decoder of an encoder-decoder reads; by default TEXT itself.",
)
@click.option("--model", "-m", default=SENTENCES, show_default=True, help="A folder, hub id or installed model.")
@click.option("--view", type=click.Choice(VIEWS), help="What is shown first.  [default: heads]")
@click.option("--layer", type=int, default=0, show_default=True, help="The layer that is shown first.")
@click.option(
    "--head", type=int, multiple=True, help="A head that is shown first; may be repeated.  [default: 8, or 0]"
)
@click.option("--lens", is_flag=True, help="Add what the model would predict after each layer.")
@click.option("--max-length", type=click.IntRange(min=1), metavar="N", help="Cut a longer text to N tokens.")
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "int16", "compact"]),
    default="auto",
    show_default=True,
    help="How numbers are stored; compact is one byte for each weight, where that is less.",
)
@click.option(
    "--output", "-o", type=_FILE, help="Where to write the page, as .html.  [default: named by TEXT's first words]"
)
@click.option("--svg", type=_FILE, metavar="FILE", help="Draw the layer and heads into FILE instead of a page.")
@click.option("--png", type=_FILE, metavar="FILE", help="The same as pixels; needs pip install 'pellucid[draw]'.")
@click.option("--serve", is_flag=True, help="Serve the page to this machine, for long texts; Ctrl-C ends it.")
@click.option("--port", type=int, default=0, show_default="any that is free", help="The port of --serve.")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
def command(
    text: str, model: str, output: Path | None, serve: bool, port: int, open_browser: bool, **typed: Any
) -> None:
    """Draw the attention of a text as a page.

    The page shows what each token of TEXT attends to in every layer and head, as lines, as matrices and step by step,
    with the exact numbers. It opens in any browser and makes no network request. `-` reads TEXT from standard input.

    \b
    Examples:
      pellucid look "time flies like an arrow"
      pellucid look "time flies like an arrow" \\
          --pair "fruit flies like a banana" --layer 0 --head 8 -o flies.html
      pellucid look "The capital of France is" -m SmolLM2-135M-Instruct --lens \\
          --view lens
      pellucid look "translate English to German: Good morning" -m t5-small \\
          --target "Guten Morgen"
      pellucid look "time flies" --head 8 --svg flies.svg
      pellucid look - -m SmolLM2-135M-Instruct --serve --open < long.txt
    """
    import pellucid
    from pellucid.view.picture import DRAWABLE_VIEWS

    drawings = {kind: typed.pop(kind) for kind in ("svg", "png")}
    _check_options(serve, port, output, drawings, open_browser, typed["view"], typed["lens"])
    started = time.perf_counter()
    if Path(text).suffix and os.path.isfile(text):  # noqa: PTH113 - a text may be longer than any name
        say(f"read as text; `pellucid look - < {text}` reads the file of this name")
    text = text_or_stdin(text, "TEXT", "look at")
    loaded = pellucid.load(model)
    _check_layer_and_heads(loaded, typed["layer"], typed["head"])
    if typed["lens"] or typed["view"] == "lens":
        _check_lens(loaded)
    view, cut = _record_view(loaded, text, serve, typed)
    if cut and typed["max_length"] is not None:
        say(f"the text was cut, {cut} more tokens did not fit into --max-length")
    _print_links(view)
    if serve:
        return _serve(view, port, open_browser)
    requested = [(kind, path) for kind, path in drawings.items() if path is not None]
    first = typed["view"] if typed["view"] in DRAWABLE_VIEWS else None
    written = [getattr(view, kind)(path, view=first) for kind, path in requested]
    page = None
    if output is not None or not requested:
        page = view.save(output) if output else _save_as_new(view, text)
        size = page.stat().st_size
        say(f"{size / 1e6:.1f} MB, {time.perf_counter() - started:.1f} s")
        if size > LARGE_PAGE_BYTES:
            say("--serve opens a page of this size at once, --precision int16 and --max-length make it smaller")
        written.append(page)
    for path in written:  # printed last: a closed pipe may end it
        print_path(path)
    if page is not None and open_browser:
        click.launch(page.resolve().as_uri())
    return None


def _check_options(
    serve: bool,
    port: int,
    output: Path | None,
    drawings: dict[str, Path | None],
    open_browser: bool,
    view: str | None,
    lens: bool,
) -> None:
    """Raises UsageError for options that contradict each other, before a model is loaded."""
    from pellucid.view.picture import DRAWABLE_VIEWS

    has_drawing = any(drawings.values())
    if serve and (output is not None or has_drawing):
        raise click.UsageError("--serve writes no file: leave out --output, --svg and --png, or --serve")
    if port and not serve:
        raise click.UsageError("--port is the port of --serve, which was not given")
    if serve:
        from pellucid.serve.page import check_port

        check_port(port)
    if has_drawing and output is None:
        for option, is_typed in (("--open", open_browser), ("--lens", lens)):
            if is_typed:
                raise click.UsageError(
                    f"{option} is for a page: leave it out, or say with --output where the page goes"
                )
        if view not in (None, *DRAWABLE_VIEWS):
            known = " and ".join(DRAWABLE_VIEWS)
            raise click.UsageError(f"--view {view} is for a page: of the views, {known} can be drawn into a file")
    check_output_path("--output", output, ".html")
    for kind, path in drawings.items():
        check_output_path(f"--{kind}", path, f".{kind}")


def _check_layer_and_heads(model: "pellucid.Model", layer: int, heads: tuple[int, ...]) -> None:
    """Raises InputError for a layer or head that the model does not have, before it runs."""
    config, side = model.config, model.config.decoder
    layers = max(config.num_hidden_layers, side.num_decoder_layers if side else 0)
    count = max(config.num_attention_heads, side.decoder_attention_heads if side else 0)
    for name, requested, size in (("layer", (layer,), layers), ("head", heads, count)):
        for one in requested:
            if not 0 <= one < size:
                raise InputError(Argument(name), f" {one} does not exist: this model has {name}s 0 to {size - 1}")


def _check_lens(model: "pellucid.Model") -> None:
    """Raises InputError for a model without a head over the vocabulary, before it runs."""
    head = model.config.head
    if head is None or head.answers != "vocabulary":
        other = Argument("model", Placeholder("NAME"))
        raise InputError(
            "the lens needs a model with a head over the vocabulary, which this one lacks: name one by ", other
        )


def _record_view(model: "pellucid.Model", text: str, serve: bool, typed: dict[str, Any]) -> tuple["View", int]:
    """The view of a text, which the model is run on; and the number of its tokens that were cut off."""
    import pellucid
    from pellucid.trace.long_text import is_long, record_long
    from pellucid.trace.record import kept_names

    read_options = {"target": typed["target"], "max_length": typed["max_length"]}
    also = ("*embeddings.output", "*layers.*.residual.post") if typed["lens"] or typed["view"] == "lens" else ()
    if typed["precision"] != "compact" and (serve or is_long(model.loaded, text, typed["pair"], **read_options)):
        trace = record_long(model.loaded, text, typed["pair"], also=also, progress=progress_option(), **read_options)
    else:
        keep = [*kept_names(model.config, "view"), *(kept_names(model.config, also) if also else ())]
        trace = model.trace(text, typed["pair"], keep=keep, **read_options)
    count = trace.config.num_attention_heads
    heads = list(typed["head"]) or [8 if count > 8 else 0]
    lens = model.explain.logit_lens(trace) if also else None
    view_options = {"show": typed["view"] or "heads", "precision": typed["precision"], "lens": lens}
    return pellucid.view(trace, layer=typed["layer"], heads=heads, **view_options), trace.cut


def _print_links(view: "View") -> None:
    """Prints the strongest links of the head that is shown first, and the number of tokens."""
    from pellucid.view.notebook import link_table

    for line in link_table(view.data, 5).splitlines():
        say(line)
    say(format_count(len(view.data.manifest["sequences"][0]["tokens"]), "token"))


def _serve(view: "View", port: int, open_browser: bool) -> None:
    from pellucid.serve import serve_page
    from pellucid.view.page import render

    def ready(address: str) -> None:
        say("serving this page to this machine; Ctrl-C ends it")
        click.echo(address)

    page = render(view.data.manifest, view.data.blocks, served=True)
    serve_page(page, view.data.blocks, port, ready=ready, open_browser=open_browser)


def _save_as_new(view: "View", text: str) -> Path:
    """Saves the page under a new name from the first words of a text; never overwrites a file, not even in a race."""
    page, stem = view.html().encode("utf-8"), _stem(text)
    names = map(Path, itertools.chain([f"{stem}.html"], (f"{stem}-{i}.html" for i in itertools.count(2))))
    while True:
        path = next(name for name in names if not os.path.lexists(name))
        with contextlib.suppress(FileExistsError):
            return write_atomically(path, lambda file: file.write(page), must_be_new=True)


def _stem(text: str) -> str:
    letters = "".join(one if unicodedata.category(one)[0] in "LMN" or one == "_" else " " for one in text.lower())
    return "-".join(letters.split()[:5])[:60].encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "attention"
