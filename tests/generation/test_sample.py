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
DRAWS = 6_000
WRITTEN = GenerationProgress(torch.zeros(1, 1, dtype=torch.long), 1, 9)


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit) for logit in logits]
    return [weight / sum(weights) for weight in weights]


P = softmax(LOGITS)
ENTROPY = -sum(p * math.log(p) for p in P)


def first(ranks: Sequence[float], mass: float) -> list[int]:
    """The tokens of the lowest ranks whose probabilities just sum to `mass`."""
    kept: list[int] = []
    for token in sorted(range(len(P)), key=ranks.__getitem__):
        if sum(P[other] for other in kept) < mass:
            kept.append(token)
    return kept


def share(kept: Sequence[int]) -> list[float]:
    """The probabilities of the kept tokens, renormalised."""
    return [p / sum(P[other] for other in kept) if token in kept else 0.0 for token, p in enumerate(P)]


BY_DEFINITION: dict[str, tuple[dict[str, Any], list[float]]] = {
    "plain": ({}, P),
    "cold": ({"temperature": 0.6}, softmax([logit / 0.6 for logit in LOGITS])),
    "hot": ({"temperature": 1.8}, softmax([logit / 1.8 for logit in LOGITS])),
    "top_k": ({"top_k": 4}, share(sorted(range(len(P)), key=lambda token: -P[token])[:4])),
    "top_p": ({"top_p": 0.8}, share(first([-p for p in P], 0.8))),
    "min_p": ({"min_p": 0.2}, share([token for token, p in enumerate(P) if p >= 0.2 * max(P)])),
    "typical": ({"typical_p": 0.5}, share(first([abs(-math.log(p) - ENTROPY) for p in P], 0.5))),
    "epsilon": ({"epsilon_cutoff": 0.04}, share([token for token, p in enumerate(P) if p >= 0.04])),
    "eta": (
        {"eta_cutoff": 0.9},
        share([token for token, p in enumerate(P) if p >= min(0.9, 0.9**0.5 * math.exp(-ENTROPY))]),
    ),
}
"""Options, and the distribution that follows from their definitions, in plain Python."""


def drawn(logits: Tensor, seed: int = 0) -> Tensor:
    return sample_tokens(logits, generators(range(seed, seed + len(logits))))


def likelihood(counts: np.ndarray, wanted: Sequence[float]) -> float:
    """The p-value of the counts under the expected distribution; 0 if an impossible token was sampled."""
    share = np.array(wanted)
    if counts[share == 0].any():
        return 0.0
    return float(chisquare(counts[share > 0], share[share > 0] / share.sum() * counts.sum()).pvalue)


@pytest.mark.parametrize("vocab", [1, 7, 255, 256, 257, 511, 512, 1000])
def test_the_likeliest_is_the_first_of_the_greatest(vocab: int) -> None:
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
def test_draws_follow_their_distribution(case: str) -> None:
    options, wanted = BY_DEFINITION[case]
    logits = torch.tensor(LOGITS).expand(DRAWS, -1)
    for rule in chain(options, sampling=True):
        logits = rule(logits, WRITTEN)
    counts = np.bincount(drawn(logits).numpy(), minlength=len(P))
    assert likelihood(counts, wanted) > 0.01
    others = [other for name, (_, other) in BY_DEFINITION.items() if name != case]
    assert all(likelihood(counts, other) < 1e-6 for other in others)  # the test can tell them apart


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_draws_follow_their_distribution_over_many_tokens(spread: float) -> None:
    logits = spread * torch.randn(1_100, generator=torch.Generator().manual_seed(5))
    counts = np.bincount(drawn(logits.expand(8_000, -1)).numpy(), minlength=1_100)
    wanted = logits.double().softmax(dim=0).numpy()
    order = np.argsort(wanted)
    bins = np.minimum((np.cumsum(wanted[order]) * 40).astype(int), 39)  # of about equal probability
    _, bins = np.unique(bins, return_inverse=True)
    assert likelihood(np.bincount(bins, counts[order]), np.bincount(bins, wanted[order])) > 0.01


