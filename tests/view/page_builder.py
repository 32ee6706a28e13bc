"""Builds pages of random numbers in the page's own format, so that every recipe can be tested."""

import zlib
from typing import Any

import numpy as np

from pellucid.view.data import PageData


def tokens_of(count: int, *, second: int | None = None) -> list[dict[str, Any]]:
    """`count` tokens; those from `second` on belong to a second text."""
    return [
        {
            "text": f"word{i}",
            "id": i,
            "kind": "special" if i == 0 else "word",
            "segment": int(second is not None and i >= second),
        }
        for i in range(count)
    ]


class PageBuilder:
    """Builds a page entry by entry."""

    def __init__(self, *sequences: tuple[str, list[dict[str, Any]]], seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.blocks: dict[str, bytes] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.entries: list[dict[str, Any]] = []
        self.sequences = [{"name": name, "tokens": tokens} for name, tokens in sequences]

    def block(self, name: str, values: np.ndarray, **more: Any) -> str:
        """Stores numbers as a block, compressed if `more` contains `deflated`."""
        kind = {"f4": "float32", "u1": "uint8"}[values.dtype.str[1:]]
        raw = values.tobytes()
        self.blocks[name] = zlib.compress(raw) if more.get("deflated") else raw
        self.facts[name] = {"dtype": kind, "shape": list(values.shape), **more}
        return name

    def numbers(self, *shape: int) -> np.ndarray:
        return self.generator.normal(size=shape).astype("f4")

    def attention(self, layer: int = 0, heads: int = 4, size: int = 8, **more: Any) -> dict[str, Any]:
        """Adds one attention with random queries and keys. more: fields of the entry, or of its recipe."""
        queries, keys = more.pop("queries", 0), more.pop("keys", 0)
        shape = [len(self.sequences[i]["tokens"]) for i in (queries, keys)]
        key_heads = more.pop("key_heads", heads)
        kind, side = more.pop("kind", "self"), more.pop("side", "")
        name = f"{side + '.' if side else ''}layers.{layer}.{'cross_' if kind == 'cross' else ''}attention"
        entry = {
            "name": name,
            "layer": layer,
            "kind": kind,
            "side": side,
            "queries": queries,
            "keys": keys,
            "heads": heads,
            "key_heads": key_heads,
            "query": self.block(f"{name}.query", self.numbers(heads, shape[0], size)),
            "key": self.block(f"{name}.key", self.numbers(key_heads, shape[1], size)),
            "weights": more.pop("weights", None),
            "thumb": None,
            "recipe": {"scale": size**-0.5, "mask": "full", **more},
            "max_error": 1e-7,
        }
        self.entries.append(entry)
        return entry

    def data(self, **show: Any) -> PageData:
        """The complete page."""
        heads = self.entries[0]["heads"]
        manifest = {
            "format": "pellucid-view",
            "version": 3,
            "model": {
                "name": "made by hand",
                "family": "bert",
                "kind": "encoder",
                "parameters": 1,
                "num_hidden_layers": len(self.entries),
                "num_attention_heads": heads,
                "num_key_value_heads": heads,
                "head_dim": 8,
            },
            "texts": ["a text"],
            "sequences": self.sequences,
            "attentions": self.entries,
            "lens": None,
            "tensors": [],
            "other": None,
            "blocks": self.facts,
            "show": {
                "view": "heads",
                "layer": self.entries[0]["layer"],
                "name": self.entries[0]["name"],
                "heads": list(range(heads)),
                **show,
            },
            "made_by": {"pellucid": "test", "torch": "test"},
        }
        return PageData(manifest, self.blocks)


def plain_page(count: int = 8, **options: Any) -> PageData:
    """A page of one text and one attention."""
    builder = PageBuilder(("", tokens_of(count, second=options.pop("second", None))))
    builder.attention(**options)
    return builder.data()
