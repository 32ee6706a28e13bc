"""A small untrained model of every family, with every head that it may have, and MiniLM's tokenizer."""

import torch

import pellucid
from pellucid import Config
from pellucid.checkpoints.families import families
from pellucid.config import Head
from pellucid.text import Tokenizer
from tests.trace.small_models import OTHERS, SMALL

ODD = OTHERS | {
    "llama": {"num_key_value_heads": 2, "head_dim": 10},
    "t5": {"head_dim": 5, "num_buckets": 8},
}
PAIR = {"num_decoder_layers": 2, "decoder_attention_heads": 3, "decoder_intermediate_size": 28}

FAMILIES = sorted(families())
HEADS = [(name, page.head) for name, family in sorted(families().items()) for page in family.heads]
"""Every family with every head."""


def config_of(family: str, head: Head | None = None, **changes: object) -> Config:
    """A config with odd sizes, so that no two axes have the same length by chance."""
    pair = PAIR if Config.of(family).kind == "encoder-decoder" else {}
    facts = {"vocab_size": 99} | SMALL | ODD.get(family, {}) | pair | changes
    known = Config.of(family)
    facts = {name: value for name, value in facts.items() if name != "num_buckets" or hasattr(known, name)}
    return known.replace(head=head, **facts)


def model_of(
    family: str, words: Tokenizer, *, head: Head | None = None, attention: str = "fused", dtype: str = "float32"
) -> pellucid.Model:
    """A model with a tokenizer; its weights are larger than fresh ones, so that no value is nearly zero."""
    config = config_of(family, head, vocab_size=len(words))
    model = pellucid.build(config, seed=3, tokenizer=words, attention=attention, dtype=dtype)
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
    return model
