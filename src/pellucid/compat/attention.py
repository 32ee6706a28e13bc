"""BertViz's two views of attention weights: `head_view` and `model_view`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.config.checks import check_one_of
from pellucid.view import View, view
from pellucid.view.given_weights import GivenWeights


@dataclass(frozen=True)
class Page:
    """The result of `html_action="return"`. data: a complete HTML page, to be written to a file."""

    data: str

    def _repr_html_(self) -> str:
        from pellucid.view.notebook import iframe_html

        return iframe_html(self.data)


def head_view(
    attention: Sequence[Any] | None = None,
    tokens: Sequence[str] | None = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    layer: int | None = None,
    heads: Iterable[int] | None = None,
    encoder_attention: Sequence[Any] | None = None,
    decoder_attention: Sequence[Any] | None = None,
    cross_attention: Sequence[Any] | None = None,
    encoder_tokens: Sequence[str] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    include_layers: Iterable[int] | None = None,
    html_action: str = "view",
) -> View | Page:
    """The attention of a model as lines between tokens.

    attention: for each layer Float[Tensor, "1 heads seq seq"], as a model of the reference returns them.
    tokens: the tokens of the sequence.  sentence_b_start: the first token of a second text.
    prettify_tokens: show markers of spaces and bytes as the text that they stand for.
    layer, heads: what is shown first; the first layer and all heads where None.
    encoder_attention, decoder_attention, cross_attention, encoder_tokens, decoder_tokens: the same of an
        encoder-decoder; the three may have different numbers of layers.
    include_layers: only these layers, under their own numbers.
    html_action: "view" returns a `View`, which a notebook displays as the last value of a cell; "return" a `Page`,
        whose `data` is the HTML.

    Raises InputError for inputs that do not fit together.
    """
    arguments = {name: value for name, value in locals().items() if name in GivenWeights.__dataclass_fields__}
    shown = {"layer": layer, "heads": heads, "include_layers": include_layers, "show": "heads"}
    return answer(_page(arguments, prettify_tokens, shown), html_action)


def model_view(
    attention: Sequence[Any] | None = None,
    tokens: Sequence[str] | None = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    display_mode: str = "dark",
    encoder_attention: Sequence[Any] | None = None,
    decoder_attention: Sequence[Any] | None = None,
    cross_attention: Sequence[Any] | None = None,
    encoder_tokens: Sequence[str] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    include_layers: Iterable[int] | None = None,
    include_heads: Iterable[int] | None = None,
    html_action: str = "view",
) -> View | Page:
    """The attention of every layer and head at once, as a grid of thumbnails.

    display_mode: "dark" or "light".  include_heads: the heads that are on at first; all are on the page, under their
        own numbers.  All else as in `head_view`.
    """
    arguments = {name: value for name, value in locals().items() if name in GivenWeights.__dataclass_fields__}
    shown = {"heads": include_heads, "include_layers": include_layers, "show": "grid", "theme": theme(display_mode)}
    return answer(_page(arguments, prettify_tokens, shown), html_action)


def answer(page: View, html_action: str) -> View | Page:
    """The view, or its HTML as a `Page`."""
    check_one_of("html_action", html_action, ("view", "return"))
    return page if html_action == "view" else Page(page.html())


def theme(display_mode: str) -> str:
    """The colour theme of a page."""
    check_one_of("display_mode", display_mode, ("dark", "light"))
    return display_mode


def _page(arguments: dict[str, Any], pretty: bool, shown: dict[str, Any]) -> View:
    """The view of the given weights; tokens decoded for reading, or spelled exactly as in the vocabulary."""
    found = {name: value for name, value in arguments.items() if value is not None}
    names = [name for name in found if name.endswith("tokens") and isinstance(found[name], Sequence)]
    raw = {name: list(found[name]) for name in names}
    for name in names if pretty else []:
        found[name] = [token.removesuffix("</w>") if isinstance(token, str) else token for token in raw[name]]
    page = view(**found, **shown)
    if not pretty:
        for sequence in page.data.manifest["sequences"]:
            own = raw[f"{sequence['name']}_tokens" if sequence["name"] else "tokens"]
            for token, text in zip(sequence["tokens"], own):
                token["text"] = text
    return page
