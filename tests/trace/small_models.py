"""Small random models of every family, in which edits make a measurable difference."""

import pellucid
from pellucid import Config
from pellucid.checkpoints.families import families, family_of

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
FAMILY_SIZES = {
    "albert": {"embedding_size": 16},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 3},
    "qwen2": {"num_key_value_heads": 1},
}
DECODER_SIZES = {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40}
HEADS = {"encoder": "masked-lm", "decoder": "causal-lm", "encoder-decoder": "sequence-to-sequence-lm"}
FAMILIES = sorted(families())


def small_model(
    family: str, source: pellucid.Model, *, attention: str = "fused", dtype: str = "float32", **facts: object
) -> pellucid.Model:
    """An untrained model of the family with its usual head, if it has one, and the tokenizer of `source`."""
    kind = Config.of(family).kind
    pair = DECODER_SIZES if kind == "encoder-decoder" else {}
    config = Config.of(
        family, vocab_size=len(source.tokenizer), **SIZES, **FAMILY_SIZES.get(family, {}), **pair, **facts
    )
    config = config.replace(head=family_of(family, "config").head_named(HEADS[kind]), initializer_range=0.3)
    return pellucid.build(config, seed=3, tokenizer=source.tokenizer, attention=attention, dtype=dtype)
