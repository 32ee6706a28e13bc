"""The original Transformer against PyTorch's own layers with our weights."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import pellucid
from pellucid import Config
from pellucid.config import SequenceToSequenceLM

FACTS = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
DECODER_FACTS = {"num_decoder_layers": 2, "decoder_attention_heads": 4, "decoder_intermediate_size": 40}


def copy_weights(theirs: nn.Module, ours: nn.Module) -> None:
    """Copies our weights into a layer of PyTorch's, which joins query, key and value in one matrix."""
    pairs = [("self_attn", ours.attention), ("multihead_attn", ours.cross_attention)]
    for name, attention in pairs:
        if attention is not None:
            projections = (attention.query, attention.key, attention.value)
            target = getattr(theirs, name)
            target.in_proj_weight.copy_(torch.cat([part.weight for part in projections]))
            target.in_proj_bias.copy_(torch.cat([part.bias for part in projections]))
            target.out_proj.load_state_dict(attention.output.state_dict())
    norms = [ours.attention_norm, ours.cross_attention_norm, ours.feed_forward_norm]
    for i, norm in enumerate((norm for norm in norms if norm is not None), start=1):
        getattr(theirs, f"norm{i}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())


@pytest.fixture(params=["post", "pre"])
def model(request: pytest.FixtureRequest) -> pellucid.Model:
    config = Config.of("transformer", **FACTS, **DECODER_FACTS, residual=request.param, head=SequenceToSequenceLM())
    model = pellucid.build(config, seed=1, dtype="float64")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return model


@torch.no_grad()
def test_outputs_equal_those_of_pytorch_layers(model: pellucid.Model) -> None:
    pre = model.config.residual == "pre"
    shape = {"d_model": 24, "nhead": 4, "dim_feedforward": 40, "dropout": 0.0, "batch_first": True, "norm_first": pre}
    encoder = [nn.TransformerEncoderLayer(**shape, dtype=torch.float64).eval() for _ in range(3)]
    decoder = [nn.TransformerDecoderLayer(**shape, dtype=torch.float64).eval() for _ in range(2)]
    for there, here in [*zip(encoder, model.module.encoder.layers), *zip(decoder, model.module.decoder.layers)]:
        copy_weights(there, here)
    ids = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(2))
    target_ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    memory, table = embed_with_positions(model, ids), model.module.encoder.embeddings.token.weight
    for layer in encoder:
        memory = layer(memory, src_key_padding_mask=mask == 0)
    memory = model.module.encoder.norm(memory)
    stream, causal_mask = (
        embed_with_positions(model, target_ids),
        nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64),
    )
    for layer in decoder:
        stream = layer(stream, memory, tgt_mask=causal_mask, memory_key_padding_mask=mask == 0)
    stream = model.module.decoder.norm(stream)
    found = model(ids, mask, decoder_input_ids=target_ids)
    not_padding = mask.bool()
    torch.testing.assert_close(found.encoder_last_hidden_state[not_padding], memory[not_padding], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.last_hidden_state, stream, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.logits, stream @ table.T, rtol=0, atol=1e-9)


def embed_with_positions(model: pellucid.Model, ids: torch.Tensor) -> torch.Tensor:
    """Embeddings times the square root of their width, plus the paper's sinusoids (section 3.5), computed anew."""
    rows = [
        [
            math.sin(position / 10000 ** (c / 24)) if c % 2 == 0 else math.cos(position / 10000 ** ((c - 1) / 24))
            for c in range(24)
        ]
        for position in range(ids.shape[1])
    ]
    return model.module.encoder.embeddings.token.weight[ids] * math.sqrt(24) + torch.tensor(rows, dtype=torch.float64)


def test_saved_model_has_the_same_config_and_weights(model: pellucid.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "a")
    again = pellucid.load(tmp_path / "a", dtype="float64")
    assert again.config == model.config
    ours, theirs = model.module.state_dict(), again.module.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
