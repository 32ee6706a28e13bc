"""Attention with a packed layout: the columns of query and key are permuted, which nothing outside observes."""

import pytest
import torch
from torch import Tensor

from pellucid import blocks
from pellucid.blocks.cache import KeyValues, LayerCache
from pellucid.blocks.copies import packed_copy
from pellucid.blocks.packed import FUSED, INPLACE_ACTIVATIONS
from pellucid.blocks.packing import Packing, Widening
from pellucid.blocks.relative import RotaryPositions


class Observer:
    """Records every value that it receives."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self.values[name] = value
        return value

    def wants(self, name: str) -> bool:
        return True


def new_attention(**options: int) -> blocks.Attention:
    torch.manual_seed(3)
    return blocks.Attention(32, 4, num_key_value_heads=2, **options).eval()


def new_pass(first: int, count: int, cache: LayerCache | None, observer: Observer | None = None) -> blocks.Pass:
    positions = torch.arange(first, first + count)[None]
    return blocks.Pass(
        causal=True, rotation=RotaryPositions(8)(positions, torch.zeros(1)), cache=cache, observer=observer
    )


@pytest.mark.parametrize("options", [{}, {"value_head_dim": 4}, {"value_head_dim": 12}])
@torch.inference_mode()
def test_packed_attention_matches_with_and_without_an_observer(options: dict[str, int]) -> None:
    plain = new_attention(**options)
    packed = packed_copy(plain, Packing(torch.float32))
    x = torch.randn(2, 9, 32)
    pieces = [(0, 4), (4, 1), (5, 3), (8, 1)]
    for observed in ([False] * 4, [True] * 4, [False, True, False, True], [True, False, True, False]):
        ours, theirs = LayerCache(9), LayerCache(9)
        for (first, count), observe in zip(pieces, observed):
            observer, other = Observer(), Observer()
            piece = x[:, first : first + count]
            found = packed(piece, new_pass(first, count, ours, observer if observe else None))
            expected = plain(piece, new_pass(first, count, theirs, other))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            for name in observer.values:
                torch.testing.assert_close(observer.values[name], other.values[name], rtol=0, atol=1e-5, msg=name)
            assert observer.values.keys() == (other.values.keys() if observe else set())


@torch.inference_mode()
def test_packed_attention_matches_without_cache_or_rotation() -> None:
    plain = new_attention()
    packed = packed_copy(plain, Packing(torch.float32))
    x = torch.randn(2, 9, 32)
    for one in (blocks.Pass(), blocks.Pass(causal=True), new_pass(0, 9, None)):
        torch.testing.assert_close(packed(x, one), plain(x, one), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("fastest", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [63, 64, 128, 300])
@torch.inference_mode()
def test_long_prompt_in_bfloat16_nearly_matches_float32(
    length: int, fastest: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Computed some positions at a time: causal order holds, and the position after the prompt sees its cached keys."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products of bfloat16 on this processor")
    monkeypatch.setattr("pellucid.blocks.packed.fastest_dtype", lambda device: fastest)
    plain = new_attention()
    packed = packed_copy(plain, Packing(torch.bfloat16))
    x = torch.randn(2, length + 71, 32)
    ours, theirs = LayerCache(length + 71), LayerCache(length + 71)
    for first, count in ((0, length), (length, 1), (length + 1, 70)):
        piece = x[:, first : first + count]
        found, expected = (
            packed(piece.bfloat16(), new_pass(first, count, ours)),
            plain(piece, new_pass(first, count, theirs)),
        )
        assert (found - expected).abs().max() < 0.02 * expected.abs().max()
    prompt, texts = x[:, :length], (torch.arange(length) > 40).long()[None]
    for masked in (
        {"mask": blocks.padding_mask(1 - texts)},
        {"mask": blocks.segmented_mask(texts, causal=True), "text_lengths": (41, length - 41)},
    ):
        run = new_pass(0, length, None)._replace(**masked)
        expected = plain(prompt, run)
        assert (packed(prompt.bfloat16(), run) - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("features", [["avx2"], ["avx2", "avx512"]], ids=["behind", "within"])
@pytest.mark.parametrize("layout", [Packing(torch.float32), Widening(torch.float16)], ids=["packed", "widened"])
@pytest.mark.parametrize("activation", FUSED)
@torch.inference_mode()
def test_activation_fused_with_the_product_or_after_it_matches_the_plain_block(
    activation: str, layout: Packing, features: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    monkeypatch.setattr("pellucid.blocks.packed.processor_features", lambda: features)
    plain = blocks.FeedForward(32, 64, activation=activation).eval()
    packed = packed_copy(plain, layout)
    assert (packed.up.inplace_activation is None) == (activation not in INPLACE_ACTIVATIONS or "avx512" in features)
    for rows in (1, 40, 100):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(packed(x).float(), plain(x), rtol=0, atol=1e-6 if type(layout) is Packing else 2e-3)


@pytest.mark.parametrize("widths", [(4, 4), (4, 6), (6, 4)])
def test_stored_keys_and_values_are_returned_unchanged(widths: tuple[int, int]) -> None:
    first, second = ((torch.randn(3, 2, seq, widths[0]), torch.randn(3, 2, seq, widths[1])) for seq in (5, 2))
    key_values = KeyValues(8)
    key_values.extend(*first)
    stored = key_values.extend(*second)
    for i in range(2):
        assert torch.equal(stored[i], torch.cat((first[i], second[i]), dim=2))
    selected = [both[torch.tensor([2, 0])] for both in stored]
    key_values.select_rows(torch.tensor([2, 0]))
    for found, expected in zip(key_values.stored(), selected):
        assert torch.equal(found, expected)
