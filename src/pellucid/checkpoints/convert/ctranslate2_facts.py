"""The facts of a CTranslate2 Transformer, from the shapes of its tensors, and the check that none is missing."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.completeness import check_heads
from pellucid.checkpoints.convert.ctranslate2_vocabularies import Vocabularies
from pellucid.checkpoints.families import family_of
from pellucid.checkpoints.plan import make_plan
from pellucid.checkpoints.weights import StoredTensor
from pellucid.config.checks import check_range
from pellucid.errors import CheckpointMismatchError, blaming
from pellucid.files import read_json
from pellucid.machine import dtype_name

SUPPORTED_CONFIG = {
    "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>",
    "add_source_bos": False, "add_source_eos": False, "multi_query_attention": False,
}  # fmt: skip
"""The supported values in the config.json of newer folders; any others are refused."""


def config_from_shapes(
    folder: Path, tensors: dict[str, Tensor], heads: int, vocabularies: Vocabularies
) -> dict[str, Any]:
    """The config.json, derived from the shapes."""
    try:
        target, width = tensors["decoder.embeddings.token.weight"].shape
        source = tensors["encoder.embeddings.token.weight"].shape[0]
        inner = [tensors[f"{side}.layers.0.feed_forward.up.weight"].shape[0] for side in ("encoder", "decoder")]
    except (KeyError, ValueError) as error:
        raise CheckpointMismatchError(f"{folder} lacks {error}, which every Transformer has") from error
    check_heads(heads, width)
    vocabularies.check(source, target)
    layers = [_layer_count(tensors, side) for side in ("encoder", "decoder")]
    tied = _tie_embeddings(tensors)
    epsilon = _epsilon(folder)
    begin, end = vocabularies.target_id("<s>"), vocabularies.target_id("</s>")
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
        "layer_norm_eps": epsilon,
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
        "dtype": dtype_name(tensors["decoder.embeddings.token.weight"].dtype),
    }


def _epsilon(folder: Path) -> float:
    """The epsilon of norms, which newer folders give in config.json, after checking the other keys of that file."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    for key, expected in SUPPORTED_CONFIG.items():
        if config.get(key) not in (None, expected):
            raise CheckpointMismatchError(
                f"{path}: {key} is {ascii(config[key])[:60]}; only {expected!r} is understood"
            )
    found = config.get("layer_norm_epsilon")
    if found is None:
        return 1e-5
    with blaming(path, CheckpointMismatchError):
        check_range("layer_norm_epsilon", found, above=0.0, below=1.0)
    return float(found)


def _layer_count(tensors: dict[str, Tensor], side: str) -> int:
    return len({name.split(".")[2] for name in tensors if name.startswith(f"{side}.layers.")})


def _tie_embeddings(tensors: dict[str, Tensor]) -> bool:
    """Whether the decoder's input and output embeddings are equal; then only one is kept."""
    embeddings, head = tensors["decoder.embeddings.token.weight"], tensors.get("head.decoder.weight")
    if head is None:
        return True
    if head.shape == embeddings.shape and torch.equal(head, embeddings):
        del tensors["head.decoder.weight"]
        return True
    return False


def check_tensors(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Checks that no tensor is missing and all shapes fit, with the plan by which the new folder will be opened."""
    family, path = family_of(config["model_type"], str(folder)), folder / "model.safetensors"
    stored = {
        name: StoredTensor(value.dtype, tuple(value.shape), lambda value=value: value)
        for name, value in tensors.items()
    }
    error_start = f"{folder} is not a whole Transformer"  # the facts were derived from these tensors
    make_plan(family, family.read(config, path), stored, path, new_head=False, error_start=error_start)
