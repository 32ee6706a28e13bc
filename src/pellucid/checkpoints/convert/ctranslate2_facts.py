"""The facts of a Transformer of CTranslate2, from the shapes of its tables, and the account of all of them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.convert.account import check_heads
from pellucid.checkpoints.convert.ctranslate2_words import Words
from pellucid.checkpoints.families import family_of
from pellucid.checkpoints.plan import make_plan
from pellucid.checkpoints.weights import Stored
from pellucid.config.checks import within
from pellucid.errors import CheckpointMismatchError, blaming
from pellucid.files import read_json

USUAL = {
    "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>",
    "add_source_bos": False, "add_source_eos": False, "multi_query_attention": False,
}  # fmt: skip
"""What the config.json of newer folders may say; anything else is not understood."""


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
    epsilon = _epsilon(folder)
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
        "dtype": str(tensors["decoder.embeddings.token.weight"].dtype).removeprefix("torch."),
    }


def _epsilon(folder: Path) -> float:
    """What norms add, which a newer folder says in its config.json; what else that says must be the usual."""
    path = folder / "config.json"
    said = read_json(path) if path.is_file() else {}
    for key, usual in USUAL.items():
        if said.get(key) not in (None, usual):
            raise CheckpointMismatchError(f"{path}: {key} is {ascii(said[key])[:60]}; only {usual!r} is understood")
    found = said.get("layer_norm_epsilon")
    if found is None:
        return 1e-5
    with blaming(path, CheckpointMismatchError):
        within("layer_norm_epsilon", found, above=0.0, below=1.0)
    return float(found)


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
    """Nothing missing, every shape as the rest says: the account by which the new folder will be opened."""
    family, said_in = family_of(config["model_type"], str(folder)), folder / "model.safetensors"
    held = {name: Stored(value.dtype, tuple(value.shape), lambda value=value: value) for name, value in tensors.items()}
    misfit = f"{folder} is no whole Transformer"  # of which no file says what it is but the one that is judged
    make_plan(family, family.read(config, said_in), held, said_in, new_head=False, misfit=misfit)
