"""Small trainings that are run twice, and what is equal where they are the same; also as a program of its own:
`python -m tests.training.courses ASKED`, so that it can be killed, or started several times by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.checkpoints.loaded import Loaded
from pellucid.training import training_run
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.loop import Event
from pellucid.training.settings import Settings
from pellucid.training.state import State
from pellucid.training.training_run import Result, RunStart, run_training

ROOT = Path(__file__).parents[2]

Rows = list[dict[str, Any]]

QUICK: dict[str, Any] = {"batch_size": 6, "epochs": 3, "learning_rate": 3e-3, "precision": "float32"}
"""A training of a few milliseconds a step; dropout as the checkpoint says, 0.1."""


def lines(found: Result | Path) -> list[dict[str, Any]]:
    """The lines of a log without their seconds."""
    if isinstance(found, Result):
        held = list(found.log)
    else:
        held = [json.loads(line) for line in found.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in held]


def same(first: Loaded, second: Loaded) -> bool:
    """Whether two models hold the same numbers, bit for bit."""
    ours, theirs = first.module.state_dict(), second.module.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def farthest(first: Loaded, second: Loaded) -> float:
    """The greatest difference between two models' numbers, but for biases of keys: a bias that all keys have in common
    cancels in softmax, so its gradient is rounding alone, which AdamW divides by its own size."""
    ours, theirs = first.module.state_dict(), second.module.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours if not name.endswith("key.bias"))


def listing(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the lock, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


# -- in a process of its own ------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What a process of its own is to learn.

    base: a folder with a checkpoint.  settings: over `QUICK`.  notes: a file that is told of the beginning, of every
    state that is kept and of the end.  pause: seconds before each step.  interrupt: a step after which it is sent
    Ctrl-C.  fail: the rank, and the step, at which a process fails.
    """

    base: str
    out: str | None
    rows: Rows
    validation: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    resume: bool = False
    notes: str | None = None
    pause: float = 0.0
    interrupt: int | None = None
    fail: tuple[int, int] | None = None
    numbers: str | None = None

    def command(self) -> list[str]:
        """The command line of this process, after the interpreter."""
        return ["-m", "tests.training.courses", json.dumps(asdict(self))]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Begins it."""
        around = os.environ | {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"} | environment
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *self.command()], cwd=ROOT, env=around, **streams)

    def __call__(self) -> Result:
        """Does it, in this process."""
        objective = TextClassification()
        settings = Settings.of(QUICK | self.settings, objective.default_settings)
        base, out = pellucid.load(self.base).loaded, None if self.out is None else Path(self.out)
        data = DataArguments(self.rows, self.validation)
        options: dict[str, Any] = {"out": out, "resume": self.resume, "progress": False}
        with pytest.MonkeyPatch.context() as patch:
            self._watch(patch)
            return run_training(
                base, data, objective, settings, **options, on_event=self._on_event, on_start=self._on_start
            )

    def note(self, what: str) -> None:
        """Adds a line to the notes, which are on the disk when this returns."""
        if self.notes is not None:
            with Path(self.notes).open("a") as file:
                file.write(what + "\n")

    def _on_start(self, start: RunStart) -> None:
        self.note(f"begun {start.step}")

    def _on_event(self, one: Event) -> None:
        time.sleep(self.pause)
        if one.step == self.interrupt and not one.is_evaluation:
            os.kill(os.getpid(), signal.SIGINT)

    def _watch(self, patch: pytest.MonkeyPatch) -> None:
        """Takes note of every state, as soon as whoever asked for it has been told that it is kept."""
        patch.setattr(training_run, "SAVE_INTERVAL", 0.0)
        real = State.save

        def save(state: State, loop: Any, *given: Any, **named: Any) -> None:
            real(state, loop, *given, **named)
            self.note(f"kept {loop.progress.step}")

        patch.setattr(State, "save", save)
        rank, step = self.fail or (-1, -1)
        if rank == int(os.environ.get("RANK", "0")):
            collate, calls = TextClassification.collate, iter(range(1_000_000))

            def failing(*given: Any) -> Any:
                if next(calls) == step:
                    raise pellucid.errors.ResourceError("this process has no memory left")
                return collate(*given)

            patch.setattr(TextClassification, "collate", failing)


def main(asked: Asked) -> int:
    """Runs it; ends as the command line ends."""
    try:
        result = asked()
    except KeyboardInterrupt as stop:
        print(f"pellucid: {stop}", file=sys.stderr)
        return 130
    except pellucid.errors.PellucidError as error:
        print(f"pellucid: {error}", file=sys.stderr)
        return error.exit_code
    if asked.numbers is not None:
        held = {name: tensor.numpy() for name, tensor in result.loaded.module.state_dict().items()}
        np.savez(asked.numbers + os.environ.get("RANK", "0"), **held)
    asked.note("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(Asked(**json.loads(sys.argv[1]))))
