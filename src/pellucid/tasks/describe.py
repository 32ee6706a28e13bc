"""Every fact of a model, in groups, as plain values."""

from typing import Any

from pellucid.checkpoints.loaded import Loaded


def describe(loaded: Loaded) -> dict[str, dict[str, Any]]:
    """What there is to know about a model without running it."""
    config, module = loaded.config, loaded.module
    facts = config.facts()
    source = loaded.source
    sizes = {"embeddings": module.embeddings, "layers": module.layers, "pooler": module.pooler, "head": module.head}
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in sizes.items() if part is not None}
    weight = module.embeddings.token.weight
    groups: dict[str, dict[str, Any]] = {
        "model": {
            "name": source.name if source else "untrained",
            "found as": source.kind if source else "built",
            "folder": str(source.folder) if source else "-",
            "untrained parts": ", ".join(loaded.untrained) or "none",
        },
        "architecture": {
            "family": facts.pop("family"),
            "norm": f"{type(config.norm).__name__}, {config.residual}-norm",
            "position": type(config.position).__name__,
            "head": config.head.name if config.head else "none",
            "labels": ", ".join(facts.pop("labels")) if config.head else "-",
            **{name: value for name, value in sorted(facts.items()) if name not in ("residual", "head")},
        },
        "numbers": {
            **{f"parameters in {name}": f"{count:,}" for name, count in counts.items()},
            "parameters": f"{sum(p.numel() for p in module.parameters()):,}",
            "dtype": str(weight.dtype).removeprefix("torch."),
            "device": str(weight.device),
        },
    }
    if loaded.tokenizer is not None:
        tokenizer = loaded.tokenizer
        groups["words"] = {"tokens": f"{len(tokenizer):,}", "longest text": f"{tokenizer.model_max_length} tokens"}
    if loaded.pooling is not None:
        pooling = loaded.pooling
        groups["text to vector"] = {
            "pooling": " + ".join(pooling.modes),
            "length 1": "yes" if pooling.normalize else "no",
            "longest text": f"{pooling.max_length} tokens" if pooling.max_length else "as the model's",
        }
    return groups
