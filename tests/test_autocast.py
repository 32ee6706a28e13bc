"""A caller's `torch.autocast`, meant for the caller's own products, changes nothing in what is answered and trained.

A plain call of a model is part of the caller's own work, and follows autocast as any PyTorch module does.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.machine import AUTOCAST, inference_mode, no_grad
from tests.quick import few
from tests.use_cases import USE_CASES, assert_equal

QUICK = (
    "adapters similarity embed evaluate index opened-adapter rollout sample score trace integrated-gradients".split()
)


@pytest.mark.parametrize("name", few(USE_CASES, QUICK))
def test_results_do_not_change_under_autocast(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    def load(name: str, **options: object) -> pellucid.Model:
        return pellucid.load(checkpoint(name), **options)

    expected = USE_CASES[name](load, tmp_path / "expected")
    with torch.autocast("cpu"):
        found = USE_CASES[name](load, tmp_path / "found")
        assert torch.is_autocast_enabled("cpu")
    assert_equal(found, expected)


def test_plain_call_follows_autocast(minilm: "pellucid.Model") -> None:
    expected = minilm("time flies").last_hidden_state
    with torch.autocast("cpu"):
        found = minilm("time flies").last_hidden_state
    assert 1e-4 < (found - expected).abs().max().item() < 0.1


def test_callers_autocast_applies_between_streamed_tokens(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("gpt2"))
    with torch.autocast("cpu"):
        for _ in model.stream("time flies", max_new_tokens=3):
            assert torch.is_autocast_enabled("cpu")
            assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16


@pytest.mark.parametrize("mode", [no_grad(), inference_mode(), inference_mode(False)])
@pytest.mark.parametrize("kind", AUTOCAST)
def test_context_managers_disable_autocast_of_every_device_type(mode: no_grad | inference_mode, kind: str) -> None:
    torch.set_autocast_enabled(kind, True)
    try:
        with mode:
            assert not any(map(torch.is_autocast_enabled, AUTOCAST))
        with pytest.raises(KeyError), mode:
            raise KeyError
        assert [torch.is_autocast_enabled(one) for one in AUTOCAST] == [one == kind for one in AUTOCAST]
    finally:
        torch.set_autocast_enabled(kind, False)
