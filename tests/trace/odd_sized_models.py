"""A small untrained model of every family, with every head that it may have, and MiniLM's tokenizer."""

import torch

import pellucid
from pellucid import Config
from pellucid.checkpoints.families import families
from pellucid.config import Head
from pellucid.text import Tokenizer
from tests.trace.small_models import FAMILY_SIZES, SIZES

ODD_SIZES = FAMILY_SIZES | {
    "llama": {"num_key_value_heads": 2, "head_dim": 10},
    "t5": {"head_dim": 5, "num_buckets": 8},
}
DECODER_SIZES = {"num_decoder_layers": 2, "decoder_attention_heads": 3, "decoder_intermediate_size": 28}

FAMILIES = sorted(families())
FAMILIES_AND_HEADS = [(name, page.head) for name, family in sorted(families().items()) for page in family.heads]
"""Every family with every head."""


def config_of(family: str, head: Head | None = None, **changes: object) -> Config:
    """A config with odd sizes, so that no two axes have the same length by accident."""
    pair = DECODER_SIZES if Config.of(family).kind == "encoder-decoder" else {}
    facts = {"vocab_size": 99} | SIZES | ODD_SIZES.get(family, {}) | pair | changes
    defaults = Config.of(family)
    facts = {name: value for name, value in facts.items() if name != "num_buckets" or hasattr(defaults, name)}
    return defaults.replace(head=head, **facts)


def model_of(
    family: str, tokenizer: Tokenizer, *, head: Head | None = None, attention: str = "fused", dtype: str = "float32"
) -> pellucid.Model:
    """A model with a tokenizer; its weights are larger than fresh ones, so that no value is nearly zero."""
    config = config_of(family, head, vocab_size=len(tokenizer))
    model = pellucid.build(config, seed=3, tokenizer=tokenizer, attention=attention, dtype=dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model
