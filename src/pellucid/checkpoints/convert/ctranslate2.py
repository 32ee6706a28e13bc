"""A CTranslate2 Transformer as our tensors and facts.

Its files give neither the number of heads nor the computation around the weights. TransformerBase means pre-norm with a
final norm, ReLU, embeddings times the root of the width, and sinusoidal positions counted from 1 in tensor2tensor's
layout: all sines, then all cosines.
"""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.ctranslate2_facts import check_tensors, config_from_shapes
from pellucid.checkpoints.convert.ctranslate2_file import read_variables
from pellucid.checkpoints.convert.ctranslate2_vocabularies import Vocabularies, read_vocabularies
from pellucid.checkpoints.tensors import tensor_spans
from pellucid.errors import Argument, CheckpointMismatchError, InputError, Placeholder, join_names

LAYER_NAMES = {
    "self_attention/layer_norm": ("attention_norm",),
    "self_attention/linear_0": ("attention.query", "attention.key", "attention.value"),
    "self_attention/linear_1": ("attention.output",),
    "attention/layer_norm": ("cross_attention_norm",),
    "attention/linear_0": ("cross_attention.query",),
    "attention/linear_1": ("cross_attention.key", "cross_attention.value"),
    "attention/linear_2": ("cross_attention.output",),
    "ffn/layer_norm": ("feed_forward_norm",),
    "ffn/linear_0": ("feed_forward.up",),
    "ffn/linear_1": ("feed_forward.down",),
}
"""Names in a layer, and ours; where there are several, the rows of one matrix are divided among them in order."""

OUTER_NAMES = {
    "encoder/embeddings/weight": "encoder.embeddings.token.weight",
    "encoder/embeddings_0/weight": "encoder.embeddings.token.weight",
    "decoder/embeddings/weight": "decoder.embeddings.token.weight",
    "decoder/projection/weight": "head.decoder.weight",
    "decoder/projection/bias": "head.bias",
    "encoder/layer_norm/gamma": "encoder.norm.weight",
    "encoder/layer_norm/beta": "encoder.norm.bias",
    "decoder/layer_norm/gamma": "decoder.norm.weight",
    "decoder/layer_norm/beta": "decoder.norm.bias",
}

HEADS = {"TransformerBase": 8, "TransformerBig": 16}
"""Number of heads of older kinds of model, which their variables do not give."""

SUFFIXES = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}

SUPPORTED = {
    "pre_norm": 1, "activation": 0, "embeddings_merge": 0, "scale_embeddings": 1, "start_from_zero_embedding": 0,
    "multi_query_attention": 0, "alibi": 0, "scale_alibi": 0,
}  # fmt: skip
"""Settings that newer files store as scalar tensors, and the supported value of each."""

INERT = ("alignment_layer", "alignment_heads", "alibi_use_positive_positions")
"""Settings that do not affect a forward pass without ALiBi."""

_LAYER_NAME = re.compile(r"(encoder|decoder)/layer_(\d{1,3})/([a-z_]+/[a-z]+(?:_\d|_norm))/(gamma|beta|weight|bias)")
_SETTING = re.compile(r"(?:encoder|decoder)/(\w+)")


def read_transformer(file: Path, heads: int | None) -> tuple[dict[str, Tensor], dict[str, Any], Vocabularies]:
    """The tensors by our names, the config.json, and the vocabularies of a CTranslate2 folder.

    file: the weights, `model.bin` or `model.safetensors`.
    heads: number of attention heads, required for a `model.safetensors` of older versions, which do not give it.
    Raises: InputError where heads is missing or does not divide the width; CheckpointMismatchError for tensors that are
    unknown, missing or of another shape.
    """
    folder, (kind, found) = file.parent, read_variables(file) if file.suffix == ".bin" else ("", tensor_spans(file))
    numbers = {span: span.read() for span in dict.fromkeys(found.values())}  # aliased tensors are read once
    stored = {name: numbers[span] for name, span in found.items()}
    heads = _take_settings(folder, stored, _agreed_heads(folder, heads, HEADS.get(kind)))
    stored = _dequantised(folder, stored)
    tensors: dict[str, Tensor] = {}
    unknown = []
    for name, numbers in stored.items():
        our_name = _our_names(name)
        if not our_name or numbers.dim() == 0 or numbers.shape[0] % len(our_name):
            unknown.append(name)
        else:
            tensors |= zip(our_name, numbers.chunk(len(our_name)))
    if unknown:
        raise CheckpointMismatchError(f"{folder} holds {join_names(unknown)}, which a plain Transformer does not have")
    vocabularies = read_vocabularies(folder)
    config = config_from_shapes(folder, tensors, heads, vocabularies)
    check_tensors(folder, tensors, config)
    return tensors, config, vocabularies


def _our_names(name: str) -> list[str]:
    """Our names for a tensor; empty where it is unknown."""
    if name in OUTER_NAMES:
        return [OUTER_NAMES[name]]
    found = _LAYER_NAME.fullmatch(name)
    if found is None or (found[1] == "encoder" and found[3].startswith("attention/")):
        return []
    return [f"{found[1]}.layers.{found[2]}.{part}.{SUFFIXES[found[4]]}" for part in LAYER_NAMES.get(found[3], ())]


def _dequantised(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Integer tensors as floats: divided by a scale per row (8 bits), or by one scale (16 bits)."""
    scales = {name.removesuffix("_scale"): value for name, value in tensors.items() if name.endswith("weight_scale")}
    found = {}
    for name, numbers in tensors.items():
        if name in scales:
            scale = scales[name].float()
            if numbers.dtype not in (torch.int8, torch.int16) or scale.numel() not in (1, *numbers.shape[:1]):
                raise CheckpointMismatchError(f"{folder}: {name} has a scale that does not fit, expected 8 or 16 bits")
            found[name] = numbers.float() / scale.reshape(-1, *[1] * (numbers.dim() - 1))
        elif not name.endswith("weight_scale"):
            found[name] = numbers
    unscaled = [name for name, numbers in found.items() if numbers.dim() and not numbers.is_floating_point()]
    if unscaled:
        raise CheckpointMismatchError(f"{folder}: {join_names(unscaled)} holds whole numbers without a scale")
    return found


def _agreed_heads(folder: Path, heads: int | None, stated: float | None) -> int | None:
    """The number of heads that caller and file agree on."""
    if stated is not None and stated != (heads or stated):
        raise InputError(Argument("heads"), f" is {heads}, {folder} says {stated:g}; leave it out")
    if stated is not None and not float(stated).is_integer():
        raise CheckpointMismatchError(f"{folder} says that attention has {stated:g} heads")
    return heads if stated is None else int(stated)


def _take_settings(folder: Path, tensors: dict[str, Tensor], heads: int | None) -> int:
    """Removes the settings from the tensors and returns the number of heads, which newer files include."""
    for name in [name for name in tensors if _SETTING.fullmatch(name) and tensors[name].numel() == 1]:
        value, key = tensors.pop(name).item(), name.partition("/")[2]
        if key == "num_heads":
            heads = _agreed_heads(folder, heads, value)
        elif key not in INERT and SUPPORTED.get(key) != value:
            raise CheckpointMismatchError(f"{folder}: {name} is {value:g}, which is not understood")
    if heads is None:
        raise InputError(
            f"{folder} does not say how many heads its attention has: pass ",
            Argument("heads", Placeholder("N")),
            ", often 8",
        )
    return heads
