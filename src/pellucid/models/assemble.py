"""The only reader of `Config`: facts to modules. Below this file nothing knows a config, above it none picks parts."""

import torch
from torch import nn

from pellucid import blocks
from pellucid import config as facts
from pellucid.config import Config
from pellucid.errors import InputError
from pellucid.models import heads
from pellucid.models.encoder import Encoder

TIES = {"head.decoder.weight": "embeddings.token.weight"}
"""Parameters that are one table under two names, where the config ties them and the file does not hold both."""


def assemble(config: Config, *, attention: str = "fused") -> Encoder:
    """The module that `config` describes, its numbers not yet set; on whatever device is the current one.

    attention: "fused" (one kernel) or "explicit" (step by step).
    """
    if attention not in ("fused", "explicit"):
        raise InputError(f"attention is {attention!r}, expected 'fused' or 'explicit'")
    module = Encoder(
        _embeddings(config),
        [_layer(config, explicit=attention == "explicit") for _ in range(config.num_hidden_layers)],
        norm=_norm(config) if config.residual == "pre" else None,
        pooler=heads.Pooler(config.hidden_size) if config.pools else None,
        head=_head(config),
    )
    return module.eval()


def allocate(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Gives a module that was assembled on the meta device its memory; what stands in it is not yet set.

    (PyTorch's own `to_empty` does the same and loads half a second of symbolic algebra to do it.)
    """
    module._apply(lambda tensor: torch.empty(tensor.shape, device=device, dtype=dtype))


@torch.no_grad()
def initialise(module: nn.Module, std: float, seed: int) -> None:
    """Random numbers as the reference draws them: tables normal with `std`, padding rows and biases 0, gains 1.

    The global random generator is not touched.
    """
    chance = torch.Generator().manual_seed(seed)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            part.weight.copy_(torch.randn(part.weight.shape, generator=chance) * std)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            part.weight[part.padding_idx].zero_()
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.zero_()
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()


def untrained(config: Config, seed: int, device: torch.device, dtype: torch.dtype, attention: str) -> Encoder:
    """A whole model with random numbers."""
    with torch.device("meta"):
        module = assemble(config, attention=attention)
    allocate(module, device, dtype)
    initialise(module, config.initializer_range, seed)
    if config.tie_word_embeddings:
        tie(module)
    return module


def tie(module: nn.Module) -> None:
    """Makes the tied parameters one and the same object."""
    for name, source in TIES.items():
        owner, _, attribute = name.rpartition(".")
        try:
            target = module.get_submodule(owner)
        except AttributeError:
            continue
        setattr(target, attribute, module.get_parameter(source))


def _norm(config: Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.norm.layer_norm_eps)


def _embeddings(config: Config) -> blocks.Embeddings:
    return blocks.Embeddings(
        config.vocab_size,
        config.hidden_size,
        position=_position(config),
        type_vocab_size=config.type_vocab_size,
        norm=_norm(config) if config.residual == "post" else None,
        dropout=config.dropout.hidden_dropout_prob,
        pad_token_id=config.pad_token_id,
    )


def _position(config: Config) -> blocks.LearnedPositions | blocks.SinusoidalPositions | blocks.NoPositions:
    match config.position:
        case facts.Learned(length):
            return blocks.LearnedPositions(length, config.hidden_size)
        case facts.Sinusoidal(length):
            return blocks.SinusoidalPositions(length, config.hidden_size)
        case facts.NoPosition():
            return blocks.NoPositions()


def _layer(config: Config, *, explicit: bool) -> nn.Module:
    kind = blocks.PostNormLayer if config.residual == "post" else blocks.PreNormLayer
    return kind(
        blocks.Attention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.dropout.attention_probs_dropout_prob,
            output_dropout=config.dropout.hidden_dropout_prob,
            explicit=explicit,
        ),
        blocks.FeedForward(
            config.hidden_size,
            config.feed_forward.intermediate_size,
            activation=config.feed_forward.hidden_act,
            dropout=config.dropout.hidden_dropout_prob,
        ),
        attention_norm=_norm(config),
        feed_forward_norm=_norm(config),
    )


def _head(config: Config) -> nn.Module | None:
    width, dropout = config.hidden_size, config.dropout.classifier
    match config.head:
        case facts.MaskedLM():
            return heads.Vocabulary(width, config.vocab_size, config.feed_forward.hidden_act, _norm(config))
        case facts.NextSentence():
            return heads.PooledLabels(width, 2, 0.0)
        case facts.SequenceClassification():
            return heads.PooledLabels(width, config.num_labels, dropout)
        case facts.TokenClassification():
            return heads.TokenLabels(width, config.num_labels, dropout)
        case facts.QuestionAnswering():
            return heads.TokenLabels(width, 2, 0.0)
        case None:
            return None
