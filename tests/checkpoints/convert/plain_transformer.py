"""The Transformer of CTranslate2's files, in plain PyTorch over the converted tensors: no batch, no cache."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

Tensors = dict[str, Tensor]

NAMES = {
    "آتزمون": "atzmon",
    "آتشيسون": "achison",
    "آركنساس": "arkensas",
    "آرثر": "arther",
    "محمد": "mahmad",
    "برلين": "berlin",
}
"""Names, and what the model of the study documents generates for them."""


def sinusoids(length: int, width: int) -> Tensor:
    """tensor2tensor's sinusoidal positions, counted from 1: all sines, then all cosines, `[length, width]`."""
    scale = torch.exp(torch.arange(width // 2) * -(math.log(10_000) / (width // 2 - 1)))
    angles = torch.arange(1, length + 1)[:, None] * scale
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def product(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def norm(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-5)


def attend(tensors: Tensors, name: str, x: Tensor, memory: Tensor, heads: int, causal: bool) -> Tensor:
    """Attention of `x` `[target, width]` to `memory` `[source, width]`."""
    parts = [(x, "query"), (memory, "key"), (memory, "value")]
    query, key, value = (
        product(tensors, f"{name}.{n}", y).unflatten(-1, (heads, -1)).transpose(0, 1) for y, n in parts
    )
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -math.inf)
    return product(tensors, f"{name}.output", (scores.softmax(-1) @ value).transpose(0, 1).flatten(1))


def stack(tensors: Tensors, side: str, ids: list[int], memory: Tensor | None, config: dict[str, Any]) -> Tensor:
    """The hidden states after the final norm, `[len(ids), width]`."""
    heads, width = config["num_attention_heads"], config["hidden_size"]
    x = tensors[f"{side}.embeddings.token.weight"][ids] * math.sqrt(width) + sinusoids(len(ids), width)
    for i in range(config["num_hidden_layers" if side == "encoder" else "num_decoder_layers"]):
        layer = f"{side}.layers.{i}"
        y = norm(tensors, f"{layer}.attention_norm", x)
        x = x + attend(tensors, f"{layer}.attention", y, y, heads, causal=side == "decoder")
        if memory is not None:
            y = norm(tensors, f"{layer}.cross_attention_norm", x)
            x = x + attend(tensors, f"{layer}.cross_attention", y, memory, heads, causal=False)
        y = product(tensors, f"{layer}.feed_forward.up", norm(tensors, f"{layer}.feed_forward_norm", x)).relu()
        x = x + product(tensors, f"{layer}.feed_forward.down", y)
    return norm(tensors, f"{side}.norm", x)


def greedy(
    tensors: Tensors, config: dict[str, Any], source: list[int], max_length: int = 40
) -> tuple[list[int], list[float]]:
    """Greedy decoding: the tokens up to and including the end token, and the log-probability of each."""
    memory, target, scores = stack(tensors, "encoder", source, None, config), [config["decoder_start_token_id"]], []
    while len(target) <= max_length:
        hidden = stack(tensors, "decoder", target, memory, config)[-1]
        table = tensors.get("head.decoder.weight", tensors["decoder.embeddings.token.weight"])
        log_probabilities = linear(hidden, table, tensors["head.bias"]).log_softmax(-1)
        target.append(int(log_probabilities.argmax()))
        scores.append(float(log_probabilities.max()))
        if target[-1] == config["eos_token_id"]:
            break
    return target[1:], scores
