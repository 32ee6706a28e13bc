"""PyTorch's default dtype does not change any view or answer."""

import pytest
import torch

import pellucid
from pellucid.trace.long_text import sample
from pellucid.trace.rotation import cosines_and_sines
from tests.checkpoints.families import TINY
from tests.torch_state import default_dtype

pytestmark = pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])


def test_rotary_angles_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    config = pellucid.Config.of("llama", **TINY["llama"])
    expected = cosines_and_sines(config, 9)
    with default_dtype(dtype):
        actual = cosines_and_sines(config, 9)
    assert expected is not None and actual is not None
    assert actual.dtype == torch.float32 and torch.equal(actual, expected)


def test_sampled_rows_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    weights = torch.rand(2, 700, 700)
    with default_dtype(dtype):
        actual = sample(weights)
    assert torch.equal(actual.rows, sample(weights).rows)


def test_answer_over_windows_does_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    pipe, text = pellucid.pipeline("sentiment-analysis", long="windows"), "a fine film, and a long one. " * 90
    expected = pipe(text)
    with default_dtype(dtype):
        actual = pipe(text)
    assert actual == expected
