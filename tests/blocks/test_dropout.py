"""Dropout masks from a pool: as good as freshly sampled, never repeated, a function of seed, step and piece."""

import pytest
import torch

from pellucid.blocks.dropout import POOL_SIZE, STEPS_PER_POOL, DropoutMasks

SHAPE = (64, 1024)


def dropout_mask(
    seed: int = 0, step: int = 0, piece: int = 0, skipped: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    masks = DropoutMasks(seed, dtype)
    masks.begin(step, piece)
    for _ in range(skipped):
        masks.mask((1,), 0.1)
    return masks.mask(SHAPE, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("share", [0.1, 0.15, 0.5, 0.75])
def test_dropped_share_and_mean(share: float, dtype: torch.dtype) -> None:
    found = DropoutMasks(3, dtype).mask((2048, 1024), share).double()
    count = found.numel()
    error = (share * (1 - share) / count) ** 0.5
    assert abs(float((found == 0).double().mean()) - share) < 5 * error
    assert abs(float(found.mean()) - 1.0) < 5 * error / (1 - share)
    assert float(found.var()) == pytest.approx(share / (1 - share), rel=0.01)
    assert float((found[found > 0] * (1 - share) - 1.0).abs().max()) <= 2 * torch.finfo(dtype).eps


def test_elements_of_a_mask_are_uncorrelated() -> None:
    flat = (dropout_mask().flatten() > 0).double() - 0.9
    count = len(flat)
    for lag in (1, 2, 7, 64, 384, 1024, 4096):
        correlation = float((flat[:-lag] * flat[lag:]).mean()) / 0.09
        assert abs(correlation) < 5 / (count - lag) ** 0.5, lag
    rows = flat.view(SHAPE).sum(dim=1)
    assert float(rows.var()) == pytest.approx(1024 * 0.09, rel=0.8)


@pytest.mark.slow
def test_neighbouring_masks_do_not_repeat() -> None:
    """Of the next request, piece, step and seed, and of a new pool."""
    first = dropout_mask()
    others = [dropout_mask(skipped=n) for n in range(1, 80)]
    others += [dropout_mask(piece=n) for n in range(1, 9)] + [dropout_mask(step=n) for n in range(1, 9)]
    others += [dropout_mask(seed=n) for n in range(1, 9)] + [dropout_mask(step=n * STEPS_PER_POOL) for n in range(1, 5)]
    for other in others:
        agreement = float(((first > 0) == (other > 0)).double().mean())
        assert agreement == pytest.approx(0.82, abs=0.01)  # 0.9 x 0.9 + 0.1 x 0.1


def test_masks_of_a_piece_have_distinct_offsets() -> None:
    masks = DropoutMasks(0, torch.float32)
    for piece in range(50):
        masks.begin(0, piece)
        offsets = [masks.mask((1,), 0.1).storage_offset() for _ in range(200)]
        assert len(set(offsets)) == len(offsets)


def test_same_seed_step_and_piece_give_the_same_masks() -> None:
    assert torch.equal(dropout_mask(5, 700, 2, 3), dropout_mask(5, 700, 2, 3))
    masks = DropoutMasks(5, torch.float32)
    for step in (0, 700, 64, 1, 700):
        masks.begin(step, 2)
    for _ in range(3):
        masks.mask((7, 7), 0.5)
    assert torch.equal(masks.mask(SHAPE, 0.1), dropout_mask(5, 700, 2, 3)), "other shares and shapes do not matter"


def test_mask_larger_than_the_pool_combines_several() -> None:
    found = DropoutMasks(0, torch.float32).mask((3, POOL_SIZE // 2 + 11), 0.1)
    assert abs(float((found == 0).double().mean()) - 0.1) < 0.001
    halves = found.flatten()[: 2 * (POOL_SIZE // 2)].view(2, -1) > 0
    assert float((halves[0] == halves[1]).double().mean()) == pytest.approx(0.82, abs=0.01)


def test_global_random_state_is_unchanged() -> None:
    before = torch.get_rng_state()
    dropout_mask()
    assert torch.equal(torch.get_rng_state(), before)
