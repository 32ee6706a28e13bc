"""The order of examples: a function of the seed and the step."""

import numpy as np
import pytest

from pellucid.errors import InputError
from pellucid.training.batch_order import BatchOrder

LENGTHS = tuple(np.random.default_rng(1).integers(1, 60, 501).tolist())


@pytest.mark.parametrize(("batch_size", "tokens"), [(16, 0), (None, 300), (501, 0), (1, 0), (None, 1)])
def test_each_epoch_contains_every_example_once(batch_size: int | None, tokens: int) -> None:
    order = BatchOrder(LENGTHS, batch_size, tokens, seed=5)
    for epoch in (0, 1, 7):
        batches = order.epoch_batches(epoch)
        assert sorted(i for batch in batches for i in batch) == list(range(501))
        assert all(batches)
    assert order.epoch_batches(0) != order.epoch_batches(1)
    assert order.epoch_batches(0) == BatchOrder(LENGTHS, batch_size, tokens, seed=5).epoch_batches(0)
    assert order.epoch_batches(0) != BatchOrder(LENGTHS, batch_size, tokens, seed=6).epoch_batches(0)


@pytest.mark.parametrize(("batch_size", "tokens"), [(16, 0), (None, 300)])
def test_batch_of_a_step_is_computed_directly(batch_size: int | None, tokens: int) -> None:
    order = BatchOrder(LENGTHS, batch_size, tokens, seed=2)
    steps = [(epoch, batch) for epoch in range(4) for batch in order.epoch_batches(epoch)]
    assert order.steps(4) == len(steps)
    for step in (len(steps) - 1, 0, 40, len(order.epoch_batches(0)), len(order.epoch_batches(0)) - 1):
        assert BatchOrder(LENGTHS, batch_size, tokens, seed=2).epoch_and_batch(step) == steps[step]
        assert order.epoch_and_batch(step) == steps[step]


def test_batches_limited_by_tokens_do_not_exceed_the_limit() -> None:
    order = BatchOrder(LENGTHS, None, 300, seed=0)
    sizes = [len(batch) * max(LENGTHS[i] for i in batch) for batch in order.epoch_batches(0)]
    assert max(sizes) <= 300
    assert sum(LENGTHS) / sum(sizes) > 0.9  # batches hold texts of similar length: hardly any padding


def test_incomplete_batches_are_independent_of_length() -> None:
    """Over many epochs, an example's share in the mean of its step does not depend on its length."""
    order, shares = BatchOrder(LENGTHS, 32, 0, seed=3), np.zeros(len(LENGTHS))
    assert len(LENGTHS) % 32 == 21
    for epoch in range(60):
        for batch in order.epoch_batches(epoch):
            shares[batch] += 1 / len(batch)
    for tenth in np.array_split(np.argsort(LENGTHS), 10):
        assert shares[tenth].mean() == pytest.approx(shares.mean(), rel=0.02)
    positions = sum(len(batch) * max(LENGTHS[i] for i in batch) for batch in order.epoch_batches(0))
    assert sum(LENGTHS) / positions > 0.9


@pytest.mark.parametrize("count", [1, 2, 3, 9, 33, 401, 500])
@pytest.mark.parametrize(("batch_size", "tokens"), [(2, 0), (8, 0), (32, 0), (None, 60), (None, 1), (None, 9999)])
def test_every_batch_has_at_least_min_examples(count: int, batch_size: int | None, tokens: int) -> None:
    order = BatchOrder(LENGTHS[:count], batch_size, tokens, seed=5, min_examples=2)
    for epoch in range(3):
        batches = order.epoch_batches(epoch)
        assert sorted(i for batch in batches for i in batch) == list(range(count))
        assert min(map(len, batches)) >= min(count, 2)
        assert max(map(len, batches)) <= (batch_size or count) + 1
        assert order.steps(epoch + 1) - order.steps(epoch) == len(batches)


def test_example_above_the_token_limit_is_a_batch_of_its_own() -> None:
    assert sorted(map(len, BatchOrder((9, 2, 2), None, 4, seed=0).epoch_batches(0))) == [1, 2]


def test_empty_data_is_refused() -> None:
    with pytest.raises(InputError, match="no examples"):
        BatchOrder((), 2, 0, seed=0)
