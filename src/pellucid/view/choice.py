"""Selects what is drawn: one attention of a page, some of its heads, and the tokens on both sides."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.config.checks import check_choice, require_integer, require_integers
from pellucid.errors import InputError
from pellucid.view.data import PageData
from pellucid.view.numbers import head_weights


@dataclass(frozen=True)
class Choice:
    """One attention with its numbers.

    has_given_weights: whether the weights were given by the user, not recorded from a model.
    weights: Float[ndarray, "heads queries keys"], in the order of `heads`.
    attention_mask: Bool[ndarray, "queries keys"].
    queries, keys: the tokens as in the manifest.  token: the only query whose links are drawn.
    edits: the edits of the run, as displayed.
    """

    entry: dict[str, Any]
    model: str
    has_given_weights: bool
    heads: list[int]
    weights: np.ndarray
    attention_mask: np.ndarray
    queries: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    token: int | None
    edits: str = ""

    @property
    def title(self) -> str:
        """For example "layer 3, heads 1, 5"."""
        what = _SIDE_NAMES.get(side_of(self.entry), "")
        heads = f"head {self.heads[0]}" if len(self.heads) == 1 else "heads " + ", ".join(map(str, self.heads))
        if len(self.heads) > 8:
            heads = f"{len(self.heads)} heads"
        return ", ".join(part for part in (what, f"layer {self.entry['layer']}", heads) if part)


_SIDE_NAMES = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder attending to the encoder"}


def choose_attention(
    data: PageData,
    layer: int | None = None,
    heads: int | Iterable[int] | None = None,
    token: int | None = None,
    side: str | None = None,
) -> Choice:
    """The requested attention; by default what the page shows first. Raises InputError if it does not exist."""
    manifest = data.manifest
    entry = find_attention(manifest, layer, side)
    if entry["weights"] is None and entry["query"] is None:
        raise InputError(f"{entry['name']} was left out of this page to keep it small: view it with a larger budget_mb")
    chosen = _chosen_heads(entry["heads"], manifest["show"]["heads"], heads)
    queries, keys = (manifest["sequences"][entry[part]]["tokens"] for part in ("queries", "keys"))
    if token is not None:
        token = require_integer("token", token, "the number of a token")
        if not -len(queries) <= token < len(queries):
            raise InputError(f"token {token} does not exist: the text has tokens 0 to {len(queries) - 1}")
    pairs = [head_weights(data, entry, head) for head in chosen]
    weights, attention_mask = np.stack([weights for weights, _ in pairs]), pairs[0][1]
    weights = np.where(np.isfinite(weights), weights, np.nan)  # values that are not finite are not drawn
    query = None if token is None else token % len(queries)
    model = manifest["model"]
    return Choice(
        entry,
        model["name"],
        model["family"] == "",
        chosen,
        weights,
        attention_mask,
        queries,
        keys,
        query,
        "; ".join(manifest.get("edits", ())),
    )


def _chosen_heads(head_count: int, initial: list[int], requested: Any) -> list[int]:
    """The requested heads; by default those that the page shows first, or all where the attention has none of those."""
    if requested is None:
        return [head for head in initial if head < head_count] or list(range(head_count))
    expected = "a number or several, such as heads=[8]"
    chosen = list(
        dict.fromkeys(require_integers("heads", [requested] if isinstance(requested, int) else requested, expected))
    )
    for head in chosen:
        if not 0 <= head < head_count:
            raise InputError(f"head {head} does not exist: this attention has heads 0 to {head_count - 1}")
    if not chosen:
        raise InputError(f"no head was selected: heads takes {expected}")
    return chosen


def find_attention(manifest: dict[str, Any], layer: int | None, side: str | None) -> dict[str, Any]:
    """The attention of a layer, by the layer's index in the model; by default the one that the page shows first."""
    entries, show = manifest["attentions"], manifest["show"]
    if layer is None and side is None:
        return next(entry for entry in entries if entry["name"] == show["name"])
    if side is not None:
        check_choice("side", side, tuple(_SIDE_NAMES))
    of_side = [entry for entry in entries if side is None or side_of(entry) == side]
    if not of_side:
        raise InputError(f"this page has no attention of the {side}: its model is not an encoder-decoder")
    number = show["layer"] if layer is None else require_integer("layer", layer, "the number of a layer")
    found = [entry for entry in of_side if entry["layer"] == number]
    if not found and layer is None:
        return of_side[0]
    if not found:
        known = sorted({entry["layer"] for entry in of_side})
        raise InputError(f"layer {number} does not exist: this page has layers {', '.join(map(str, known))}")
    return found[0]


def side_of(entry: dict[str, Any]) -> str:
    """ "encoder", "decoder" or "cross" of an encoder-decoder; "" of a model with one side."""
    return "cross" if entry["kind"] == "cross" else entry["side"]
