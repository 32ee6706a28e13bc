"""The facts of a GGUF file under the keys of the reference's `config.json`."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pellucid.blocks import llama3_scaling
from pellucid.checkpoints.facts import warn_of_unknown_keys
from pellucid.checkpoints.gguf.dequantise import dtype_of, unpack
from pellucid.checkpoints.gguf.header import Header
from pellucid.errors import CheckpointMismatchError, CorruptFileError, join_names
from pellucid.text.gguf_vocabulary import token_id

log = logging.getLogger("pellucid")

_WINDOW = "attention.sliding_window"
_LLAMA_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "attention.key_length": "head_dim",
    _WINDOW: "sliding_window",
}
_GPT2_KEYS = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_IDS = {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""End of text, of turn and of message: llama.cpp stops at each."""

_SAMPLING = "general.sampling."
_OPTIONAL = ("attention.head_count_kv", "rope.freq_base", "attention.key_length", _WINDOW)
_READ_ELSEWHERE = (
    "vocab_size rope.dimension_count attention.value_length rope.scaling.type rope.scaling.factor rope.scale_linear "
    "rope.scaling.original_context_length rope.scaling.finetuned tensor_data_layout"
).split()
_BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
_REAL = ("epsilon", "freq_base", "factor", "scale_linear")


def config_facts(header: Header, architecture: str, vocabulary_size: int) -> dict[str, Any]:
    """The keys of a reference `config.json`; `vocabulary_size` is the number of tokens in the vocabulary.

    Raises CheckpointMismatchError for an unsupported key that affects the output.
    """
    raw = (_gpt2_facts if architecture == "gpt2" else _llama_facts)(header, architecture)
    table = header.tensors.get("token_embd.weight")
    raw["vocab_size"] = table.shape[0] if table else vocabulary_size  # a file without tensors holds only a vocabulary
    # llama.cpp stores an output table only where it is not tied.
    raw["tie_word_embeddings"] = "output.weight" not in header.tensors
    if sampling_keys := sorted(key for key in header.metadata if key.startswith(_SAMPLING)):
        log.warning(
            "%s has sampling settings that are not used (%s): generated texts may differ",
            header.path,
            join_names(sampling_keys, 3),
        )
    token_ids = {key: token_id(header.metadata, key, raw["vocab_size"], str(header.path)) for key in (*_IDS, *_END_IDS)}
    ends = list(dict.fromkeys(token_ids[key] for key in _END_IDS if token_ids[key] is not None))
    ids: dict[str, Any] = {ours: token_ids[theirs] for theirs, ours in _IDS.items()}
    ids["eos_token_id"] = ends if len(ends) > 1 else next(iter(ends), None)
    return raw | {name: found for name, found in ids.items() if found is not None}


