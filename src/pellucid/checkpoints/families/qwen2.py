"""Qwen2: Llama with a bias for query, key and value alone (Yang et al., 2024, arXiv:2407.10671)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import llama
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.rope import ROPE

defaults = llama.defaults.replace(
    family="qwen2",
    vocab_size=151936,
    intermediate_size=22016,
    max_position_embeddings=32768,
    qkv_bias=True,
    bos_token_id=None,
    eos_token_id=None,
)

keys = Keys(
    unrenamed=tuple(key for key in llama.unrenamed_keys if key != "head_dim"),
    renamed=llama.dropout,
    computed=(ROPE,),
    fixed={"use_sliding_window": False},
    # the window keys matter only where windows are used
    inert=("sliding_window", "max_window_layers", "layer_types", "use_mrope"),
)

family = Family(defaults, keys, llama.names, llama.heads("Qwen2"))
