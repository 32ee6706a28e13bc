"""Arguments that a user passes to a block: values that PyTorch would silently misread are refused in one sentence."""

import pytest
import torch
from torch import Tensor

from pellucid import InputError, blocks

X = torch.randn(6, 6, 24, generator=torch.Generator().manual_seed(0))
ORDER = torch.ones(6, 6).tril()


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    "mask",
    [ORDER, ORDER[None], ORDER[None, None], ORDER.long()[None, None], ORDER.bool(), ORDER.bool()[None]],
    ids=lambda mask: f"{mask.dtype} of {mask.dim()} axes",
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_of_another_kind_is_refused(mask: Tensor, explicit: bool, causal: bool) -> None:
    attention = blocks.Attention(24, 4, explicit=explicit)
    with pytest.raises(InputError, match=r"mask is .*, expected bool\[batch or 1, 1, seq or 1, source\]"):
        attention(X, blocks.Pass(mask=mask, causal=causal))


def test_the_right_kind_of_the_same_mask_is_the_word_for_it() -> None:
    attention = blocks.Attention(24, 4)
    by_mask = attention(X, blocks.Pass(mask=ORDER.bool()[None, None]))
    torch.testing.assert_close(by_mask, attention(X, blocks.Pass(causal=True)))


def test_a_text_without_its_batch_is_refused() -> None:
    attention = blocks.Attention(24, 1)
    with pytest.raises(InputError, match=r"x is float32\[6, 24\], expected \[batch, seq, hidden\]"):
        attention(X[0])
    with pytest.raises(InputError, match=r"memory is float32\[6, 24\]"):
        attention(X, memory=X[0])


def test_heads_that_nothing_can_be_shared_out_among_are_refused() -> None:
    with pytest.raises(InputError, match="hidden_size 10 cannot be divided evenly among num_heads 3"):
        blocks.Attention(10, 3)
    with pytest.raises(InputError, match="num_heads 4 cannot share num_key_value_heads 3"):
        blocks.Attention(24, 4, num_key_value_heads=3)
    with pytest.raises(InputError, match=r"^num_heads is 0, expected a whole number from 1 on$"):
        blocks.Attention(16, 0)
    with pytest.raises(InputError, match=r"^num_key_value_heads is 0, expected a whole number from 1 on$"):
        blocks.Attention(16, 2, num_key_value_heads=0)
    assert blocks.Attention(10, 3, head_dim=4).query.out_features == 12


def test_the_bias_of_a_pass_counts_for_a_block_that_is_called_alone() -> None:
    attention, bias = blocks.Attention(24, 4), torch.randn(1, 4, 6, 6)
    told = attention(X, blocks.Pass(bias=bias))
    assert torch.equal(told, attention(X, bias=bias)) and not torch.allclose(told, attention(X))
    assert torch.equal(attention(X, blocks.Pass(bias=bias), memory=X), attention(X, memory=X))


@pytest.mark.parametrize("kind", [blocks.PreNormLayer, blocks.PostNormLayer])
def test_a_layer_needs_no_pass_but_what_it_looks_across_at(kind: type) -> None:
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


def test_nobody_is_left_without_a_place_to_look_at() -> None:
    with pytest.raises(InputError, match="6 queries and 2 keys: under a causal mask"):
        blocks.Attention(24, 4)(X, blocks.Pass(causal=True), memory=X[:, :2])
    assert blocks.causal_mask(2, 4).tolist() == [[[[True, True, True, False], [True] * 4]]]


def test_names_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InputError, match="activation is 'GELU', expected one of gelu, "):
        blocks.FeedForward(24, 48, activation="GELU")
    with pytest.raises(InputError, match=r"waves is 'halve'.*expected one of interleaved, halves, tensor2tensor"):
        blocks.SinusoidalPositions(10, 8, waves="halve")
