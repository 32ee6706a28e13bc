"""Small pages with known numbers, with which the contents of a view are compared."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

TEXTS = ["time", " flies", " like", " an", " arrow", " and", " time"]
POINTS = ["embeddings.output", "layers.0.residual.post", "layers.1.residual.post"]
LAYERS, HEADS, HEAD_SIZE, LENS_SIZE = 2, 3, 4, 4
TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until the page has drawn the last selection."""


@dataclass
class ReferencePage:
    """A page, and its numbers by name: weights Tensor[heads, seq, seq], tensors, ids and log-probabilities."""

    manifest: dict[str, Any]
    blocks: dict[str, bytes] = field(default_factory=dict)
    numbers: dict[str, Tensor] = field(default_factory=dict)

    def store(self, name: str, value: Tensor) -> str:
        kind = str(value.dtype).removeprefix("torch.")
        self.manifest["blocks"][name] = {"dtype": kind, "shape": list(value.shape)}
        self.blocks[name] = value.contiguous().numpy().tobytes()
        self.numbers[name] = value
        return name


def reference_page(seed: int = 0, texts: list[str] | None = None, *, lens: bool = True) -> ReferencePage:
    """A causal model of 2 layers and 3 heads that has read `texts`."""
    texts = texts or TEXTS
    facts = {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_SIZE,
    }
    model = {"name": "written", "family": "llama", "kind": "decoder", "parameters": 1000} | facts
    show = {"view": "lens", "layer": 0, "name": "layers.0.attention", "heads": [0]}
    manifest = {"format": "pellucid-view", "version": 3, "model": model, "texts": ["".join(texts)], "other": None}
    page = ReferencePage(manifest | {"show": show, "blocks": {}, "made_by": {}})
    page.manifest |= _run(page, seed, texts, "", lens)
    return page


def comparison_page(seed: int = 0, other_seed: int = 0, other_texts: list[str] | None = None) -> ReferencePage:
    """The same page with a second run."""
    page = reference_page(seed)
    texts = other_texts or TEXTS
    page.manifest["other"] = {"label": "the other", "texts": ["".join(texts)]} | _run(
        page, other_seed, texts, "other/", True
    )
    return page


def _run(page: ReferencePage, seed: int, texts: list[str], prefix: str, lens: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    seq = len(texts)
    tokens = [{"text": text, "id": i, "kind": "word", "segment": 0} for i, text in enumerate(texts)]
    attentions = []
    for layer in range(LAYERS):
        name = f"layers.{layer}.attention"
        query, key = (torch.randn(HEADS, seq, HEAD_SIZE, generator=generator) for _ in range(2))
        scores = query @ key.mT * 0.5
        weights = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        page.numbers[f"{prefix}{name}.weights"] = weights
        stored = {part: page.store(f"{prefix}{name}.{part}", value) for part, value in (("query", query), ("key", key))}
        counts = {"queries": 0, "keys": 0, "heads": HEADS, "key_heads": HEADS, "weights": None, "thumb": None}
        recipe = {"recipe": {"scale": 0.5, "mask": "causal"}, "max_error": 0.0}
        attentions.append({"name": name, "layer": layer, "kind": "self", "side": ""} | counts | stored | recipe)
    sequences = [{"name": "", "tokens": tokens}]
    run = {"sequences": sequences, "attentions": attentions, "lens": None, "tensors": _tensors(page, prefix, generator)}
    if lens:
        log_probabilities, ids = torch.randn(3, seq, 30, generator=generator).mul(3).log_softmax(-1).topk(LENS_SIZE)
        tokens_by_id = {str(i): TEXTS[i] if i < len(TEXTS) else f" word{i}" for i in range(30)}
        stored = {"ids": page.store(f"{prefix}lens.ids", ids.int())}
        stored["log_probabilities"] = page.store(f"{prefix}lens.log_probabilities", log_probabilities)
        run["lens"] = {"kind": "next token", "points": POINTS, "tokens_by_id": tokens_by_id} | stored
    return run


def _tensors(page: ReferencePage, prefix: str, generator: torch.Generator) -> list[dict[str, Any]]:
    seq = len(TEXTS)
    broken = torch.randn(seq, 40, generator=generator)
    broken[2, 5], broken[3, 7], broken[4, 9] = torch.nan, torch.inf, -torch.inf
    tensors = {
        "layers.0.attention.query": (
            ["heads", "seq", "head_dim"],
            torch.randn(HEADS, seq, HEAD_SIZE, generator=generator),
        ),
        "layers.1.attention.query": (
            ["heads", "seq", "head_dim"],
            torch.randn(HEADS, seq, HEAD_SIZE, generator=generator),
        ),
        "layers.0.attention.weights": (["heads", "seq", "source"], page.numbers[f"{prefix}layers.0.attention.weights"]),
        "layers.0.residual.post": (["seq", "hidden"], broken),
        "logits": (["seq", "vocabulary"], torch.randn(seq, 5000, generator=generator)),
        "pooled": (["hidden"], torch.randn(12, generator=generator)),
    }
    return [
        {"name": name, "axes": axes, "block": page.store(f"{prefix}{name}.tensor", value)}
        for name, (axes, value) in tensors.items()
    ]
