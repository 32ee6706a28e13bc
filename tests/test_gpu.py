"""A GPU gives the same results as the processor in every use. Without a GPU these tests are skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from tests.torch_state import needs_gpu
from tests.use_cases import USE_CASES, assert_equal

pytestmark = needs_gpu

FEW_BITS = {"embed-int8", "int8", "int4"}
"""Uses that run on the processor only, and say so on a GPU."""
TRAINED = {"adapters", "classify", "masked", "pairs"}
"""Uses that train in bfloat16 on a GPU."""


@pytest.mark.parametrize("name", sorted(USE_CASES.keys() - FEW_BITS - {"page"}))
def test_results_on_a_gpu_match_the_processor(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    def load_on(device: str) -> Callable[..., pellucid.Model]:
        return lambda name, **options: pellucid.load(checkpoint(name), device=device, **options)

    expected = USE_CASES[name](load_on("cpu"), tmp_path / "expected")
    found = USE_CASES[name](load_on("cuda"), tmp_path / "found")
    assert_equal(found, expected, within=1e-3 if name in TRAINED else 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["bart", "bert-body", "gpt2", "llama", "t5-tied"])
def test_every_dtype_on_a_gpu_matches_the_processor(checkpoint: Callable[[str], Path], name: str, dtype: str) -> None:
    """As on the processor, up to the rounding of this dtype through layers of random weights."""
    text, tolerance = "time flies like an arrow", {"float64": 1e-9, "float16": 0.02, "bfloat16": 0.15}[dtype]
    expected = pellucid.load(checkpoint(name), dtype=dtype).trace(text)
    found = pellucid.load(checkpoint(name), dtype=dtype, device="cuda").trace(text)
    assert list(found) == list(expected)
    for point in expected:
        ours, theirs = (torch.as_tensor(trace[point]).double().cpu() for trace in (found, expected))
        finite = theirs.isfinite()
        assert torch.equal(ours.isfinite(), finite), point
        assert (ours - theirs)[finite].norm() <= tolerance * theirs[finite].norm(), point
