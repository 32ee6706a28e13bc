"""Mistral: Llama with sliding-window and grouped-query attention (Jiang et al., 2023, arXiv:2310.06825)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import llama
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.rope import ROPE

defaults = llama.defaults.replace(
    family="mistral",
    intermediate_size=14336,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    sliding_window=4096,
)

keys = Keys(unrenamed=(*llama.unrenamed_keys, "sliding_window"), renamed=llama.dropout, computed=(ROPE,))

family = Family(defaults, keys, llama.names, llama.heads("Mistral", answer_prefix=None))
