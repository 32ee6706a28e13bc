"""Attention: two equivalent paths, every mask, every width, and observers, which change only what they replace."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid import blocks
from pellucid.blocks.joint_weights import _are_contiguous


class Observer(dict[str, Tensor]):
    """Records every value, and returns another one where an edit exists for its name."""

    def __init__(
        self, edits: dict[str, Callable[[Tensor], Tensor]] | None = None, only: set[str] | None = None
    ) -> None:
        super().__init__()
        self.edits, self.only = edits or {}, only

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self[name] = value
        return self.edits[name](value) if name in self.edits else value

    def wants(self, name: str) -> bool:
        return self.only is None or name in self.only


def new_attention(**settings: object) -> blocks.Attention:
    torch.manual_seed(4)
    return blocks.Attention(24, 4, **settings).double().eval()


X = torch.randn(2, 7, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
TWO_TEXTS = blocks.segmented_mask(torch.tensor([[1] * 3 + [2] * 4]), causal=True)

CASES = {
    "plain": ({}, {}),
    "padding": ({}, {"mask": blocks.padding_mask(MASK)}),
    "causal": ({}, {"causal": True}),
    "both": ({}, {"causal": True, "mask": blocks.padding_mask(MASK)}),
    "several texts": ({}, {"causal": True, "mask": TWO_TEXTS, "text_lengths": (3, 4)}),
    "uneven widths": ({"head_dim": 5, "value_head_dim": 9}, {}),
    "shared keys": ({"num_key_value_heads": 2}, {}),
    "own scale": ({"scale": 1.0}, {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("biased", [False, True])
def test_fused_and_explicit_agree(case: str, biased: bool) -> None:
    settings, run = CASES[case]
    bias = torch.randn(1, 4, 7, 7, dtype=torch.float64) if biased else None
    fused, explicit = new_attention(**settings), new_attention(**settings, explicit=True)
    torch.testing.assert_close(
        fused(X, blocks.Pass(**run), bias=bias), explicit(X, blocks.Pass(**run), bias=bias), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("case", CASES)
def test_weights_sum_to_one_and_follow_the_mask(case: str) -> None:
    settings, run = CASES[case]
    observer = Observer()
    attention = new_attention(**settings)
    attention(X, blocks.Pass(**run, observer=observer))
    assert torch.allclose(observer["weights"].sum(-1), torch.ones(2, 4, 7, dtype=torch.float64))
    widths = [observer[name].shape[-1] for name in ("query", "key", "value", "heads")]
    assert widths == [settings.get(name, 6) for name in ["head_dim"] * 2 + ["value_head_dim"] * 2]
    allowed = blocks.mask.combined_mask(run.get("mask"), run.get("causal", False), 7, 7, X.device)
    if allowed is not None:
        assert torch.equal(observer["weights"] > 0, allowed.expand(2, 4, 7, 7))
    value = observer["value"].repeat_interleave(4 // attention.num_key_value_heads, dim=1)
    torch.testing.assert_close(observer["weights"] @ value, observer["heads"], rtol=0, atol=1e-12)
    total = observer["head_outputs"].sum(dim=1) + attention.output.bias
    torch.testing.assert_close(total, observer["output"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_observing_changes_no_bit(case: str) -> None:
    settings, run = CASES[case]
    attention = new_attention(**settings).float()
    x = X.float()
    assert torch.equal(attention(x, blocks.Pass(**run)), attention(x, blocks.Pass(**run, observer=Observer())))


def test_padding_does_not_affect_other_positions() -> None:
    attention = new_attention()
    other = X.clone()
    other[1, 4:] = 99.0
    run = blocks.Pass(mask=blocks.padding_mask(MASK))
    torch.testing.assert_close(attention(X, run)[1, :4], attention(other, run)[1, :4], rtol=0, atol=1e-12)
    torch.testing.assert_close(attention(X, run)[1, :4], attention(X[1:, :4])[0], rtol=0, atol=1e-12)


def test_a_row_of_nothing_but_padding_stays_finite() -> None:
    run = blocks.Pass(mask=blocks.padding_mask(torch.tensor([[1] * 7, [0] * 7])))
    assert torch.isfinite(new_attention(explicit=True)(X, run)).all()
    assert torch.isfinite(new_attention()(X, run)).all()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_padding_before_a_text_stays_finite_in_half_precision(dtype: torch.dtype, biased: bool) -> None:
    """Padding attends to nothing, and the other scores are so low that float16's minimum is not far below them."""
    run = blocks.Pass(
        mask=blocks.padding_mask(MASK.flip(1)), causal=True, observer=Observer(only={"scores", "weights"})
    )
    bias = torch.full((1, 4, 7, 7), -500.0, dtype=dtype) if biased else None
    for explicit in (False, True):
        attention = new_attention(explicit=explicit).to(dtype)
        with torch.no_grad():
            attention.query.bias -= 40
            attention.key.bias += 40
        found = attention(X.to(dtype), run, bias=bias)
        assert found.isfinite().all() and all(value.isfinite().all() for value in run.observer.values())
        assert (run.observer["weights"][1, :, 3:, :3] == 0).all()


