"""A caller's `torch.autocast`, meant for the caller's own products, changes nothing in what is answered and trained.

A plain call of a model is part of the caller's own work, and follows autocast as any PyTorch module does.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.machine import AUTOCAST, inference_mode, no_grad
from tests.doings import DOINGS, same
from tests.quick import few

QUICK = "adapters alike embed evaluate index opened-adapter rollout sample score trace way".split()


@pytest.mark.parametrize("name", few(DOINGS, QUICK))
def test_the_same_comes_of_it(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    def opened(name: str, **said: object) -> pellucid.Model:
        return pellucid.load(checkpoint(name), **said)

    wanted = DOINGS[name](opened, tmp_path / "wanted")
    with torch.autocast("cpu"):
        found = DOINGS[name](opened, tmp_path / "found")
        assert torch.is_autocast_enabled("cpu")
    same(found, wanted)


def test_a_plain_call_follows_it(minilm: "pellucid.Model") -> None:
    wanted = minilm("time flies").last_hidden_state
    with torch.autocast("cpu"):
        found = minilm("time flies").last_hidden_state
    assert 1e-4 < (found - wanted).abs().max().item() < 0.1


def test_what_is_written_between_two_tokens_is_the_callers(checkpoint: Callable[[str], Path]) -> None:
    model = pellucid.load(checkpoint("gpt2"))
    with torch.autocast("cpu"):
        for _ in model.stream("time flies", max_new_tokens=3):
            assert torch.is_autocast_enabled("cpu")
            assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16


@pytest.mark.parametrize("mode", [no_grad(), inference_mode(), inference_mode(False)])
@pytest.mark.parametrize("kind", AUTOCAST)
def test_every_kind_of_device_has_one(mode: no_grad | inference_mode, kind: str) -> None:
    torch.set_autocast_enabled(kind, True)
    try:
        with mode:
            assert not any(map(torch.is_autocast_enabled, AUTOCAST))
        with pytest.raises(KeyError), mode:
            raise KeyError
        assert [torch.is_autocast_enabled(one) for one in AUTOCAST] == [one == kind for one in AUTOCAST]
    finally:
        torch.set_autocast_enabled(kind, False)
