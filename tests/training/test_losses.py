"""The loss over a vocabulary, against PyTorch's own over all logits at once."""

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.training import losses
from pellucid.training.losses import IGNORED, vocabulary_loss


def _given(dtype: torch.dtype, positions: int = 37, hidden: int = 9, vocab: int = 23) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(3)
    shapes = ((positions, hidden), (vocab, hidden), (vocab,))
    parts = [torch.randn(shape, generator=chance, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(vocab, (positions,), generator=chance)
    targets[::5] = IGNORED
    return [*parts, targets]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("least", [512, 4])
def test_value_and_gradients_are_those_of_cross_entropy(
    smoothing: float, dtype: torch.dtype, apart: float, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "MIN_POSITIONS", least)  # the smallest chunk of positions: 4 makes eight chunks
    monkeypatch.setattr(losses, "MAX_LOGITS", 0)
    features, weight, bias, targets = _given(dtype)
    found = vocabulary_loss(features.view(1, 37, 9), weight, bias, targets.view(1, 37), smoothing=smoothing) / 29
    ours = torch.autograd.grad(found, (features, weight, bias))
    logits = features @ weight.T + bias
    wanted = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing) / 29
    theirs = torch.autograd.grad(wanted, (features, weight, bias))
    assert abs(float((found - wanted).detach())) <= apart * float(wanted.detach())
    for one, other in zip(ours, theirs):
        assert float((one - other).abs().max()) <= apart * max(float(other.abs().max()), 1.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("biased", [True, False])
def test_gradients_are_those_of_small_changes(smoothing: float, biased: bool) -> None:
    features, weight, bias, targets = _given(torch.float64, positions=6, hidden=3, vocab=5)
    parts = (features, weight, bias) if biased else (features, weight)
    assert torch.autograd.gradcheck(
        lambda *one: vocabulary_loss(one[0], one[1], one[2] if biased else None, targets, smoothing=smoothing), parts
    )


def test_only_what_learns_gets_a_gradient() -> None:
    features, weight, bias, targets = _given(torch.float32)
    frozen = weight.detach()
    vocabulary_loss(features, frozen, bias.detach(), targets).backward()
    assert features.grad is not None and frozen.grad is None


def test_positions_that_are_not_asked_get_none() -> None:
    features, weight, bias, targets = _given(torch.float32)
    vocabulary_loss(features, weight, bias, targets).backward()
    assert features.grad is not None
    assert (features.grad[::5] == 0).all() and (features.grad[1] != 0).any()


def test_nothing_asked_is_nothing_learned() -> None:
    features, weight, bias, _ = _given(torch.float32)
    loss = vocabulary_loss(features, weight, bias, torch.full((37,), IGNORED))
    loss.backward()
    assert float(loss.detach()) == 0.0 and weight.grad is not None and not weight.grad.any()


def test_half_precision_sums_in_float32() -> None:
    features, weight, bias, targets = _given(torch.float32, positions=400, hidden=64, vocab=500)
    wanted = vocabulary_loss(features, weight, bias, targets)
    found = vocabulary_loss(features, weight, bias, targets, dtype=torch.bfloat16)
    assert found.dtype == torch.float32
    assert abs(float((found / wanted).detach()) - 1) < 5e-3
    narrow = torch.autograd.grad(found, (features, weight))
    wide = torch.autograd.grad(wanted, (features, weight))
    for one, other in zip(narrow, wide):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 2e-2


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that is computed."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in (found if isinstance(found, tuple) else (found,)) if hasattr(one, "numel")]
        self.numbers = max([self.numbers, *sizes])
        return found


def test_the_logits_of_a_batch_are_never_all_there_at_once() -> None:
    features, weight, bias, targets = _given(torch.float32, positions=6_000, hidden=4, vocab=3_000)
    with Largest() as seen:
        vocabulary_loss(features, weight, bias, targets).backward()
    assert losses.MIN_POSITIONS * 3_000 <= seen.numbers <= losses.MAX_LOGITS < 6_000 * 3_000 / 4
    with Largest() as seen:
        functional.cross_entropy(features @ weight.T + bias, targets).backward()
    assert seen.numbers == 6_000 * 3_000