@pytest.mark.parametrize("vocab", [1, 255, 256, 257, 50_257])
def test_one_number_draws_a_block_and_another_its_token(vocab: int) -> None:
    logits = 2 * torch.randn(40, vocab, generator=torch.Generator().manual_seed(6))
    wanted = []
    for row, source in zip(logits.softmax(dim=-1).double().numpy(), generators(range(40)), strict=True):
        first, second = torch.rand(2, generator=source, dtype=torch.float64).tolist()
        sums = np.cumsum([row[start : start + BLOCK].sum() for start in range(0, vocab, BLOCK)])
        block = int(np.searchsorted(sums, first * sums[-1], side="right"))
        within = np.cumsum(row[block * BLOCK : (block + 1) * BLOCK])
        wanted.append(block * BLOCK + int(np.searchsorted(within, second * within[-1], side="right")))
    assert drawn(logits).tolist() == wanted


def test_rounding_draws_no_other_token() -> None:
    """One in fifteen used to change here; with a real model, in float32 within a batch, up to one in a hundred."""
    source = torch.Generator().manual_seed(9)
    logits = 2 * torch.randn(400, 50_257, generator=source)
    others = logits + 2e-4 * torch.randn(logits.shape, generator=source)
    assert (drawn(logits) != drawn(others)).sum() <= 4


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(9, 1_000, generator=torch.Generator().manual_seed(7))
    together = drawn(logits)
    for row in range(9):
        assert sample_tokens(logits[row : row + 1], generators([row])) == together[row]
    other = logits.flip(0) * 3
    other[4] = logits[4]
    assert drawn(other)[4] == together[4]
    assert not torch.equal(drawn(logits, seed=100), together)


def test_a_source_goes_on_and_none_is_a_new_one() -> None:
    logits = torch.zeros(1, 100_000)
    one, again = generators([3, 3])
    first, second = sample_tokens(logits, [one]), sample_tokens(logits, [one])
    assert first != second and sample_tokens(logits, [again]) == first
    assert len({int(sample_tokens(logits, [source])) for source in generators([None] * 8)}) > 4


@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_a_single_token_left_is_drawn(place: int) -> None:
    logits = torch.full((50, 1_000), -torch.inf)
    logits[:, place] = -20
    assert drawn(logits).tolist() == [place] * 50


def test_a_part_of_nothing_is_never_drawn() -> None:
    parts = torch.tensor([[0, 0.5, 0, 1.5, 0]], dtype=torch.float64)
    for share, place in ((0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1.0, 3), (1.5, 3)):
        assert _inverse_cdf(parts, torch.tensor([share], dtype=torch.float64)).tolist() == [place]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype) -> None:
    logits = torch.randn(200, 500, generator=torch.Generator().manual_seed(8)).to(dtype)
    assert torch.equal(drawn(logits), drawn(logits.float()))


BROKEN: dict[str, Callable[[Tensor], object]] = {
    "all -inf": lambda logits: logits[1].fill_(-torch.inf),
    "no number": lambda logits: logits[1, :1].fill_(torch.nan),
    "without end": lambda logits: logits[1, :1].fill_(torch.inf),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_logits_draw_nothing(case: str) -> None:
    logits = torch.zeros(3, 10)
    BROKEN[case](logits)
    with pytest.raises(InputError, match="no token can be drawn"):
        drawn(logits)


class Metal(TorchDispatchMode):
    """Asserts that operations on the model's device, which has no float64, do not create it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        wide = isinstance(answer, Tensor) and answer.dtype == torch.float64
        assert not (wide and any(isinstance(one, Tensor) and one.dtype != torch.float64 for one in args)), func
        return answer


def test_what_has_nothing_wider_than_float32_draws_and_counts_places_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [widest_dtype(torch.device(kind)) for kind in ("mps", "cpu")] == [torch.float32, torch.float64]
    logits, places = torch.tensor([LOGITS]).repeat(20, 60), torch.arange(9)[None]
    (nucleus,) = chain({"top_p": 0.9}, sampling=True)

    def chosen() -> Tensor:
        return sample_tokens(nucleus(logits, WRITTEN), generators(range(20)))

    wanted, waves = chosen(), SinusoidalPositions(9, 8)
    wide = waves(places, places)
    for room in (sample, rules, position):
        monkeypatch.setattr(room, "widest_dtype", lambda device: torch.float32)
    with Metal():
        assert torch.equal(chosen(), wanted)
        torch.testing.assert_close(waves(places, places), wide.float())
