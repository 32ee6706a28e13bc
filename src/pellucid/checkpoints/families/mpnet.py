"""MPNet: RoBERTa's positions, and a bias per distance of two tokens in every layer (Song et al., 2020,
arXiv:2004.09297)."""

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.families import bert, roberta
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.names import TensorNames
from pellucid.config import Config, Learned, RelativeBias

defaults = Config(
    family="mpnet",
    vocab_size=30527,
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    position=Learned(max_position_embeddings=512, skip_padding=True),
    attention_position=RelativeBias(relative_attention_num_buckets=32, relative_attention_max_distance=128),
    pooler=True,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
)

keys = Keys(
    unrenamed=tuple(
        key for key in roberta.keys.unrenamed if key not in ("type_vocab_size", "classifier_dropout", "pad_token_id")
    ),
    # the reference sizes the table by the key but buckets by 32, and takes 1 as the padding id of positions
    fixed={"relative_attention_num_buckets": 32, "pad_token_id": 1},
)

names = TensorNames(
    prefix="mpnet.",
    body=(
        ("embeddings.word_embeddings", "embeddings.token"),
        ("embeddings.position_embeddings", "embeddings.position"),
        ("embeddings.LayerNorm", "embeddings.norm"),
        ("encoder.relative_attention_bias", "relative_bias.table"),
        ("encoder.layer.{i}.attention.attn.q", "layers.{i}.attention.query"),
        ("encoder.layer.{i}.attention.attn.k", "layers.{i}.attention.key"),
        ("encoder.layer.{i}.attention.attn.v", "layers.{i}.attention.value"),
        ("encoder.layer.{i}.attention.attn.o", "layers.{i}.attention.output"),
        ("encoder.layer.{i}.attention.LayerNorm", "layers.{i}.attention_norm"),
        ("encoder.layer.{i}.intermediate.dense", "layers.{i}.feed_forward.up"),
        ("encoder.layer.{i}.output.dense", "layers.{i}.feed_forward.down"),
        ("encoder.layer.{i}.output.LayerNorm", "layers.{i}.feed_forward_norm"),
        ("pooler.dense", "pooler.dense"),
    ),
    dropped=bert.names.dropped,
)

family = Family(defaults, keys, names, roberta.heads("MPNet"))
