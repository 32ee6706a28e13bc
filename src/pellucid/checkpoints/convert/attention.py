"""Attention as BERT computes it, and as foreign graphs contain it: decomposed, or as one fused operation."""

from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.graph import Node
from pellucid.checkpoints.convert.steps import Linear, Steps

ATTENTION_TOLERANCE = 1e-2
"""How far attention outputs in half precision may be off, relative to the largest value of their channel."""

SCALE_TOLERANCE = 3e-3
"""Maximum relative error of the score scale in half precision."""

_MAX_MASK_VALUE = -1000.0
"""Upper bound of the value that is added to the scores of padding."""


def all_close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether finite values differ by at most `tolerance`, absolute and relative to the expected value.

    Like `torch.allclose`, which takes many times as long.
    """
    return bool(((actual - expected).abs() <= expected.abs() * tolerance + tolerance).all())


def split_heads(numbers: Tensor, heads: int) -> Tensor:
    """`[texts, tokens, width]` to `[texts, heads, tokens, head width]`."""
    return numbers.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(numbers: Tensor) -> Tensor:
    """`[texts, heads, tokens, head width]` to `[texts, tokens, width]`."""
    return numbers.transpose(1, 2).flatten(2)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """Attention weights, `[texts, heads, queries, keys]`.

    query, key: `[texts, heads, tokens, width]`.  mask: True for visible keys, or values that are added to the scores.
    scale: by default 1 / sqrt(width).
    """
    scores = query @ key.mT * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1)


def fused_attention(attributes: dict[str, Any], parts: list[Tensor], *masks: Tensor | None) -> Tensor:
    """The output of a fused attention operation: ONNX Runtime's two, and ONNX's own since opset 23.

    parts: query, key and value, `[texts, tokens, width]`, or already split into heads.
    masks: the key mask, `[texts, keys]` or as lengths, and the additive mask of the scores.
    """
    heads = attributes.get("num_heads", attributes.get("q_num_heads"))
    is_unsplit = parts[0].dim() == 3
    query, key, value = (split_heads(part, heads) for part in parts) if is_unsplit else parts
    visible_keys, additive_mask = masks
    mask = additive_mask
    if visible_keys is not None:
        mask = key_mask(visible_keys, query.shape[0], key.shape[-2])
        mask = mask if additive_mask is None else torch.where(mask, additive_mask, -torch.inf)
    output = attention_weights(query, key, mask, attributes.get("scale")) @ value
    return merge_heads(output) if is_unsplit else output


def key_mask(mask: Tensor, texts: int, keys: int) -> Tensor:
    """The visible keys, `[texts, 1, 1 or queries, keys]`, from any form of ONNX Runtime's key mask."""
    if mask.dim() == 1:  # lengths, and perhaps start positions
        ends, starts = mask[:texts], mask[texts:] if mask.numel() == 2 * texts else mask.new_zeros(texts)
        positions = torch.arange(keys, device="cpu")
        return ((positions < ends[:, None]) & (positions >= starts[:, None]))[:, None, None]
    return mask.bool()[:, None] if mask.dim() == 3 else mask.bool()[:, None, None]


def check_query(steps: Steps, query: Linear, heads: int) -> None:
    """Refuses a graph that splits the query into another number of heads than config.json gives."""
    width = query.weight.shape[0]
    reshape = next((node for node in steps.graph.consumers.get(query.output, []) if node.op_type == "Reshape"), None)
    if reshape is None:
        return
    constants, producer = steps.constants, steps.graph.producers.get(reshape.input(1))
    constant_shape = constants.vector(reshape.input(1))
    parts = producer.inputs if producer is not None and producer.op_type == "Concat" else ()
    shape = constant_shape.numbers.tolist() if constant_shape else [constants.number(name) for name in parts]
    if len(shape) == 4 and (shape[2] not in (None, -1, heads) or shape[3] not in (None, -1, width // heads)):
        found = shape[2] if shape[2] not in (None, -1) else width // max(int(shape[3]), 1)
        raise steps.not_bert_error(f"it has {found} heads, config.json says {heads}")


def check_attributes(steps: Steps, node: Node, heads: int, default_scale: float) -> None:
    """Checks a fused attention: number of heads, scale, mask, and that no keys of an earlier pass are read."""
    attributes = node.attributes
    found = attributes.get("num_heads", attributes.get("q_num_heads", heads))
    if found != heads:
        raise steps.not_bert_error(f"it has {found} heads, config.json says {heads}")
    key_value_heads, mask_value = (
        attributes.get("kv_num_heads", heads),
        attributes.get("mask_filter_value", _MAX_MASK_VALUE),
    )
    is_joint = node.outputs[0] in steps.fused_steps  # ONNX Runtime's, which holds the three products
    past_places = (6, 7) if node.op_type == "MultiHeadAttention" else (4,) if is_joint else (4, 5, 6)
    if any(attributes.get(key) for key in ("unidirectional", "is_causal", "softcap", "do_rotary")) or (
        any(map(node.input, past_places))
        or abs((attributes.get("scale") or default_scale) / default_scale - 1) > SCALE_TOLERANCE
        or key_value_heads != heads
        or mask_value > _MAX_MASK_VALUE
        or any(attributes.get(f"{side}_window_size", -1) != -1 for side in ("left", "right"))
    ):
        raise steps.not_bert_error(f"{node} is causal, has a past, or scales or masks its scores in another way")
