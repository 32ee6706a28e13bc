"""Small untrained models of every family with a selected head, and MiniLM's tokenizer."""

import torch

import pellucid
from pellucid import Config
from pellucid.checkpoints.families import families
from pellucid.text import Tokenizer
from tests.trace.small_models import FAMILY_SIZES, SIZES

DECODER_SIZES = {"num_decoder_layers": 2, "decoder_attention_heads": 3, "decoder_intermediate_size": 28}


def families_with_heads(*names: str) -> list[tuple[str, str]]:
    """Pairs of every family and each of these heads that it has."""
    return sorted(
        {
            (family, page.head.name)
            for family, facts in families().items()
            for page in facts.heads
            if page.head is not None and page.head.name in names
        }
    )


def built_model(
    tokenizer: Tokenizer, family: str, head: str | None = None, dtype: str = "float64", **changes: object
) -> pellucid.Model:
    """A model of the family, with biases and gains away from 0 and 1, which a fresh model has."""
    pair = (
        DECODER_SIZES | {"eos_token_id": tokenizer.sep_token_id} if Config.of(family).kind == "encoder-decoder" else {}
    )
    facts = SIZES | FAMILY_SIZES.get(family, {}) | pair | {"vocab_size": len(tokenizer), "initializer_range": 0.2}
    config = Config.of(family).replace(**(facts | changes))
    if head is not None:
        config = config.replace(head=families()[family].head_named(head))
    model = pellucid.build(config, seed=3, dtype=dtype, tokenizer=tokenizer)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model
