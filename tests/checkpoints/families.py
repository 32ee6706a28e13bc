"""A tiny checkpoint of every family, built by pellucid itself, and every key that its `config.json` may hold."""

import json
from pathlib import Path
from typing import Any

import torch

import pellucid
from pellucid.checkpoints.families import families
from pellucid.checkpoints.family_page import Family
from tests.conftest import as_trained

_SHAPE = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_POSITIONS = {"max_position_embeddings": 32}
_DECODER = {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = _SHAPE | _POSITIONS | _IDS | {"num_key_value_heads": 2}

TINY: dict[str, dict[str, Any]] = {
    "bert": _SHAPE | _POSITIONS,
    "distilbert": _SHAPE | _POSITIONS,
    "roberta": _SHAPE | _POSITIONS,
    "xlm-roberta": _SHAPE | _POSITIONS,
    "camembert": _SHAPE | _POSITIONS,
    "albert": _SHAPE | _POSITIONS | {"embedding_size": 16},
    "electra": _SHAPE | _POSITIONS | {"embedding_size": 16},
    "mpnet": _SHAPE | _POSITIONS,
    "gpt2": _SHAPE | _POSITIONS | {"bos_token_id": 1, "eos_token_id": 2},
    "llama": _GROUPED | {"head_dim": 8},
    "mistral": _GROUPED | {"sliding_window": 5},
    "qwen2": _GROUPED,
    "bart": _SHAPE | _POSITIONS | _DECODER,
    "t5": _SHAPE
    | _DECODER
    | {"head_dim": 6, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
    "transformer": _SHAPE | _POSITIONS | _DECODER,
}
"""Small sizes for every family, under our names; all other facts are the family's."""

HEADS = {
    "encoder": "masked-lm",
    "decoder": "causal-lm",
    "encoder-decoder": "sequence-to-sequence-lm",
}


def family(model_type: str) -> Family:
    return families()[model_type]


def save(model_type: str, folder: Path, *, head: bool = True, **facts: Any) -> Path:
    """A tiny checkpoint with the head that the family is trained with, or without a head."""
    config = pellucid.Config.of(model_type, **(TINY[model_type] | facts))
    if head:
        config = config.replace(head=family(model_type).head_named(HEADS[config.kind]))
    return as_trained(pellucid.build(config, seed=1)).save(folder)


def config_keys(model_type: str) -> list[str]:
    """Every key of `config.json` that the family's page reads or requires, and some that every page reads."""
    page = family(model_type).keys
    computed = [key for part in page.computed for key in part.keys]
    return sorted({*page.our_names, *page.aliases, *page.fixed, *computed, "architectures", "id2label", "num_labels"})


EVERY_KEY = [(model_type, key) for model_type in TINY for key in config_keys(model_type)]


def assert_runs(folder: Path) -> None:
    """Loads a checkpoint and runs one pass, whose outputs have the right shapes; errors are left to the caller."""
    model = pellucid.load(folder)
    config = model.config
    rows = (
        min(config.vocab_size, config.source_vocab_size or config.vocab_size) if config.decoder else config.vocab_size
    )
    length = min(5, config.max_sequence_length or 5)
    ids = torch.arange(length)[None] % rows
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = model(**inputs, **({"decoder_input_ids": ids} if config.decoder else {}))
    assert found["last_hidden_state"].shape == (1, length, config.hidden_size)
    if config.head is not None and "logits" in found:
        assert found["logits"].shape[0] == 1


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))
