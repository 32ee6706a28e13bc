"""Positions, embeddings, norms, layers, activations."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pellucid import blocks
from pellucid.blocks.copies import evaluation_copy, packed_copy
from pellucid.blocks.packed import PackedLinear
from pellucid.blocks.packing import Packing, float_packing


def test_sinusoids_equal_the_papers_formula() -> None:
    waves = blocks.SinusoidalPositions(50, 6)(torch.arange(50)[None], torch.zeros(1, 50))[0]
    for position in (0, 1, 7, 49):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            assert waves[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert waves[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize(("width", "waves"), [(5, "interleaved"), (2, "tensor2tensor")])
def test_sinusoids_of_an_odd_or_the_least_width(width: int, waves: Any) -> None:
    found = blocks.SinusoidalPositions(9, width, waves=waves)(torch.arange(9)[None], torch.zeros(1, 9))
    assert found.shape == (1, 9, width) and found.isfinite().all()


def test_embeddings_are_the_sum_of_their_parts() -> None:
    embeddings = blocks.Embeddings(10, 4, position=blocks.LearnedPositions(6, 4), type_vocab_size=2).eval()
    ids, types = torch.tensor([[3, 1]]), torch.tensor([[0, 1]])
    expected = embeddings.token.weight[ids] + embeddings.type.weight[types] + embeddings.position.weight[None, :2]
    torch.testing.assert_close(embeddings(ids, types), expected)
    torch.testing.assert_close(embeddings(ids), embeddings(ids, torch.zeros_like(ids)))


def test_pre_and_post_norm_layers_equal_their_formulas() -> None:
    torch.manual_seed(2)
    attention, feed_forward = blocks.Attention(8, 2), blocks.FeedForward(8, 16, activation="relu")
    first, second = blocks.LayerNorm(8), blocks.LayerNorm(8)
    x = torch.randn(1, 5, 8)
    post = blocks.PostNormLayer(attention, feed_forward, first, second)(x, blocks.Pass())
    mid = first(x + attention(x))
    torch.testing.assert_close(post, second(mid + feed_forward(mid)))
    pre = blocks.PreNormLayer(attention, feed_forward, first, second)(x, blocks.Pass())
    mid = x + attention(first(x))
    torch.testing.assert_close(pre, mid + feed_forward(second(mid)))
    for kind, whole in ((blocks.PostNormLayer, post), (blocks.PreNormLayer, pre)):
        first_alone = kind(attention, feed_forward, first, second)(x, blocks.Pass(first=True))
        torch.testing.assert_close(first_alone, whole[:, :1])


@pytest.mark.parametrize("kind", [blocks.FeedForward, blocks.GatedFeedForward])
@pytest.mark.parametrize("name", ["dropout", "activation_dropout"])
def test_feed_forward_applies_each_dropout_in_training_only(kind: type, name: str) -> None:
    block, x = kind(8, 16, **{name: 0.5}), torch.randn(1, 5, 8)
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))


@pytest.mark.parametrize("name", blocks.ACTIVATIONS)
def test_activations_equal_the_reference(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 999)
    assert torch.equal(blocks.ACTIVATIONS[name](x), ACT2FN[name](x))


@pytest.mark.parametrize("name", blocks.ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_feed_forward_matches_the_plain_one(name: str, dtype: torch.dtype) -> None:
    block = blocks.FeedForward(32, 64, activation=name).eval()
    x = torch.randn(3, 5, 32)
    with torch.inference_mode():
        found = packed_copy(block, float_packing(dtype, torch.device("cpu")))(x.to(dtype)).float()
        tolerance = 1e-6 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(found, block(x), rtol=0, atol=tolerance)


def test_packing_depends_on_onednn_and_the_dtype() -> None:
    block = packed_copy(torch.nn.Linear(8, 8), Packing(torch.float32))
    assert isinstance(block, PackedLinear) == torch.backends.mkldnn.is_available()
    assert not isinstance(packed_copy(torch.nn.Linear(8, 8), Packing(torch.float64)), PackedLinear)


def test_evaluation_copy_shares_weights_and_leaves_training_mode_alone() -> None:
    block = blocks.FeedForward(8, 16, dropout=0.5).train()
    copied = evaluation_copy(block)
    assert block.training and block.dropout.training and not copied.dropout.training
    assert copied.up.weight is block.up.weight
    x = torch.randn(2, 3, 8)
    assert torch.equal(copied(x), copied(x))
    assert evaluation_copy(block.eval()) is block


def test_values_of_padding_causal_and_additive_masks() -> None:
    assert blocks.padding_mask(None) is None
    assert blocks.padding_mask(torch.ones(2, 3)) is None
    assert blocks.padding_mask(torch.tensor([[1, 0]])).tolist() == [[[[True, False]]]]
    assert blocks.causal_mask(2, 3)[0, 0].tolist() == [[True, True, False], [True, True, True]]
    bias = torch.tensor([[1.0, 2.0]])
    summand = blocks.mask.additive_mask(torch.tensor([[True, False]]), bias, torch.float32)
    assert summand.tolist() == [[1.0, torch.finfo(torch.float32).min]]
    assert F.softmax(summand, dim=-1).tolist() == [[1.0, 0.0]]
