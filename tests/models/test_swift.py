"""The twin for speed: the same numbers whatever PyTorch is set to, and whatever it is asked within."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import pellucid
from tests.checkpoints.families import TINY

IDS = torch.tensor([[2, 7, 9, 3]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A decoder, whose norms have a quicker form in the twin."""
    return pellucid.build(pellucid.Config.of("llama", **TINY["llama"]), seed=3).save(tmp_path / "model")


def states(model: pellucid.Model) -> Tensor:
    with torch.inference_mode():
        return model.module.swift().states(IDS)


@pytest.mark.parametrize("held", ["float32", "int8"])
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_the_usual_kind_of_number_changes_none(folder: Path, held: str, kind: torch.dtype) -> None:
    wanted, before = states(pellucid.load(folder, dtype=held)), torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        found = states(pellucid.load(folder, dtype=held))
        built = pellucid.build(pellucid.load(folder).config, seed=3)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, wanted)
    assert held == "int8" or torch.equal(states(built), wanted)


def test_a_model_made_in_inference_mode_answers_and_learns(folder: Path) -> None:
    with torch.inference_mode():
        model = pellucid.load(folder)
        inside = states(model)
        moved = states(pellucid.load(folder).to(dtype="float64"))
    assert torch.equal(states(model), inside)
    torch.testing.assert_close(moved.float(), inside)
    model(IDS).last_hidden_state.sum().backward()
    table = model.module.embeddings.token.weight
    with torch.no_grad():
        table.sub_(table.grad)
    assert not torch.equal(states(model), inside)
