"""Learning rate schedules, against PyTorch's own and the reference's formulas."""

import itertools
import math

import pytest
import torch

from pellucid.training.schedule import SCHEDULES, learning_rate_factor


def test_linear_and_cosine_equal_the_reference_s() -> None:
    from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

    for name, schedule_of in (("linear", get_linear_schedule_with_warmup), ("cosine", get_cosine_schedule_with_warmup)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        theirs = schedule_of(optimizer, num_warmup_steps=7, num_training_steps=50)
        for step in range(50):
            assert learning_rate_factor(name, step, 50, 7) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
            optimizer.step()
            theirs.step()


def test_inverse_square_root_equals_the_paper_s_formula() -> None:
    ours = [learning_rate_factor("inverse-square-root", step, 1000, 100) for step in range(0, 900, 50)]
    expected = [min((step or 1e-9) ** -0.5, step * 100**-1.5) / 100**-0.5 for step in range(0, 900, 50)]
    assert ours == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_warms_up_linearly_and_stays_above_its_floor(name: str) -> None:
    rates = [learning_rate_factor(name, step, 40, 8, floor=0.2) for step in range(41)]
    assert rates[:9] == pytest.approx([step / 8 for step in range(9)])
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[8:]))
    assert min(rates[8:]) >= 0.2 and max(rates) == 1.0


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_without_warmup_starts_at_the_maximum(name: str) -> None:
    assert learning_rate_factor(name, 0, 10, 0) == 1.0


def test_warmup_over_all_steps_only_rises() -> None:
    assert [learning_rate_factor("linear", step, 4, 4) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert math.isfinite(learning_rate_factor("cosine", 4, 4, 4))
