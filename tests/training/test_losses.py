"""The loss over a vocabulary, against PyTorch's own over all logits at once."""

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.training import losses
from pellucid.training.losses import IGNORED, vocabulary_loss


def _random_arguments(dtype: torch.dtype, positions: int = 37, hidden: int = 9, vocab: int = 23) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((positions, hidden), (vocab, hidden), (vocab,))
    tensors = [
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    ]
    targets = torch.randint(vocab, (positions,), generator=generator)
    targets[::5] = IGNORED
    return [*tensors, targets]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("min_positions", [512, 4])
def test_loss_and_gradients_equal_cross_entropy(
    smoothing: float, dtype: torch.dtype, tolerance: float, min_positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "MIN_POSITIONS", min_positions)  # the smallest chunk of positions: 4 makes eight chunks
    monkeypatch.setattr(losses, "MAX_LOGITS", 0)
    features, weight, bias, targets = _random_arguments(dtype)
    found = vocabulary_loss(features.view(1, 37, 9), weight, bias, targets.view(1, 37), smoothing=smoothing) / 29
    ours = torch.autograd.grad(found, (features, weight, bias))
    logits = features @ weight.T + bias
    expected = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / 29
    theirs = torch.autograd.grad(expected, (features, weight, bias))
    assert abs(float((found - expected).detach())) <= tolerance * float(expected.detach())
    for our, their in zip(ours, theirs):
        assert float((our - their).abs().max()) <= tolerance * max(float(their.abs().max()), 1.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("biased", [True, False])
def test_gradients_equal_finite_differences(smoothing: float, biased: bool) -> None:
    features, weight, bias, targets = _random_arguments(torch.float64, positions=6, hidden=3, vocab=5)
    parts = (features, weight, bias) if biased else (features, weight)
    assert torch.autograd.gradcheck(
        lambda *one: vocabulary_loss(one[0], one[1], one[2] if biased else None, targets, smoothing=smoothing), parts
    )


def test_frozen_weights_get_no_gradient() -> None:
    features, weight, bias, targets = _random_arguments(torch.float32)
    frozen = weight.detach()
    vocabulary_loss(features, frozen, bias.detach(), targets).backward()
    assert features.grad is not None and frozen.grad is None


def test_ignored_positions_get_no_gradient() -> None:
    features, weight, bias, targets = _random_arguments(torch.float32)
    vocabulary_loss(features, weight, bias, targets).backward()
    assert features.grad is not None
    assert (features.grad[::5] == 0).all() and (features.grad[1] != 0).any()


def test_loss_without_targets_is_zero() -> None:
    features, weight, bias, _ = _random_arguments(torch.float32)
    loss = vocabulary_loss(features, weight, bias, torch.full((37,), IGNORED))
    loss.backward()
    assert float(loss.detach()) == 0.0 and weight.grad is not None and not weight.grad.any()


def test_bfloat16_loss_is_summed_in_float32() -> None:
    features, weight, bias, targets = _random_arguments(torch.float32, positions=400, hidden=64, vocab=500)
    expected = vocabulary_loss(features, weight, bias, targets)
    found = vocabulary_loss(features, weight, bias, targets, dtype=torch.bfloat16)
    assert found.dtype == torch.float32
    assert abs(float((found / expected).detach()) - 1) < 5e-3
    half_gradients = torch.autograd.grad(found, (features, weight))
    full_gradients = torch.autograd.grad(expected, (features, weight))
    for one, other in zip(half_gradients, full_gradients):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 2e-2


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in (found if isinstance(found, tuple) else (found,)) if hasattr(one, "numel")]
        self.numbers = max([self.numbers, *sizes])
        return found


def test_logits_are_computed_in_chunks() -> None:
    features, weight, bias, targets = _random_arguments(torch.float32, positions=6_000, hidden=4, vocab=3_000)
    with LargestTensor() as recorder:
        vocabulary_loss(features, weight, bias, targets).backward()
    assert losses.MIN_POSITIONS * 3_000 <= recorder.numbers <= losses.MAX_LOGITS < 6_000 * 3_000 / 4
    with LargestTensor() as recorder:
        functional.cross_entropy(features @ weight.T + bias, targets).backward()
    assert recorder.numbers == 6_000 * 3_000
