"""A view as a notebook's output: a self-contained frame, a picture, and a table."""

import base64
import html

import numpy as np

from pellucid.errors import ResourceError, shorten
from pellucid.trace.explain.table import cell_width, pad_cell
from pellucid.view.choice import Choice, choose_attention
from pellucid.view.data import PageData
from pellucid.view.picture import can_render, draw, image_tag, render_png
from pellucid.view.svg import token_label, visible_text, without_direction_marks

HEIGHT = 760
"""The height of the frame in pixels until the page reports its own."""

MAX_PAGE_CHARACTERS, MAX_CELL_CHARACTERS = 8_000_000, 10_000_000
"""The most characters of a page, and of all of a cell's output, about the limit of a notebook's messages: a larger page
is not put into the notebook, and a picture that would exceed the limit is left out."""

MAX_STILL_CHARACTERS = 1_000_000
"""The most characters of the static picture in place of the frame, the smaller of SVG and PNG; or a table is shown."""

_FRAME_SCRIPT = """
const frame = this;
const sendInk = () => frame.contentWindow?.postMessage({ ink: getComputedStyle(frame).color }, '*');
sendInk();
if (frame.dataset.listening) return;
frame.dataset.listening = 'yes';
window.addEventListener('message', (event) => {
  if (event.source !== frame.contentWindow) return;
  if (event.data.asks) sendInk();
  if (event.data.height > 0) frame.style.height = event.data.height + 'px';
});
const watch = new MutationObserver(sendInk);
for (const element of [document.documentElement, document.body]) watch.observe(element, { attributes: true });
"""
"""The host's part: it sends its text colour whenever that may have changed, and receives the height of the page."""

_TRUST_NOTE = (
    "<p>Where frames are shown, the page is interactive: trust the notebook or run the cell; "
    "<code>view.save('page.html')</code> saves it to a file.</p>"
)


def mime_bundle(data: PageData, page: str) -> dict[str, str]:
    """A notebook's output by MIME type: `text/html`, `text/plain`, and `image/png` where a PNG can be rendered.

    The frame is a separate document: its script cannot reach outside it, and two in one notebook do not interact. Where
    frames are removed, as in notebooks that are not trusted, a drawing is shown.
    """
    drawing = draw(data)
    cell = {"text/plain": link_table(data)}
    if can_render():
        try:
            cell["image/png"] = base64.b64encode(render_png(drawing)).decode("ascii")
        except ResourceError as error:
            cell["text/plain"] += f"\n(no picture: {error})"
    cell["text/html"] = iframe_html(page, _fallback_html(drawing, cell))
    if sum(map(len, cell.values())) > MAX_CELL_CHARACTERS:
        cell.pop("image/png", None)
    return cell


def iframe_html(page: str, fallback: str = "") -> str:
    """A whole page inside a frame; for a page too large for a notebook, a message instead.

    fallback: HTML shown where the frame is removed. The frame grows to the height of its page, and the page is dark
        where the text around it is light; without the host's script it keeps `HEIGHT` and follows the system.
    """
    if len(page) > MAX_PAGE_CHARACTERS:
        size = f"{len(page) / 1e6:.0f} MB"
        return (
            f"<p>This view takes {size}, too much for a notebook cell: <code>view.save('page.html')</code> saves "
            "it to a file; <code>precision='int16'</code> or <code>include_layers=[...]</code> makes it smaller.</p>"
        ) + fallback
    rights = 'sandbox="allow-scripts allow-downloads" allow="clipboard-write *"'
    return frame_html(page, fallback + _TRUST_NOTE, "attention", rights, HEIGHT, _FRAME_SCRIPT)


