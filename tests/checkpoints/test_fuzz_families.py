"""Checkpoints of every family with a damaged header or config: each loads and runs, or raises an error of pellucid."""

import json
import logging
import resource
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.checkpoints.families import families
from pellucid.errors import PellucidError
from tests.checkpoints.builders import WEIGHTS, read_raw, write_raw
from tests.checkpoints.families import TINY, assert_runs, config_keys, facts_of, save
from tests.checkpoints.gguf_files import llamacpp_name, write_gguf

pytestmark = pytest.mark.timeout(600)

SLOW_CASES = pytest.param(180, marks=pytest.mark.slow)
"""Slow cases of one kind for one family: header and config of every family, and two GGUF files, over 5,000 in all."""

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 7, 24, 60, 999, 10**8, 2**31, 2**63, 10**30, 0.5, float("nan"), 1e300])
TEXTS = st.sampled_from(["", "x", "gelu", "relu", "linear", "llama3", "\x1b[2J", "x" * 5000])
NAMES = st.sampled_from(["type", "rope_type", "factor", "rope_theta", "0", "1", "dtype", "shape", "data_offsets"])
LEAVES = NUMBERS | TEXTS | st.none() | st.booleans()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))


def fuzz_settings(cases: int) -> Any:
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    return settings(max_examples=cases, derandomize=True, deadline=None, database=None, suppress_health_check=slow)


def loading_outcome(folder: Path, max_growth: int = 200 * 2**20) -> str:
    """How loading and one pass end; other errors, 1.5 s of CPU time or growth by `max_growth` bytes fail the test."""
    before, started = peak_memory(), time.process_time()
    try:
        assert_runs(folder)
        outcome = "runs"
    except PellucidError as error:
        assert str(error).isprintable(), repr(str(error))
        outcome = type(error).__name__
    assert time.process_time() - started < 1.5
    assert peak_memory() - before < max_growth
    return outcome


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_every_family_has_tiny_sizes() -> None:
    assert TINY.keys() == families().keys()


@pytest.fixture(params=TINY)
def folder(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.CRITICAL, logger="pellucid")
    found = save(request.param, tmp_path / "model")
    assert_runs(found)  # imports on first use happen before the clock starts
    return found


@pytest.mark.parametrize("cases", [12, SLOW_CASES])
def test_damaged_config_runs_or_raises_our_errors(folder: Path, cases: int) -> None:
    facts, outcomes = facts_of(folder), Counter[str]()

    @fuzz_settings(cases)
    @given(st.dictionaries(st.sampled_from(config_keys(facts["model_type"])), VALUES, min_size=1, max_size=3))
    def damaged(changes: dict[str, Any]) -> None:
        (folder / "config.json").write_text(json.dumps(facts | changes), encoding="utf-8")
        outcomes[loading_outcome(folder)] += 1

    damaged()
    assert sum(outcomes.values()) >= cases // 2
    assert len(outcomes) >= 2 or cases < 50, outcomes  # some values change nothing that matters, most do


@pytest.mark.parametrize("cases", [12, SLOW_CASES])
def test_damaged_header_runs_or_raises_our_errors(folder: Path, cases: int) -> None:
    header, body = read_raw(folder / WEIGHTS)
    names, outcomes = sorted(set(header) - {"__metadata__"}), Counter[str]()
    fields = st.sampled_from(["dtype", "shape", "data_offsets"])
    shapes = st.lists(st.sampled_from([0, 1, 2, 24, 60, 2**31, 2**62]), max_size=9)
    values = VALUES | shapes | st.sampled_from(["F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3"])

    @fuzz_settings(cases)
    @given(st.sampled_from(names), st.sampled_from(names), fields, values, st.integers(0, 4))
    def damaged(name: str, other: str, field: str, value: Any, way: int) -> None:
        changed = json.loads(json.dumps(header))
        match way:
            case 0:  # another tensor's place
                changed[name], changed[other] = changed[other], changed[name]
            case 1:  # another name
                changed[other + ".weight"] = changed.pop(name)
            case 2:  # another shape of the same size
                changed[name]["shape"] = changed[name]["shape"][::-1]
            case _:
                changed[name][field] = value
        write_raw(folder / WEIGHTS, changed, body)
        outcomes[loading_outcome(folder)] += 1

    damaged()
    assert "CorruptFileError" in outcomes


GGUF_FACTS = {
    "llama": {"llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5},
    "gpt2": {"gpt2.attention.layer_norm_epsilon": 1e-5},
}


def save_as_gguf(model_type: str, folder: Path) -> Path:
    """A tiny checkpoint of a family as llama.cpp stores it."""
    from safetensors.torch import load_file

    stored = load_file(save(model_type, folder / "theirs") / WEIGHTS)
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    tensors = {llamacpp_name(name): value.T if name.endswith(transposed) else value for name, value in stored.items()}
    sizes = {"context_length": 32, "embedding_length": 24, "block_count": 2, "feed_forward_length": 40}
    facts = {f"{model_type}.{key}": value for key, value in (sizes | {"attention.head_count": 4}).items()}
    (folder / "gguf").mkdir()
    write_gguf(folder / "gguf" / "model.gguf", model_type, facts | GGUF_FACTS[model_type], tensors)
    return folder / "gguf"


@pytest.mark.parametrize("model_type", GGUF_FACTS)
@pytest.mark.parametrize("cases", [40, SLOW_CASES])
def test_damaged_gguf_runs_or_raises_our_errors(model_type: str, cases: int, tmp_path: Path) -> None:
    folder = save_as_gguf(model_type, tmp_path)
    assert_runs(folder)
    raw, outcomes = (folder / "model.gguf").read_bytes(), Counter[str]()
    head = raw.rindex(b".weight") + 60  # followed by tensor data, in which any bytes are valid
    pieces = st.binary(min_size=1, max_size=9) | st.sampled_from([b"\xff" * 8, bytes(8), (2**62).to_bytes(8, "little")])

    @fuzz_settings(cases)
    @given(st.integers(0, head), pieces, st.booleans())
    def damaged(position: int, piece: bytes, over: bool) -> None:
        (folder / "model.gguf").write_bytes(raw[:position] + piece + raw[position + (len(piece) if over else 0) :])
        outcomes[loading_outcome(folder)] += 1

    damaged()
    assert "CorruptFileError" in outcomes


class FailingPath:
    """A path that raises an error of its own."""

    def __fspath__(self) -> str:
        raise ZeroDivisionError


def test_loading_outcome_can_fail(tmp_path: Path) -> None:
    """An error that is not ours passes through, and memory growth is noticed."""
    folder = save("gpt2", tmp_path / "model")
    assert loading_outcome(folder) == "runs"
    with pytest.raises(ZeroDivisionError):
        loading_outcome(FailingPath())
    with pytest.raises(AssertionError):
        loading_outcome(folder, max_growth=-1)
