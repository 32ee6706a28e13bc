"""Trains on pairs as one of several processes: `python -m tests.training.pairs_process BASE ROWS OUT OPTIONS`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch

import pellucid
from pellucid.training.distributed import Ranks, join_processes
from pellucid.training.loop import Loop
from pellucid.training.pairs import SentenceSimilarity
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training

OPTIONS: dict[str, Any] = {"batch_size": 8, "epochs": 2, "learning_rate": 1e-2, "epsilon": 1e-2, "precision": "float32"}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def losses_and_loop(base: Path, rows: list[dict[str, Any]], ranks: Ranks, **options: Any) -> tuple[list[float], Loop]:
    """The loss of every step, and the finished loop."""
    settings, objective = Settings(**OPTIONS, **NO_DROPOUT), SentenceSimilarity(**options).fitted(rows)
    loaded = objective.with_task_settings(model_for_training(pellucid.load(base).loaded, objective, settings))
    loop = Loop(loaded, objective, settings, objective.examples(loaded, rows), ranks=ranks)
    return [event.metrics["loss"] for event in loop], loop


def main(base: str, rows: str, out: str, options: str) -> None:
    with join_processes(torch.device("cpu")) as ranks:
        losses, loop = losses_and_loop(Path(base), json.loads(rows), ranks, **json.loads(options))
        weights = {name: numbers.detach() for name, numbers in loop.parameters.items()}
        torch.save({"losses": losses, "numbers": weights}, f"{out}{ranks.rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