def frame_html(page: str, fallback: str, title: str, rights: str, height: int, script: str) -> str:
    """A page inside a frame, and HTML that is visible where frames are removed.

    rights: the attributes for what the page may do.  height: in pixels.  script: runs in the host once the page is
        loaded; `this` is the frame.
    """
    hidden = "<style>.pellucid-frame+.pellucid-still{display:none}</style>"
    style = f"display:block;width:100%;height:{height}px;border:0"
    onload, srcdoc = html.escape(" ".join(script.split())), html.escape(page)
    frame = (
        f'<iframe class="pellucid-frame" title="{title}" {rights} style="{style}" onload="{onload}" srcdoc="{srcdoc}">'
    )
    cell = f'{hidden}{frame}</iframe><div class="pellucid-still">{fallback}</div>'
    return cell.encode("ascii", "xmlcharrefreplace").decode("ascii")  # whatever the host's encoding is


def _fallback_html(drawing: str, cell: dict[str, str]) -> str:
    """The drawing as HTML without any script, or its PNG where that is smaller; the table where both are large."""
    kinds = {"svg+xml": base64.b64encode(drawing.encode("utf-8")).decode("ascii"), "png": cell.get("image/png")}
    kind, encoded = min(((kind, one) for kind, one in kinds.items() if one), key=lambda pair: len(pair[1]))
    table = cell["text/plain"]
    shown = (
        image_tag(kind, encoded, table, drawing)
        if len(encoded) <= MAX_STILL_CHARACTERS
        else f"<pre>{html.escape(table)}</pre>"
    )
    return f"{shown}<p>This is a static picture of the page.</p>"


def link_table(data: PageData, max_links: int = 8) -> str:
    """The strongest links of the head that is shown first, as text."""
    choice = choose_attention(data, heads=data.manifest["show"]["heads"][:1])
    rows = [
        (_token_label(choice.queries, q), _token_label(choice.keys, k), f"{w:.4f}")
        for q, k, w in strongest_links(choice, max_links)
    ]
    texts = " | ".join(without_direction_marks(visible_text(" ".join(text.split()))) for text in data.manifest["texts"])
    between = " between words" if any(token["kind"] != "special" for token in choice.queries) else ""
    title = f"{shorten(texts, 100)}\nstrongest links{between}, {choice.title}:"
    one, other = (max((cell_width(row[i]) for row in rows), default=0) for i in range(2))
    title = f"edited: {without_direction_marks(visible_text(choice.edits))}\n{title}" if choice.edits else title
    lines = [f"  {pad_cell(a, one, right=True)} -> {pad_cell(b, other)}  {weight}" for a, b, weight in rows]
    return "\n".join([title, *(lines or [f"  {_why_none(choice)}"])])


def _why_none(choice: Choice) -> str:
    finite = np.isfinite(choice.weights[0][_is_between_words(choice)])
    return "none between words" if finite.any() or not finite.size else "none: these weights are NaN or infinite"


def strongest_links(choice: Choice, max_links: int) -> list[tuple[int, int, float]]:
    """The strongest links between tokens that are not special, of the first head chosen, as (query, key, weight)."""
    linked = _is_between_words(choice) & np.isfinite(choice.weights[0]) & (choice.weights[0] != 0)
    weights = np.where(linked, choice.weights[0], -np.inf)
    order = np.argsort(-weights, axis=None, kind="stable")[:max_links]
    places = zip(*np.unravel_index(order, weights.shape))
    return [(int(q), int(k), float(weights[q, k])) for q, k in places if linked[q, k]]


def _is_between_words(choice: Choice) -> np.ndarray:
    """Which links connect tokens that are not special, where there are any: Bool[ndarray, "queries keys"]"""
    between = choice.attention_mask.copy()
    for axis, tokens in enumerate((choice.queries, choice.keys)):
        special = np.array([token["kind"] == "special" for token in tokens])
        if not special.all():
            between[special if axis == 0 else (slice(None), special)] = False
    return between


def _token_label(tokens: list[dict[str, object]], index: int) -> str:
    return f"{without_direction_marks(token_label(str(tokens[index]['text']), 16))} ({index})"
