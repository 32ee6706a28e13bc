"""Builds modules from a `Config`. Only this file reads one: blocks do not see it, and callers do not choose blocks."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pellucid import blocks
from pellucid import config as facts
from pellucid.config import Config
from pellucid.config.checks import check_one_of
from pellucid.errors import Argument, InputError
from pellucid.machine import NARROWER_FLOATS, inference_mode, memory_errors, no_grad, require_memory
from pellucid.models import heads
from pellucid.models.decoder import Decoder
from pellucid.models.encoder import Encoder
from pellucid.models.encoder_decoder import EncoderDecoder
from pellucid.models.parameters import count
from pellucid.models.stack import Stack

Network = Encoder | Decoder | EncoderDecoder
ATTENTION = ("fused", "explicit")
"""How attention is computed: by one fused kernel, or step by step."""


def assemble(config: Config, *, attention: str = "fused") -> Network:
    """Returns the module that `config` describes, its weights uninitialised, on PyTorch's current default device.

    attention: one of `ATTENTION`.
    """
    check_one_of("attention", attention, ATTENTION)
    explicit = attention == "explicit"
    match config.kind:
        case "encoder":
            pooler = heads.Pooler(config.hidden_size) if config.pools else None
            module: Network = Encoder(**_stack_arguments(config, explicit), pooler=pooler, head=_head(config))
        case "decoder":
            module = Decoder(**_stack_arguments(config, explicit), head=_head(config))
        case _:
            module = _encoder_decoder(config, explicit)
    return module.eval()


def tied_parameters(config: Config) -> dict[str, str]:
    """Returns tied parameters as {alias: source}; a checkpoint file may leave the alias out."""
    is_head_tied = config.tie_word_embeddings and config.head is not None and config.head.answers == "vocabulary"
    if config.decoder is None:
        return {"head.decoder.weight": "embeddings.token.weight"} if is_head_tied else {}
    first = "encoder.embeddings.token.weight" if config.decoder.share_embeddings else "decoder.embeddings.token.weight"
    tied = {"decoder.embeddings.token.weight": first} if config.decoder.share_embeddings else {}
    return tied | ({"head.decoder.weight": first} if is_head_tied else {})


def allocate(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Allocates memory for a module that was built on the meta device; the values are uninitialised.

    (PyTorch's own `to_empty` does the same, but imports half a second of symbolic algebra.) Even within
    `torch.inference_mode` the parameters become normal tensors, with version counters and gradients.
    """
    with inference_mode(False):
        module._apply(lambda tensor: torch.empty(tensor.shape, device=device, dtype=dtype))


@no_grad()
def initialise(module: nn.Module, std: float, seed: int) -> None:
    """Initialises weights as the reference does for most families: weight matrices normal with standard deviation
    `std`, padding rows and biases 0, gains 1. (It scales some weights of GPT-2 by depth, and those of T5 by width.)

    The global random generator is not used.
    """
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        match part:
            case nn.Linear() | nn.Embedding():
                drawn = torch.randn(part.weight.shape, generator=generator, dtype=torch.float32, device="cpu")
                part.weight.copy_(drawn * std)
                if isinstance(part, nn.Linear) and part.bias is not None:
                    part.bias.zero_()
                if isinstance(part, nn.Embedding) and part.padding_idx is not None:
                    part.weight[part.padding_idx].zero_()
            case nn.LayerNorm() | blocks.RMSNorm():
                part.reset_parameters()
            case heads.NextToken():
                if part.bias is not None:
                    part.bias.zero_()
            case _ if names := [name for name, _ in part.named_parameters(recurse=False)]:
                raise TypeError(f"no initialisation is defined for {type(part).__name__}, which has {', '.join(names)}")


@memory_errors()
def untrained_network(
    config: Config,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    attention: str,
    alternatives: Mapping[str, int] = NARROWER_FLOATS,
) -> Network:
    """Returns a complete model with random weights.

    alternatives: dtypes and bit widths that the error may suggest when memory is short; see `require_memory`, whose
        ResourceError it raises.
    """
    with torch.device("meta"):
        module = assemble(config, attention=attention)
    require_memory(count(module), dtype.itemsize * 8, device, alternatives)
    allocate(module, device, dtype)
    initialise(module, config.initializer_range, seed)
    tie_parameters(module, tied_parameters(config))
    return module


