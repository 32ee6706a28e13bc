"""Fixtures shared by the tests of the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints.builders import PICKLED, WEIGHTS, valid_checkpoint, with_file
from tests.checkpoints.hub import Hub, running_hub

EXTRAS = (
    "tf_model.h5",
    "onnx/model.onnx",
    "model.onnx",
    "training_args.bin",
    "optimizer.pt",
    "model.py",
    "big.safetensors",
)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as served:
        yield served


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkpoint with all the other files that people add to a repository."""
    folder = valid_checkpoint(tmp_path / "repository")
    torch.save(load_file(folder / WEIGHTS), folder / PICKLED)
    for name in (*EXTRAS, "README.md", ".gitattributes", "vocab.txt.bak"):
        with_file(name, "license: mit\n" * 50)(folder)
    return folder