def _llama_facts(header: Header, architecture: str) -> dict[str, Any]:
    own = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[architecture]
    raw: dict[str, Any] = {"model_type": architecture, "architectures": [own], "hidden_act": "silu"}
    raw |= _renamed_facts(header, architecture, _LLAMA_KEYS)
    raw.setdefault("num_key_value_heads", raw["num_attention_heads"])
    raw.setdefault("rope_theta", 10_000.0)  # also llama.cpp's default
    if architecture == "llama":
        raw["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        raw["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
        _check_window(header.path, raw)
    _check_heads(header, architecture, raw)
    scaling = _rope_scaling(header, architecture, raw)
    if scaling is not None:
        raw["rope_scaling"] = scaling
    return raw


def _gpt2_facts(header: Header, architecture: str) -> dict[str, Any]:
    own = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"}
    return own | _renamed_facts(header, architecture, _GPT2_KEYS)


def _renamed_facts(header: Header, architecture: str, keys: Mapping[str, str]) -> dict[str, Any]:
    prefix = f"{architecture}."
    stated = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    if stated.get(_WINDOW) == 0:
        del stated[_WINDOW]  # no window
    missing = [prefix + key for key in keys if key not in stated and key not in _OPTIONAL]
    if missing:
        raise CorruptFileError(f"{header.path} lacks {join_names(missing)}, which every {architecture} model has")
    _check_unread_keys(
        header.path, prefix, {key: stated[key] for key in stated if key not in keys and key not in _READ_ELSEWHERE}
    )
    stated |= {key: _common_to_layers(stated[key], stated["block_count"]) for key in _BY_LAYER if key in stated}
    return {
        fact: _positive_number(header.path, prefix + key, stated[key]) for key, fact in keys.items() if key in stated
    }


def _common_to_layers(value: Any, layers: Any) -> Any:
    """The value of every layer, where there is a list with equal values for all layers; otherwise unchanged."""
    is_per_layer = isinstance(value, np.ndarray) and type(layers) is int and len(value) == layers
    return value[0].item() if is_per_layer and len(set(value.tolist())) == 1 else value


def _check_unread_keys(path: Path, prefix: str, unread: dict[str, Any]) -> None:
    """Refuses unread keys of the architecture that affect the output, such as experts, caps and scales."""
    changing = ("expert", "scale", "scaling", "softcapping", "parallel", "clamp", "alibi", "temperature")
    unset = {key for key, value in unread.items() if type(value) in (bool, int, float, str) and not value}
    unsupported = [key for key in unread.keys() - unset if any(word in key for word in changing)]
    if "attention.causal" in unset:  # the one key that is harmless when it is true
        unsupported.append("attention.causal")
    if unsupported:
        keys = join_names(prefix + key for key in sorted(unsupported))
        raise CheckpointMismatchError(f"{path}: {keys} would change the numbers and is not understood")
    warn_of_unknown_keys(path, (prefix + key for key in unread.keys() - unset - {"attention.causal"}))


def _positive_number(path: Path, key: str, value: Any) -> int | float:
    """A positive number. A 32-bit float becomes the shortest decimal that equals it: 1e-05, not 9.99999974e-06."""
    is_real = key.endswith(_REAL)
    if type(value) is int and 0 < value < 2**31:
        return float(value) if is_real else value
    if is_real and type(value) is float and 0 < value < 1e30:
        return float(str(np.float32(value))) if float(np.float32(value)) == value else value
    kind = "number" if is_real else "whole number"
    raise CorruptFileError(f"{path}: {key} is {str(value)[:40]}, expected one {kind} greater than zero")


def _check_window(path: Path, raw: dict[str, Any]) -> None:
    """Refuses a window shorter than the context, since a Llama attends to all of it; drops a longer one."""
    window, context = raw.pop("sliding_window", None), raw["max_position_embeddings"]
    if window is not None and window < context:
        raise CheckpointMismatchError(
            f"{path}: llama.{_WINDOW} is {window:,}, expected none, or at least llama.context_length, {context:,}"
        )


def _check_heads(header: Header, architecture: str, raw: dict[str, Any]) -> None:
    """Checks the head sizes; keeps `head_dim` only where it is not hidden size / heads, as the reference does."""
    heads, default = raw["num_attention_heads"], raw["hidden_size"] // raw["num_attention_heads"]
    query = header.tensors.get("blk.0.attn_q.weight")
    width = raw.pop("head_dim", query.shape[0] // heads if query else default)  # older files have it only in the shape
    for key in ("rope.dimension_count", "attention.value_length"):
        stated = header.metadata.get(f"{architecture}.{key}", width)
        if type(stated) is not int or stated != width:
            raise CheckpointMismatchError(
                f"{header.path}: {architecture}.{key} is {str(stated)[:40]}; only whole heads of {width} are understood"
            )
    if heads % raw["num_key_value_heads"] or width % 2 or width < 2:
        raise CorruptFileError(
            f"{header.path}: {heads} heads of {width} with {raw['num_key_value_heads']} for keys and values do not fit"
        )
    if width == default:
        return
    if architecture != "llama":
        raise CheckpointMismatchError(
            f"{header.path}: {architecture}.attention.key_length is {width}, expected {default}, hidden size / heads"
        )
    raw["head_dim"] = width


# -- scaling of rotary positions ---------------------------------------------------------------------------------------


def _rope_scaling(header: Header, architecture: str, raw: dict[str, Any]) -> dict[str, Any] | None:
    """The scaling by the table of frequency divisors and by the facts; llama.cpp applies both."""

    def stated(key: str) -> Any:
        found = header.metadata.get(f"{architecture}.rope.{key}")
        return None if found is None else _positive_number(header.path, f"{architecture}.rope.{key}", found)

    kind = str(header.metadata.get(f"{architecture}.rope.scaling.type", "linear"))
    factor = stated("scaling.factor") or stated("scale_linear") or 1.0
    table_scaling = _llama3_scaling(header, raw) if "rope_freqs.weight" in header.tensors else None
    if kind == "none" or (kind == "linear" and factor == 1):
        return table_scaling
    if kind != "linear":
        raise CheckpointMismatchError(
            f"{header.path}: {architecture}.rope.scaling.type is {kind[:40]!r}, expected none or linear"
        )
    if table_scaling is not None:
        raise CheckpointMismatchError(
            f"{header.path}: rope_freqs.weight scales positions as Llama 3 does, and {architecture}.rope.scaling "
            f"once more by {factor:g}; only one of the two is understood"
        )
    return {"rope_type": "linear", "factor": factor}


def _llama3_scaling(header: Header, raw: dict[str, Any]) -> dict[str, Any] | None:
    """Llama 3's scaling (Llama Team, 2024), recovered from the table of divisors that the converter made of it."""
    found = _table(header, "rope_freqs.weight")
    width = raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    if found.size != width // 2:
        raise CorruptFileError(
            f"{header.path}: rope_freqs.weight has {found.size} numbers, expected {width // 2} for heads of {width}"
        )
    if np.all(found == 1):
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": float(found.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    frequencies = raw["rope_theta"] ** -(torch.arange(found.size, dtype=torch.float64, device="cpu") / found.size)
    scaled = llama3_scaling(frequencies, factor=scaling["factor"], low=1.0, high=4.0, length=8192)
    if not np.all(found >= 1) or not np.allclose(found, (frequencies / scaled).numpy(), rtol=1e-4):
        raise CheckpointMismatchError(
            f"{header.path}: rope_freqs.weight scales positions in another way than Llama 3 does, which is not "
            "understood"
        )
    return scaling


def _table(header: Header, name: str) -> np.ndarray:
    """A short vector that is stored as a tensor."""
    packed = header.tensors[name]
    if dtype_of(packed, name) != torch.float32 or len(packed.shape) != 1 or packed.shape[0] > 4096:
        raise CorruptFileError(
            f"{header.path}: {name} has shape {list(packed.shape)}, expected at most 4,096 numbers in F32"
        )
    return unpack(packed).double().numpy()
