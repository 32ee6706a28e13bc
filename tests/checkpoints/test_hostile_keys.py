"""Every key of every family's `config.json` with every odd value: read, or named in one sentence."""

import contextlib
import logging
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.config import Config
from pellucid.errors import PellucidError
from pellucid.models import assemble
from tests.checkpoints.builders import assert_one_sentence
from tests.checkpoints.families import EVERY_KEY, TINY, config_keys, facts_of, family, save
from tests.quick import few

pytestmark = pytest.mark.timeout(120)

PATH = Path("model/config.json")
DEEP: list[Any] = []
for _ in range(700):
    DEEP = [DEEP]

NUMBERS = [-1, 0, 1, 2, 3, 5, 7, 1_000, 10**6, 10**8, 2**31, 2**62, 2**63, -(2**63), 10**400, 0.5, -0.5, 1.0, 1e-320]
NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), None, True, False]
TEXTS = ["", "x", "16", "gelu", "gated-gelu", "linear", "os.system", "x" * 100_000, "\x1b[2J\n", "\0"]
CONTAINERS = [
    [],
    [1],
    [[1]],
    [None],
    ["x"],
    [2**70],
    [0, "a"],
    DEEP,
    {},
    {"x": 1},
    {"0": {"a": 1}},
    {"0": "a", "1": "a"},
]
ROTARY = [
    {"rope_type": "yarn"},
    {"rope_type": ["linear"]},
    {"type": "linear"},
    {"rope_type": "linear", "factor": "x"},
    {"rope_type": "linear", "factor": 10**400},
    {"rope_type": "linear", "factor": 0},
    {"rope_type": "llama3", "factor": 8.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": 64},
    {"rope_theta": "x"},
    {"rope_theta": [1]},
    {"rope_theta": 10**400},
    {"rope_theta": True},
    {"partial_rotary_factor": 0.5},
    {"full_attention": {"rope_theta": 1e4}},
]
ODD_VALUES = [*NUMBERS, *NO_NUMBERS, *TEXTS, *CONTAINERS, *ROTARY]


@pytest.fixture(scope="module")
def tiny_facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The facts of each family's tiny `config.json`."""
    return {name: facts_of(save(name, tmp_path_factory.mktemp(name) / "model")) for name in TINY}


def with_key(facts: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The facts with one key set; `id2label` is left out beside `num_labels`, which is read only without it."""
    others = {name: old for name, old in facts.items() if key != "num_labels" or name != "id2label"}
    return others | {key: value}


def build_without_memory(config: Config) -> None:
    """Builds the model without memory, unless so deep that it takes seconds: loading checks the depth first."""
    if max(config.num_hidden_layers, config.facts().get("num_decoder_layers", 0)) < 10:
        with torch.device("meta"):
            assemble(config)


@pytest.mark.parametrize(("model_type", "key"), few(EVERY_KEY, ["bert", "llama", "t5"]))
def test_an_odd_value_is_read_or_named(
    model_type: str, key: str, tiny_facts: dict[str, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="pellucid")
    refused = 0
    for value in ODD_VALUES:
        started = time.process_time()
        try:
            config = family(model_type).read(with_key(tiny_facts[model_type], key, value), PATH)
            build_without_memory(config)
        except PellucidError as error:
            refused += 1
            assert_one_sentence(str(error), Path("model"))
            words = set(re.findall(r"\w+", str(error)))
            assert words & {*config_keys(model_type), "labels"}, (value, str(error))
        else:  # none of these models has labels, and an id2label without names is ignored
            refused += key == "id2label" and config.labels == ("LABEL_0", "LABEL_1")
        assert time.process_time() - started < 1, value
    assert refused > 20, refused  # of some sixty


@pytest.mark.parametrize("model_type", TINY)
def test_absurd_sizes_take_no_memory(model_type: str, tiny_facts: dict[str, dict[str, Any]]) -> None:
    for key in config_keys(model_type):
        if type(tiny_facts[model_type].get(key)) is not int:
            continue
        tracemalloc.start()
        with contextlib.suppress(PellucidError):
            build_without_memory(family(model_type).read(with_key(tiny_facts[model_type], key, 10**8), PATH))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10_000_000, key


@pytest.mark.parametrize("model_type", TINY)
def test_unchanged_facts_are_read(model_type: str, tiny_facts: dict[str, dict[str, Any]]) -> None:
    """The refusals above are due to their values and to nothing else."""
    config = family(model_type).read(tiny_facts[model_type], PATH)
    assert (config.hidden_size, config.num_hidden_layers) == (24, 2)
