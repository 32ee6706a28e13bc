"""Which layers an adapter targets: the same as by PEFT's own function, from the same keys."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from pellucid.checkpoints.adapter_targets import read_targets

MODULES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.11.mlp.down_proj",
    "layers.1.self_attn.q_proj",
    "h.1.attn.c_attn",
    "transformer.h.1.attn.c_attn",
    "encoder.layer.1.attention.self.query",
    "encoder.block.0.layer.1.DenseReluDense.wo",
    "decoder.block.1.layer.0.SelfAttention.q",
    "classifier",
    "lm_head",
]
NAMED: list[Any] = [
    [],
    ["q_proj", "c_attn", "query"],
    ["proj", "wo", "q", "classifier", "self.query"],
    ["model.layers.0.self_attn.q_proj", "DenseReluDense.wo", "lm_head", "down_proj"],
]
EXCLUDED: list[Any] = [None, [], ["q_proj"], ["attn.c_attn", "classifier"], ["encoder.layer.1.attention.self.query"]]
LAYERS: list[Any] = [None, [], 0, 1, [1, 11], [0]]
PATTERNS: list[Any] = [None, "", [], "layers", "layer", ["h", "block"], ["model.layers"]]


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_targets_equal_those_of_peft(named: list[str]) -> None:
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    keys = set()
    for excluded, layers, pattern, module in itertools.product(EXCLUDED, LAYERS, PATTERNS, MODULES):
        config = {
            "target_modules": named,
            "exclude_modules": excluded,
            "layers_to_transform": layers,
            "layers_pattern": pattern,
        }
        theirs: Any = check_target_module_exists(SimpleNamespace(**config), module)
        targeted = bool(theirs) and not isinstance(theirs, _ExcludedModule)
        key = read_targets(config).excluding_key(module)
        assert (key is None) == targeted, (config, module)
        keys.add(key)
    assert named == [] or keys == {None, "target_modules", "exclude_modules", "layers_to_transform"}


@pytest.mark.parametrize("named", [None, "all-linear", r".*\.(q|k)_proj", "(a+)+$"])
def test_regular_expressions_exclude_nothing(named: str | None) -> None:
    targets = read_targets({"target_modules": named, "exclude_modules": "(a+)+$"})
    assert targets.excluding_key("a" * 40 + ".b") is None
    targets = read_targets({"target_modules": ["q"], "layers_to_transform": [1], "layers_pattern": "(a+)+"})
    assert targets.excluding_key("a" * 40 + ".0.q") is None
