"""PyTorch's default dtype does not change any view or answer."""

import pytest
import torch

import pellucid
from pellucid.trace.long_text import sample
from pellucid.trace.rotation import cosines_and_sines
from tests.checkpoints.families import TINY
from tests.usual import usual

pytestmark = pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])


def test_angles_of_places(kind: torch.dtype) -> None:
    config = pellucid.Config.of("llama", **TINY["llama"])
    wanted = cosines_and_sines(config, 9)
    with usual(kind):
        found = cosines_and_sines(config, 9)
    assert wanted is not None and found is not None
    assert found.dtype == torch.float32 and torch.equal(found, wanted)


def test_sampled_rows(kind: torch.dtype) -> None:
    weights = torch.rand(2, 700, 700)
    with usual(kind):
        found = sample(weights)
    assert torch.equal(found.rows, sample(weights).rows)


def test_an_answer_of_several_stretches(kind: torch.dtype) -> None:
    pipe, text = pellucid.pipeline("sentiment-analysis", long="windows"), "a fine film, and a long one. " * 90
    wanted = pipe(text)
    with usual(kind):
        found = pipe(text)
    assert found == wanted
