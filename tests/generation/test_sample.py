"""Samples follow their distribution, and a seed gives the same sample whatever else is in the batch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pellucid.blocks import SinusoidalPositions, position
from pellucid.errors import InputError
from pellucid.generation import rules, sample
from pellucid.generation.progress import GenerationProgress
from pellucid.generation.rules import chain
from pellucid.generation.sample import BLOCK, _inverse_cdf, generators, greedy_tokens, sample_tokens
from pellucid.machine import widest_dtype

LOGITS = [2.0, -1.0, 0.5, 1.7, -3.0, 0.0, 1.2, -0.4, 0.9, -6.0, 1.9, 0.2]
SAMPLES = 6_000
PROGRESS = GenerationProgress(torch.zeros(1, 1, dtype=torch.long), 1, 9)


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


P = softmax(LOGITS)
ENTROPY = -sum(p * math.log(p) for p in P)


def lowest_ranked(ranks: Sequence[float], mass: float) -> list[int]:
    """The tokens of the lowest ranks whose probabilities just sum to `mass`."""
    kept: list[int] = []
    for token in sorted(range(len(P)), key=ranks.__getitem__):
        if sum(P[other] for other in kept) < mass:
            kept.append(token)
    return kept


def renormalized(kept: Sequence[int]) -> list[float]:
    """The probabilities of the kept tokens, renormalised."""
    return [p / sum(P[other] for other in kept) if token in kept else 0.0 for token, p in enumerate(P)]


BY_DEFINITION: dict[str, tuple[dict[str, Any], list[float]]] = {
    "plain": ({}, P),
    "cold": ({"temperature": 0.6}, softmax([logit / 0.6 for logit in LOGITS])),
    "hot": ({"temperature": 1.8}, softmax([logit / 1.8 for logit in LOGITS])),
    "top_k": ({"top_k": 4}, renormalized(sorted(range(len(P)), key=lambda token: -P[token])[:4])),
    "top_p": ({"top_p": 0.8}, renormalized(lowest_ranked([-p for p in P], 0.8))),
    "min_p": ({"min_p": 0.2}, renormalized([token for token, p in enumerate(P) if p >= 0.2 * max(P)])),
    "typical": ({"typical_p": 0.5}, renormalized(lowest_ranked([abs(-math.log(p) - ENTROPY) for p in P], 0.5))),
    "epsilon": ({"epsilon_cutoff": 0.04}, renormalized([token for token, p in enumerate(P) if p >= 0.04])),
    "eta": (
        {"eta_cutoff": 0.9},
        renormalized([token for token, p in enumerate(P) if p >= min(0.9, 0.9**0.5 * math.exp(-ENTROPY))]),
    ),
}
"""Options, and the distribution that follows from their definitions, in plain Python."""


def sampled_tokens(logits: Tensor, seed: int = 0) -> Tensor:
    return sample_tokens(logits, generators(range(seed, seed + len(logits))))


def p_value(counts: np.ndarray, expected: Sequence[float]) -> float:
    """The p-value of the counts under the expected distribution; 0 if an impossible token was sampled."""
    share = np.array(expected)
    if counts[share == 0].any():
        return 0.0
    return float(chisquare(counts[share > 0], share[share > 0] / share.sum() * counts.sum()).pvalue)


@pytest.mark.parametrize("vocab", [1, 7, 255, 256, 257, 511, 512, 1000])
def test_greedy_tokens_take_the_first_of_equal_maxima(vocab: int) -> None:
    logits = torch.randn(64, vocab, generator=torch.Generator().manual_seed(vocab))
    coarse = (logits * 2).round()  # with many ties
    assert torch.equal(greedy_tokens(logits), logits.argmax(dim=1))
    assert torch.equal(greedy_tokens(coarse), coarse.argmax(dim=1))
    nothing, all_but_one = torch.full_like(logits, -torch.inf), logits.clone()
    all_but_one[:, : vocab - 1] = -torch.inf
    assert torch.equal(greedy_tokens(nothing), nothing.argmax(dim=1))
    assert greedy_tokens(all_but_one).tolist() == [vocab - 1] * 64
    broken = logits.clone()
    broken[:, vocab // 2] = torch.nan
    assert torch.equal(greedy_tokens(broken), broken.argmax(dim=1))


@pytest.mark.parametrize("case", BY_DEFINITION)
def test_samples_follow_their_distribution(case: str) -> None:
    options, expected = BY_DEFINITION[case]
    logits = torch.tensor(LOGITS).expand(SAMPLES, -1)
    for rule in chain(options, sampling=True):
        logits = rule(logits, PROGRESS)
    counts = np.bincount(sampled_tokens(logits).numpy(), minlength=len(P))
    assert p_value(counts, expected) > 0.01
    others = [other for name, (_, other) in BY_DEFINITION.items() if name != case]
    assert all(p_value(counts, other) < 1e-6 for other in others)  # the test can tell them apart


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_samples_follow_their_distribution_over_many_tokens(spread: float) -> None:
    logits = spread * torch.randn(1_100, generator=torch.Generator().manual_seed(5))
    counts = np.bincount(sampled_tokens(logits.expand(8_000, -1)).numpy(), minlength=1_100)
    expected = logits.double().softmax(dim=0).numpy()
    order = np.argsort(expected)
    bins = np.minimum((np.cumsum(expected[order]) * 40).astype(int), 39)  # of about equal probability
    _, bins = np.unique(bins, return_inverse=True)
    assert p_value(np.bincount(bins, counts[order]), np.bincount(bins, expected[order])) > 0.01


@pytest.mark.parametrize("vocab", [1, 255, 256, 257, 50_257])
def test_first_random_number_selects_a_block_and_second_a_token(vocab: int) -> None:
    logits = 2 * torch.randn(40, vocab, generator=torch.Generator().manual_seed(6))
    expected = []
    for row, generator in zip(logits.softmax(dim=-1).double().numpy(), generators(range(40)), strict=True):
        first, second = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        sums = np.cumsum([row[start : start + BLOCK].sum() for start in range(0, vocab, BLOCK)])
        block = int(np.searchsorted(sums, first * sums[-1], side="right"))
        within = np.cumsum(row[block * BLOCK : (block + 1) * BLOCK])
        expected.append(block * BLOCK + int(np.searchsorted(within, second * within[-1], side="right")))
    assert sampled_tokens(logits).tolist() == expected


def test_rounding_of_logits_rarely_changes_the_sample() -> None:
    """One in fifteen used to change here; with a real model, in float32 within a batch, up to one in a hundred."""
    generator = torch.Generator().manual_seed(9)
    logits = 2 * torch.randn(400, 50_257, generator=generator)
    others = logits + 2e-4 * torch.randn(logits.shape, generator=generator)
    assert (sampled_tokens(logits) != sampled_tokens(others)).sum() <= 4


def test_sample_does_not_depend_on_other_rows() -> None:
    logits = torch.randn(9, 1_000, generator=torch.Generator().manual_seed(7))
    together = sampled_tokens(logits)
    for row in range(9):
        assert sample_tokens(logits[row : row + 1], generators([row])) == together[row]
    other = logits.flip(0) * 3
    other[4] = logits[4]
    assert sampled_tokens(other)[4] == together[4]
    assert not torch.equal(sampled_tokens(logits, seed=100), together)


def test_generator_continues_and_none_makes_a_new_one() -> None:
    logits = torch.zeros(1, 100_000)
    first_generator, again = generators([3, 3])
    first, second = sample_tokens(logits, [first_generator]), sample_tokens(logits, [first_generator])
    assert first != second and sample_tokens(logits, [again]) == first
    assert len({int(sample_tokens(logits, [generator])) for generator in generators([None] * 8)}) > 4


@pytest.mark.parametrize("token", [0, 255, 256, 999])
def test_only_possible_token_is_sampled(token: int) -> None:
    logits = torch.full((50, 1_000), -torch.inf)
    logits[:, token] = -20
    assert sampled_tokens(logits).tolist() == [token] * 50


def test_token_of_zero_probability_is_never_sampled() -> None:
    weights = torch.tensor([[0, 0.5, 0, 1.5, 0]], dtype=torch.float64)
    for share, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1.0, 3), (1.5, 3)):
        assert _inverse_cdf(weights, torch.tensor([share], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_lower_precisions_sample_as_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(200, 500, generator=torch.Generator().manual_seed(8)).to(dtype)
    assert torch.equal(sampled_tokens(logits), sampled_tokens(logits.float()))


BROKEN: dict[str, Callable[[Tensor], object]] = {
    "all -inf": lambda logits: logits[1].fill_(-torch.inf),
    "NaN": lambda logits: logits[1, :1].fill_(torch.nan),
    "infinite": lambda logits: logits[1, :1].fill_(torch.inf),
}


@pytest.mark.parametrize("case", BROKEN)
def test_invalid_logits_are_refused(case: str) -> None:
    logits = torch.zeros(3, 10)
    BROKEN[case](logits)
    with pytest.raises(InputError, match="no token can be drawn"):
        sampled_tokens(logits)


class NoFloat64OnDevice(TorchDispatchMode):
    """Asserts that operations on the model's device, which has no float64, do not create it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        wide = isinstance(output, Tensor) and output.dtype == torch.float64
        assert not (wide and any(isinstance(one, Tensor) and one.dtype != torch.float64 for one in args)), func
        return output


def test_sampling_and_positions_work_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [widest_dtype(torch.device(kind)) for kind in ("mps", "cpu")] == [torch.float32, torch.float64]
    logits, positions = torch.tensor([LOGITS]).repeat(20, 60), torch.arange(9)[None]
    (nucleus,) = chain({"top_p": 0.9}, sampling=True)

    def sampled() -> Tensor:
        return sample_tokens(nucleus(logits, PROGRESS), generators(range(20)))

    expected, sinusoids = sampled(), SinusoidalPositions(9, 8)
    wide = sinusoids(positions, positions)
    for module in (sample, rules, position):
        monkeypatch.setattr(module, "widest_dtype", lambda device: torch.float32)
    with NoFloat64OnDevice():
        assert torch.equal(sampled(), expected)
        torch.testing.assert_close(sinusoids(positions, positions), wide.float())
