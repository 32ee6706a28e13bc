"""The facts of a Transformer of CTranslate2, from the shapes of its tables, and the account of all of them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.account import check_heads
from pellucid.checkpoints.convert.ctranslate2_words import Words
from pellucid.errors import CheckpointMismatchError, several

PARTS = (
    *("attention_norm", "attention.query", "attention.key", "attention.value", "attention.output"),
    *("cross_attention_norm", "cross_attention.query", "cross_attention.key", "cross_attention.value"),
    *("cross_attention.output", "feed_forward_norm", "feed_forward.up", "feed_forward.down"),
)
"""What a layer consists of; an encoder's has no cross-attention."""


def facts_of(folder: Path, tensors: dict[str, Tensor], heads: int, words: Words) -> dict[str, Any]:
    """The config.json, from the shapes."""
    try:
        target, width = tensors["decoder.embeddings.token.weight"].shape
        source = tensors["encoder.embeddings.token.weight"].shape[0]
        inner = [tensors[f"{side}.layers.0.feed_forward.up.weight"].shape[0] for side in ("encoder", "decoder")]
    except (KeyError, ValueError) as error:
        raise CheckpointMismatchError(f"{folder} lacks {error}, which every Transformer has") from error
    check_heads(heads, width)
    words.check(source, target)
    layers = [_layers(tensors, side) for side in ("encoder", "decoder")]
    tied = _tie(tensors)
    begin, end = words.target_id("<s>"), words.target_id("</s>")
    return {
        "model_type": "transformer",
        "architectures": ["Transformer"],
        "vocab_size": target,
        **({"source_vocab_size": source} if source != target else {}),
        "hidden_size": width,
        "num_hidden_layers": layers[0],
        "num_decoder_layers": layers[1],
        "num_attention_heads": heads,
        "decoder_attention_heads": heads,
        "intermediate_size": inner[0],
        "decoder_intermediate_size": inner[1],
        "hidden_act": "relu",
        "residual": "pre",
        "layer_norm_eps": 1e-5,
        "scale_embedding": True,
        "waves": "tensor2tensor",
        "position_offset": 1,
        "max_position_embeddings": 512,
        "share_embeddings": False,
        "tie_word_embeddings": tied,
        "logits_bias": "head.bias" in tensors,
        "is_encoder_decoder": True,
        "bos_token_id": begin,
        "eos_token_id": end,
        "decoder_start_token_id": begin,
        "pad_token_id": None,
        "dtype": str(tensors["decoder.embeddings.token.weight"].dtype).removeprefix("torch."),
    }


def _layers(tensors: dict[str, Tensor], side: str) -> int:
    return len({name.split(".")[2] for name in tensors if name.startswith(f"{side}.layers.")})


def _tie(tensors: dict[str, Tensor]) -> bool:
    """Whether the decoder reads and writes words by one table; then it is kept once."""
    words, head = tensors["decoder.embeddings.token.weight"], tensors.get("head.decoder.weight")
    if head is None:
        return True
    if head.shape == words.shape and torch.equal(head, words):
        del tensors["head.decoder.weight"]
        return True
    return False


def check_account(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Nothing missing, every shape as the rest says."""
    wanted = _wanted(config)
    missing = [name for name in wanted if name not in tensors]
    odd = [
        f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    beyond = [name for name in tensors if name not in wanted]
    if missing or odd or beyond:
        parts = [f"{len(missing)} missing ({several(missing, 3)})"] if missing else []
        parts += [f"{len(beyond)} too many ({several(beyond, 3)})"] if beyond else []
        raise CheckpointMismatchError(f"{folder} is no whole Transformer: {'; '.join([*parts, *odd[:3]])}")


def _wanted(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor with its shape."""
    width, words = config["hidden_size"], config["vocab_size"]
    wanted: dict[str, tuple[int, ...]] = {
        "encoder.embeddings.token.weight": (config.get("source_vocab_size", words), width),
        "decoder.embeddings.token.weight": (words, width),
        **({} if config["tie_word_embeddings"] else {"head.decoder.weight": (words, width)}),
        **({"head.bias": (words,)} if config["logits_bias"] else {}),
    }
    sides = (("encoder", config["num_hidden_layers"], ""), ("decoder", config["num_decoder_layers"], "decoder_"))
    for side, count, prefix in sides:
        inner = config[f"{prefix}intermediate_size"]
        wanted |= {f"{side}.norm.{last}": (width,) for last in ("weight", "bias")}
        for i in range(count):
            for part in PARTS:
                if side == "encoder" and part.startswith("cross_"):
                    continue
                rows = inner if part.endswith(".up") else width
                columns = inner if part.endswith(".down") else width
                shape = (width,) if part.endswith("norm") else (rows, columns)
                wanted |= {f"{side}.layers.{i}.{part}.weight": shape, f"{side}.layers.{i}.{part}.bias": shape[:1]}
    return wanted
