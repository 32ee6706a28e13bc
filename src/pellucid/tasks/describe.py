"""All facts of a model, in groups, as plain values."""

import dataclasses
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import format_count
from pellucid.models import count


def describe(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """What is known about a model without running it."""
    config, module = loaded.config, loaded.module
    facts = config.facts()
    source = loaded.source
    counts = {name: count(part) for name, part in module.named_children()}
    counts = {name: number for name, number in counts.items() if number}
    weight = module.embeddings.token.like
    labels = facts.pop("labels")
    facts = {name: value for name, value in facts.items() if name not in ("residual", "head", "decoder")}
    facts |= {"head_dim": config.head_dim, "num_key_value_heads": config.num_key_value_heads}
    shared = config.num_attention_heads // config.num_key_value_heads
    groups: dict[str, dict[str, Any]] = {
        "model": {
            "name": source.name if source else "untrained" if loaded.untrained else "trained here",
            "found as": source.kind if source else "built",
            "folder": str(source.folder) if source else "-",
            **({"adapter on": source.base.name} if source and source.base else {}),
            "untrained parts": ", ".join(loaded.untrained) or "none",
        },
        "architecture": {
            "family": facts.pop("family"),
            "norm": f"{type(config.norm).__name__}, {config.residual}-norm",
            "attention": "one key and value for each head" if shared == 1 else f"{shared} heads share a key and value",
            "feed forward": type(config.feed_forward).__name__,
            "position": type(config.position).__name__,
            "position in attention": type(config.attention_position).__name__,
            "head": config.head.name if config.head else "none",
            "labels": ", ".join(labels) if config.head and config.head.answers == "labels" else "-",
            **{name: _plain(value) for name, value in sorted(facts.items()) if value is not None},
        },
        "numbers": {
            **{f"parameters in {name}": f"{number:,}" for name, number in counts.items()},
            "parameters": f"{count(module):,}",
            "dtype": module.kind,
            "device": str(weight.device),
        },
    }
    if loaded.tokenizer is not None:
        limit = loaded.tokenizer.model_max_length
        longest = "no limit of its own" if limit is None else f"{limit} tokens"
        groups["words"] = {"tokens": f"{len(loaded.tokenizer):,}", "longest text": longest}
    if loaded.pooling is not None:
        pooling = loaded.pooling
        groups["text to vector"] = {
            "pooling": " + ".join(pooling.modes),
            "length 1": "yes" if pooling.normalize else "no",
            "longest text": f"{pooling.max_length} tokens" if pooling.max_length else "as the model's",
        }
    return groups


def _plain(value: Any) -> Any:
    """Part types as their settings, several values as a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ", ".join([type(value).__name__, *(f"{name} {inner}" for name, inner in vars(value).items())])
    return list(value) if isinstance(value, tuple) else value


def summary(loaded: Loaded) -> str:
    """One line: name, architecture, size, and whether it is trained."""
    config, weight = loaded.config, loaded.module.embeddings.token.like
    name = loaded.source.name if loaded.source else "UNTRAINED" if loaded.untrained else "trained here"
    base = f" (an adapter on {loaded.source.base.name})" if loaded.source and loaded.source.base else ""
    head = f", {config.head.name} head" if config.head else ""
    warning = " (UNTRAINED)" if loaded.source and loaded.untrained else ""
    layers = format_count(config.num_hidden_layers, "layer")
    return (
        f"{name}{base}: {config.family}, {layers}, {format_count(config.num_attention_heads, 'head')}, "
        f"{config.hidden_size} wide{head}{warning}, {count(loaded.module):,} parameters, "
        f"{loaded.module.kind} on {weight.device}"
    )
