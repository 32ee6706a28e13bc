"""A GPU gives the same results as the processor in every use. Without a GPU these tests are skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from tests.doings import DOINGS, same
from tests.usual import needs_gpu

pytestmark = needs_gpu

FEW_BITS = {"embed-int8", "int8", "int4"}
"""Uses that run on the processor only, and say so on a GPU."""
LEARNED = {"adapters", "classes", "masked", "pairs"}
"""Uses that train in bfloat16 on a GPU."""


@pytest.mark.parametrize("name", sorted(DOINGS.keys() - FEW_BITS - {"page"}))
def test_the_same_comes_of_it(checkpoint: Callable[[str], Path], name: str, tmp_path: Path) -> None:
    def opened(device: str) -> Callable[..., pellucid.Model]:
        return lambda name, **said: pellucid.load(checkpoint(name), device=device, **said)

    wanted = DOINGS[name](opened("cpu"), tmp_path / "wanted")
    found = DOINGS[name](opened("cuda"), tmp_path / "found")
    same(found, wanted, within=1e-3 if name in LEARNED else 1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["bart", "bert-body", "gpt2", "llama", "t5-tied"])
def test_in_every_precision(checkpoint: Callable[[str], Path], name: str, dtype: str) -> None:
    """As on the processor, up to the rounding of this dtype through layers of random weights."""
    text, near = "time flies like an arrow", {"float64": 1e-9, "float16": 0.02, "bfloat16": 0.15}[dtype]
    wanted = pellucid.load(checkpoint(name), dtype=dtype).trace(text)
    found = pellucid.load(checkpoint(name), dtype=dtype, device="cuda").trace(text)
    assert list(found) == list(wanted)
    for point in wanted:
        ours, theirs = (torch.as_tensor(trace[point]).double().cpu() for trace in (found, wanted))
        seen = theirs.isfinite()
        assert torch.equal(ours.isfinite(), seen), point
        assert (ours - theirs)[seen].norm() <= near * theirs[seen].norm(), point