def attention_of(module: Network) -> str:
    """Returns how the module computes attention: one of `ATTENTION`."""
    explicit = any(part.explicit for part in module.modules() if isinstance(part, blocks.Attention))
    return "explicit" if explicit else "fused"


def tie_parameters(module: nn.Module, tied: dict[str, str]) -> None:
    """Makes each tied parameter the same object as its source. Raises InputError where their shapes differ."""
    for name, source in tied.items():
        shared, shape = module.get_parameter(source), module.get_parameter(name).shape
        if shape != shared.shape:
            unlike = f"{name} {[*shape]} cannot be tied to {source} {[*shared.shape]}: pass "
            raise InputError(unlike, Argument("tie_word_embeddings", False), ", or embeddings as wide as the model")
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, shared)


# -- the parts --------------------------------------------------------------------------------------------------------


def _encoder_decoder(config: Config, explicit: bool) -> EncoderDecoder:
    decoder_facts = config.decoder
    assert decoder_facts is not None  # checked by the config
    decoder_config = config.replace(
        num_hidden_layers=decoder_facts.num_decoder_layers,
        num_attention_heads=decoder_facts.decoder_attention_heads,
        intermediate_size=decoder_facts.decoder_intermediate_size,
    )
    return EncoderDecoder(
        Stack(**_stack_arguments(config, explicit, rows=decoder_facts.source_vocab_size)),
        Stack(**_stack_arguments(decoder_config, explicit, cross=True), causal=True),
        head=_head(config),
        start_token_id=decoder_facts.decoder_start_token_id,
    )


def _stack_arguments(config: Config, explicit: bool, cross: bool = False, rows: int | None = None) -> dict[str, Any]:
    """Returns the arguments of a `Stack`.  rows: rows of its token embedding, where it has its own vocabulary."""
    num_layers = config.num_hidden_groups or config.num_hidden_layers
    return {
        "embeddings": _embeddings(config, rows),
        "layers": [_layer(config, explicit, cross) for _ in range(num_layers)],
        "norm": _norm(config) if config.residual == "pre" else None,
        "dropout": config.dropout.probability("last_dropout"),
        "depth": config.num_hidden_layers,
        "window": config.attention.sliding_window,
        "rotary": rotary_of(config),
        "relative_bias": _relative_bias(config, bidirectional=not cross and config.kind != "decoder"),
    }


def _relative_bias(config: Config, bidirectional: bool) -> blocks.RelativeBias | None:
    match config.attention_position:
        case facts.RelativeBias(buckets, distance):
            return blocks.RelativeBias(buckets, distance, config.num_attention_heads, bidirectional=bidirectional)
        case _:
            return None


def rotary_of(config: Config) -> Any:
    """Returns the `RotaryPositions` of such a model, or None where attention is not rotary."""
    match config.attention_position:
        case facts.Rotary(theta, _, scaling):
            return blocks.RotaryPositions(config.head_dim, theta, _rope_scaling(scaling))
        case _:
            return None


def _rope_scaling(scaling: facts.Llama3Scaling | facts.LinearScaling | None) -> Any:
    match scaling:
        case facts.Llama3Scaling(factor, low, high, length):
            return functools.partial(blocks.llama3_scaling, factor=factor, low=low, high=high, length=length)
        case facts.LinearScaling(factor):
            return functools.partial(blocks.linear_scaling, factor=factor)
        case None:
            return None


def _norm(config: Config, width: int | None = None) -> nn.Module:
    match config.norm:
        case facts.LayerNorm(eps):
            return nn.LayerNorm(width or config.hidden_size, eps=eps)
        case facts.RMSNorm(eps):
            return blocks.RMSNorm(width or config.hidden_size, eps=eps)


