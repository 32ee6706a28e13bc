"""Arguments that a user passes to a block: values that PyTorch would silently misread are refused in one sentence."""

import pytest
import torch
from torch import Tensor

from pellucid import InputError, blocks

X = torch.randn(6, 6, 24, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(6, 6).tril()


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    "mask",
    [CAUSAL, CAUSAL[None], CAUSAL[None, None], CAUSAL.long()[None, None], CAUSAL.bool(), CAUSAL.bool()[None]],
    ids=lambda mask: f"{mask.dtype} of {mask.dim()} axes",
)
@pytest.mark.parametrize("causal", [False, True])
def test_mask_of_another_shape_or_dtype_is_refused(mask: Tensor, explicit: bool, causal: bool) -> None:
    attention = blocks.Attention(24, 4, explicit=explicit)
    with pytest.raises(InputError, match=r"mask is .*, expected bool\[batch or 1, 1, seq or 1, source\]"):
        attention(X, blocks.Pass(mask=mask, causal=causal))


def test_bool_causal_mask_equals_the_causal_setting() -> None:
    attention = blocks.Attention(24, 4)
    by_mask = attention(X, blocks.Pass(mask=CAUSAL.bool()[None, None]))
    torch.testing.assert_close(by_mask, attention(X, blocks.Pass(causal=True)))


def test_input_without_a_batch_axis_is_refused() -> None:
    attention = blocks.Attention(24, 1)
    with pytest.raises(InputError, match=r"x is float32\[6, 24\], expected \[batch, seq, hidden\]"):
        attention(X[0])
    with pytest.raises(InputError, match=r"memory is float32\[6, 24\]"):
        attention(X, memory=X[0])


def test_head_counts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="hidden_size 10 cannot be divided evenly among num_heads 3"):
        blocks.Attention(10, 3)
    with pytest.raises(InputError, match="num_heads 4 cannot share num_key_value_heads 3"):
        blocks.Attention(24, 4, num_key_value_heads=3)
    with pytest.raises(InputError, match=r"^num_heads is 0, expected a whole number from 1 on$"):
        blocks.Attention(16, 0)
    with pytest.raises(InputError, match=r"^num_key_value_heads is 0, expected a whole number from 1 on$"):
        blocks.Attention(16, 2, num_key_value_heads=0)
    assert blocks.Attention(10, 3, head_dim=4).query.out_features == 12


def test_bias_of_a_pass_applies_to_a_block_called_alone() -> None:
    attention, bias = blocks.Attention(24, 4), torch.randn(1, 4, 6, 6)
    biased = attention(X, blocks.Pass(bias=bias))
    assert torch.equal(biased, attention(X, bias=bias)) and not torch.allclose(biased, attention(X))
    assert torch.equal(attention(X, blocks.Pass(bias=bias), memory=X), attention(X, memory=X))


@pytest.mark.parametrize("kind", [blocks.PreNormLayer, blocks.PostNormLayer])
def test_layer_needs_no_pass_but_memory_for_cross_attention(kind: type) -> None:
    norms = {name: blocks.LayerNorm(24) for name in ("attention_norm", "feed_forward_norm")}
    parts = {"attention": blocks.Attention(24, 4), "feed_forward": blocks.FeedForward(24, 48), **norms}
    assert torch.equal(kind(**parts)(X), kind(**parts)(X, blocks.Pass()))
    across = {"cross_attention": blocks.Attention(24, 4)}
    with pytest.raises(InputError, match="cross_attention and cross_attention_norm belong together"):
        kind(**parts, **across)
    whole = kind(**parts, **across, cross_attention_norm=blocks.LayerNorm(24))
    with pytest.raises(InputError, match="this layer has cross_attention, and the pass has no memory"):
        whole(X, blocks.Pass(causal=True))
    assert whole(X, blocks.Pass(causal=True, memory=X[:, :2])).shape == X.shape


def test_causal_query_without_a_key_is_refused() -> None:
    with pytest.raises(InputError, match="6 queries and 2 keys: under a causal mask"):
        blocks.Attention(24, 4)(X, blocks.Pass(causal=True), memory=X[:, :2])
    assert blocks.causal_mask(2, 4).tolist() == [[[[True, True, True, False], [True] * 4]]]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="activation is 'GELU', expected one of gelu, "):
        blocks.FeedForward(24, 48, activation="GELU")
    with pytest.raises(InputError, match=r"waves is 'halve'.*expected one of interleaved, halves, tensor2tensor"):
        blocks.SinusoidalPositions(10, 8, waves="halve")
