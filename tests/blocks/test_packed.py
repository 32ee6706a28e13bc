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
        self.told: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        self.told[name] = value
        return value

    def wants(self, name: str) -> bool:
        return True


def attention(**options: int) -> blocks.Attention:
    torch.manual_seed(3)
    return blocks.Attention(32, 4, num_key_value_heads=2, **options).eval()


def run(first: int, count: int, cache: LayerCache | None, observer: Observer | None = None) -> blocks.Pass:
    places = torch.arange(first, first + count)[None]
    return blocks.Pass(causal=True, rotation=RotaryPositions(8)(places, torch.zeros(1)), cache=cache, observer=observer)


@pytest.mark.parametrize("options", [{}, {"value_head_dim": 4}, {"value_head_dim": 12}])
@torch.inference_mode()
def test_packed_attention_agrees_seen_and_unseen(options: dict[str, int]) -> None:
    plain = attention(**options)
    packed = packed_copy(plain, Packing(torch.float32))
    x = torch.randn(2, 9, 32)
    pieces = [(0, 4), (4, 1), (5, 3), (8, 1)]
    for seen in ([False] * 4, [True] * 4, [False, True, False, True], [True, False, True, False]):
        ours, theirs = LayerCache(9), LayerCache(9)
        for (first, count), looked_at in zip(pieces, seen):
            observer, other = Observer(), Observer()
            now = x[:, first : first + count]
            found = packed(now, run(first, count, ours, observer if looked_at else None))
            wanted = plain(now, run(first, count, theirs, other))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
            for name in observer.told:
                torch.testing.assert_close(observer.told[name], other.told[name], rtol=0, atol=1e-5, msg=name)
            assert observer.told.keys() == (other.told.keys() if looked_at else set())


@torch.inference_mode()
def test_packed_attention_agrees_without_memory_or_rotation() -> None:
    plain = attention()
    packed = packed_copy(plain, Packing(torch.float32))
    x = torch.randn(2, 9, 32)
    for one in (blocks.Pass(), blocks.Pass(causal=True), run(0, 9, None)):
        torch.testing.assert_close(packed(x, one), plain(x, one), rtol=0, atol=1e-6)


@pytest.mark.parametrize("fastest", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [63, 64, 128, 300])
@torch.inference_mode()
def test_a_long_prompt_in_bfloat16(length: int, fastest: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed some positions at a time: causal order holds, and the position after the prompt sees its cached keys."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN has no products of bfloat16 on this processor")
    monkeypatch.setattr("pellucid.blocks.packed.fastest_dtype", lambda device: fastest)
    plain = attention()
    packed = packed_copy(plain, Packing(torch.bfloat16))
    x = torch.randn(2, length + 1, 32)
    ours, theirs = LayerCache(length + 1), LayerCache(length + 1)
    for first, count in ((0, length), (length, 1)):
        now = x[:, first : first + count]
        found, wanted = packed(now.bfloat16(), run(first, count, ours)), plain(now, run(first, count, theirs))
        assert (found - wanted).abs().max() < 0.02 * wanted.abs().max()


@pytest.mark.parametrize("known", [["avx2"], ["avx2", "avx512"]], ids=["behind", "within"])
@pytest.mark.parametrize("layout", [Packing(torch.float32), Widening(torch.float16)], ids=["packed", "widened"])
@pytest.mark.parametrize("activation", FUSED)
@torch.inference_mode()
def test_an_activation_behind_the_product_or_within(
    activation: str, layout: Packing, known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    monkeypatch.setattr("pellucid.blocks.packed.processor_features", lambda: known)
    plain = blocks.FeedForward(32, 64, activation=activation).eval()
    packed = packed_copy(plain, layout)
    assert (packed.up.inplace_activation is None) == (activation not in INPLACE_ACTIVATIONS or "avx512" in known)
    for rows in (1, 40, 100):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(packed(x).float(), plain(x), rtol=0, atol=1e-6 if type(layout) is Packing else 2e-3)


@pytest.mark.parametrize("widths", [(4, 4), (4, 6), (6, 4)])
def test_keys_and_values_come_back_as_they_were_written(widths: tuple[int, int]) -> None:
    first, second = ((torch.randn(3, 2, seq, widths[0]), torch.randn(3, 2, seq, widths[1])) for seq in (5, 2))
    memory = KeyValues(8)
    memory.extend(*first)
    held = memory.extend(*second)
    for i in range(2):
        assert torch.equal(held[i], torch.cat((first[i], second[i]), dim=2))
    kept = [both[torch.tensor([2, 0])] for both in held]
    memory.select_rows(torch.tensor([2, 0]))
    for found, wanted in zip(memory.stored(), kept):
        assert torch.equal(found, wanted)