def _embeddings(config: Config, rows: int | None = None) -> blocks.Embeddings:
    return blocks.Embeddings(
        rows or config.vocab_size,
        config.hidden_size,
        position=_position(config),
        type_vocab_size=config.type_vocab_size,
        norm=_norm(config, config.embedding_size) if config.embedding_norm else None,
        dropout=config.dropout.probability("embedding_dropout"),
        pad_token_id=_padding_index(config),
        width=config.embedding_size,
        projected=config.embedding_projection,
        scale=config.hidden_size**0.5 if config.scale_embedding else 1.0,
    )


def _padding_index(config: Config) -> int | None:
    """The embedding row that is never trained; None where that token also starts the decoder."""
    starts = None if config.decoder is None else config.decoder.decoder_start_token_id
    return None if config.trainable_padding or config.pad_token_id == starts else config.pad_token_id


def _position(config: Config) -> blocks.Positions:
    width = config.embedding_size or config.hidden_size
    match config.position:
        case facts.Learned(length, _, True):
            return blocks.PaddingAwarePositions(length, width, config.pad_token_id or 0)
        case facts.Learned(length, offset):
            return blocks.LearnedPositions(length, width, offset)
        case facts.Sinusoidal(length, offset, waves):
            return blocks.SinusoidalPositions(length, width, offset, waves)
        case facts.NoPosition():
            return blocks.NoPositions()


def _layer(config: Config, explicit: bool, cross: bool) -> nn.Module:
    kind = blocks.PostNormLayer if config.residual == "post" else blocks.PreNormLayer
    return kind(
        _attention(config, explicit),
        _feed_forward(config),
        attention_norm=_norm(config),
        feed_forward_norm=_norm(config),
        cross_attention=_attention(config, explicit) if cross else None,
        cross_attention_norm=_norm(config) if cross else None,
    )


def _attention(config: Config, explicit: bool) -> blocks.Attention:
    shape = config.attention
    return blocks.Attention(
        config.hidden_size,
        config.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        scale=shape.attention_scale,
        bias=shape.qkv_bias,
        output_bias=shape.output_bias,
        dropout=config.dropout.probability("attention_probs_dropout_prob"),
        output_dropout=config.dropout.probability("attention_output_dropout"),
        explicit=explicit,
    )


def _feed_forward(config: Config) -> nn.Module:
    kind = blocks.GatedFeedForward if isinstance(config.feed_forward, facts.Gated) else blocks.FeedForward
    return kind(
        config.hidden_size,
        config.feed_forward.intermediate_size,
        activation=config.feed_forward.hidden_act,
        dropout=config.dropout.probability("feed_forward_dropout"),
        activation_dropout=config.dropout.probability("activation_dropout"),
        bias=config.feed_forward.feed_forward_bias,
    )


def _head(config: Config) -> nn.Module | None:
    width, dropout_probability = config.hidden_size, config.dropout.probability
    match config.head:
        case facts.MaskedLM(activation):
            narrow = config.embedding_size or width
            activation = activation or config.feed_forward.hidden_act
            return heads.MaskedToken(width, narrow, config.vocab_size, activation, _norm(config, narrow))
        case facts.CausalLM():
            return heads.NextToken(width, config.vocab_size)
        case facts.SequenceToSequenceLM(logits_bias, learns):
            scale = width**-0.5 if config.scale_logits else 1.0
            return heads.NextToken(width, config.vocab_size, scale=scale, bias=logits_bias, trainable_bias=learns)
        case facts.NextSentence():
            return heads.TextLabels(width, len(config.answer_names), (0.0, 0.0), heads.PositionPooling("pooler"))
        case facts.SequenceClassification(place, activation, bias):
            pick = heads.PositionPooling(place, config.pad_token_id, config.end_tokens)
            dropouts = dropout_probability("text_dropout"), dropout_probability("dense_dropout")
            return heads.TextLabels(width, config.num_labels, dropouts, pick, activation=activation, bias=bias)
        case facts.TokenClassification():
            return heads.TokenLabels(width, config.num_labels, dropout_probability("classifier_dropout"))
        case facts.QuestionAnswering():
            return heads.TokenLabels(width, len(config.answer_names), dropout_probability("answer_dropout"))
        case None:
            return None