@torch.no_grad()
def test_products_beyond_float16_give_finite_scores() -> None:
    """Qwen2's keys are that large; the fused kernel handles them."""
    for explicit in (False, True):
        attention, observer, exact = new_attention(explicit=explicit), Observer(), Observer()
        attention.query.bias += 150
        attention.key.bias += 150
        attention(X, blocks.Pass(observer=exact))
        assert exact["scores"].max() < torch.finfo(torch.float16).max < exact["scores"].max() / attention.scale
        found = attention.half()(X.half(), blocks.Pass(observer=observer))
        assert found.isfinite().all()
        torch.testing.assert_close(observer["scores"].double(), exact["scores"], rtol=4e-3, atol=0)
        torch.testing.assert_close(
            observer["weights"].sum(-1).double(), torch.ones(2, 4, 7).double(), rtol=0, atol=4e-3
        )


def test_large_mask_is_processed_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any mask, including rows that see nothing."""
    generator, heads = torch.Generator().manual_seed(1), {"num_key_value_heads": 2}
    for i in range(50):
        mask = torch.rand(2, 1, 7, 7, generator=generator) < torch.rand(2, 1, 7, 1, generator=generator) - 0.2
        bias = torch.randn(1, 4, 7, 7, dtype=X.dtype, generator=generator) if i % 2 else None
        whole = new_attention(**heads)(X, blocks.Pass(mask=mask), bias=bias)
        with monkeypatch.context() as patch:
            patch.setattr("pellucid.blocks.attention.STRIP_LENGTH", 3)
            patch.setattr("pellucid.blocks.attention.MAX_MASK_SIZE", 0)
            parts = new_attention(**heads)(X, blocks.Pass(mask=mask), bias=bias)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


def test_windowed_mask_is_never_expanded_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel expands a mask to floats: for 16,000 tokens these took a gigabyte, however small the window."""
    pairs, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def counted(*args: object, attn_mask: Tensor, **settings: object) -> Tensor:
        pairs.append(attn_mask.numel())
        return kernel(*args, attn_mask=attn_mask, **settings)  # pyrefly: ignore[bad-argument-type]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    x = torch.randn(1, 3000, 4, generator=torch.Generator().manual_seed(1))
    blocks.Attention(4, 1)(x, blocks.Pass(mask=blocks.windowed_mask(3000, 50)))
    assert max(pairs) <= 1024 * (1024 + 50) and len(pairs) == 3


def test_cross_attention_reads_keys_and_values_from_memory() -> None:
    attention = new_attention(memory_size=10)
    memory = torch.randn(2, 5, 10, dtype=torch.float64)
    observer = Observer()
    assert attention(X, blocks.Pass(observer=observer), memory=memory).shape == X.shape
    assert observer["weights"].shape == (2, 4, 7, 5)
    torch.testing.assert_close(observer["key"].transpose(1, 2).flatten(2), attention.key(memory))


EDITS = {
    "query": lambda q: q * 2,
    "scores": lambda s: s * 0,
    "weights": lambda w: torch.eye(7, dtype=w.dtype).expand_as(w),
    "heads": lambda h: h * 0,
    "head_outputs": lambda h: h * 0,
    "output": lambda o: o + 1,
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_at_any_point_takes_effect(name: str) -> None:
    attention = new_attention()
    plain = attention(X)
    edited = attention(X, blocks.Pass(observer=Observer({name: EDITS[name]})))
    assert not torch.allclose(plain, edited)
    explicit = new_attention(explicit=True)(X, blocks.Pass(observer=Observer({name: EDITS[name]})))
    torch.testing.assert_close(edited, explicit, rtol=0, atol=1e-12)


def test_identity_edit_changes_no_bit_on_the_explicit_path() -> None:
    attention = new_attention(explicit=True)
    again = attention(X, blocks.Pass(observer=Observer({"weights": lambda w: w.clone()})))
    assert torch.equal(attention(X), again)


@pytest.mark.parametrize("settings", [{"dropout": 0.5}, {"output_dropout": 0.5}, {"dropout": 0.5, "explicit": True}])
def test_dropout_applies_in_training_only(settings: dict[str, object]) -> None:
    attention = new_attention(**settings)
    assert torch.equal(attention(X), attention(X))
    attention.train()
    assert not torch.equal(attention(X), attention(X))


# -- three names, one table ------------------------------------------------------------------------------------------


def is_one_table(attention: blocks.Attention) -> bool:
    return _are_contiguous([attention.query.weight, attention.key.weight, attention.value.weight])


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        copy.deepcopy,
        lambda a: pickle.loads(pickle.dumps(a)),
        lambda a: a.float(),
        lambda a: a.to(torch.bfloat16).double(),
    ],
    ids=["fresh", "deepcopy", "pickle", "float", "there and back"],
)
def test_query_key_and_value_stay_one_table(change: Callable[[blocks.Attention], blocks.Attention]) -> None:
    attention = change(new_attention())
    assert is_one_table(attention)
    with torch.no_grad():
        attention.key.weight.zero_()
        x = X.to(attention.key.weight.dtype)
        observer = Observer()
        attention(x, blocks.Pass(observer=observer))
    assert torch.equal(observer["key"], attention.key.bias.unflatten(0, (4, 6))[None, :, None].expand(2, 4, 7, 6))


def test_gradients_reach_query_key_and_value() -> None:
    attention = new_attention()
    attention(X).sum().backward()
    apart = new_attention()
    parts = (apart.query(X), apart.key(X), apart.value(X))
    query, key, value = (part.unflatten(-1, (4, 6)).transpose(1, 2) for part in parts)
    heads = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    apart.output(heads.transpose(1, 2).flatten(2)).sum().backward()
    for name in ("query", "key", "value", "output"):
        torch.testing.assert_close(getattr(attention, name).weight.grad, getattr(apart, name).weight.grad)
