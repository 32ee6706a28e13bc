"""Several texts in one row: each is read as if it were alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid.blocks.mask import segment_positions, segmented_mask
from pellucid.errors import InputError

TEXTS = ([5, 6, 7, 8, 9], [11, 12, 13], [20, 21, 22, 23, 24, 25, 26])
SMALL: dict[str, Any] = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS = {
    "gpt2": {"intermediate_size": 40, "max_position_embeddings": 10, "bos_token_id": None, "eos_token_id": None},
    "llama": {"intermediate_size": 40, "num_key_value_heads": 2},
    "mistral": {"intermediate_size": 40, "num_key_value_heads": 2, "sliding_window": 4},
    "bert": {"intermediate_size": 40, "max_position_embeddings": 10},
}


def _model(family: str) -> pellucid.Model:
    return pellucid.build(pellucid.Config.of(family, **SMALL, **KINDS[family]), seed=4, dtype="float64")


def _packed(padding: int = 2) -> tuple[Tensor, Tensor]:
    ids = torch.tensor([[i for text in TEXTS for i in text] + [1] * padding])
    numbers = [number for number, text in enumerate(TEXTS, 1) for _ in text]
    return ids, torch.tensor([numbers + [0] * padding])


def _parts(states: Tensor) -> list[Tensor]:
    return list(states[0, : sum(map(len, TEXTS))].split([len(text) for text in TEXTS]))


def test_positions_restart_with_each_segment() -> None:
    segments = torch.tensor([[1, 1, 2, 2, 2, 0, 0], [1, 2, 3, 4, 4, 4, 4]])
    assert segment_positions(segments).tolist() == [[0, 1, 0, 1, 2, -1, -1], [0, 0, 0, 0, 1, 2, 3]]


def test_segmented_mask() -> None:
    mask = segmented_mask(torch.tensor([[1, 1, 1, 2, 0]]), causal=True, window=2)[0, 0]
    assert mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    both = segmented_mask(torch.tensor([[1, 1, 2]]), causal=False)[0, 0]
    assert both.int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("attention", ["fused", "explicit"])
def test_segments_equal_texts_read_alone(family: str, attention: str) -> None:
    config = pellucid.Config.of(family, **SMALL, **KINDS[family])
    module = pellucid.build(config, seed=4, dtype="float64", attention=attention).module
    ids, segments = _packed()
    with torch.no_grad():
        together = _parts(module.states(ids, segments=segments))
        for found, text in zip(together, TEXTS):
            alone = module.states(torch.tensor([text]))[0]
            assert float((found - alone).abs().max()) < 1e-12
        rows = [torch.cat([one, one.flip(1)]) for one in (ids, segments)]  # of texts that end elsewhere
        each = module.states(rows[0][1:], segments=rows[1][1:])
        assert float((module.states(rows[0], segments=rows[1])[1:] - each).abs().max()) < 1e-12


@pytest.mark.parametrize("family", KINDS)
def test_packed_copy_reads_segments_alike(family: str) -> None:
    module = pellucid.build(pellucid.Config.of(family, **SMALL, **KINDS[family]), seed=4).module
    ids, segments = _packed()
    with torch.no_grad():
        found = module.packed_copy().states(ids, segments=segments)
        assert float((found - module.states(ids, segments=segments))[:, :-2].abs().max()) < 1e-5


@pytest.mark.parametrize("family", KINDS)
def test_segments_do_not_affect_each_other(family: str) -> None:
    module = _model(family).module
    ids, segments = _packed()
    other = ids.clone()
    other[0, 5:8] = torch.tensor([30, 31, 32])
    with torch.no_grad():
        before, after = (_parts(module.states(one, segments=segments)) for one in (ids, other))
    assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("family", KINDS)
def test_no_gradient_flows_from_one_text_to_another(family: str) -> None:
    module = _model(family).module
    ids, segments = _packed()
    _parts(module.states(ids, segments=segments))[1].square().sum().backward()
    gradient = module.embeddings.token.weight.grad
    assert gradient is not None
    own = set(TEXTS[1])
    assert all(bool(gradient[i].any()) == (i in own) for text in TEXTS for i in text)


def test_the_first_pass_of_a_cache_may_hold_several_texts() -> None:
    module: Any = _model("llama").module
    ids, segments = _packed(padding=0)
    cache = module.new_cache(ids.shape[1])
    with torch.no_grad():
        found = module.states(ids, cache=cache, segments=segments)
        assert torch.equal(found, module.states(ids, segments=segments))
    assert cache.positions.tolist() == [[position for text in TEXTS for position in range(len(text))]]
    with pytest.raises(InputError, match="segments cannot follow the 15 positions"):
        module.states(ids[:, :1], cache=cache, segments=segments[:, :1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, i, s: m(i, segments=s[:, :3]), "segments is int64"),
        (lambda m, i, s: m(i, torch.ones_like(i), segments=s), "segments and an attention_mask"),
        (lambda m, i, s: m(i, segments=torch.ones_like(s)), "17 tokens are too many"),
    ],
)
def test_invalid_segments_are_refused(call: Callable[[Any, Tensor, Tensor], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(_model("gpt2").module, *_packed())


def test_model_with_token_dependent_positions_refuses_segments() -> None:
    config = pellucid.Config.of("roberta", **SMALL, intermediate_size=40, max_position_embeddings=40)
    with pytest.raises(InputError, match="counts positions by its tokens"):
        pellucid.build(config).module(*_packed()[:1], segments=_packed()[1])
