"""Loads checkpoints in a separate process that reports whatever a file should never make it do.

Run as a script: each argument is a folder, answered by one line of JSON. Nothing is mocked: an audit hook of the
interpreter records and refuses every shell call, new process, connection, unrestricted unpickling, and import of a
module named `payload`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEMORY_LIMIT = 6 * 2**30
"""Limit of the process's address space, in bytes; PyTorch alone maps one or two GiB."""

FORBIDDEN = (
    "os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty subprocess.Popen pty.spawn socket.connect "
    "socket.bind socket.sendto socket.getaddrinfo pickle.find_class ctypes.dlopen"
).split()


@dataclass(frozen=True)
class Answer:
    """The result for one folder.

    error: the class of the error, "" where the folder was loaded.  memory_growth: bytes by which peak memory rose.
    events: every forbidden event that was attempted.
    """

    error: str
    message: str
    seconds: float
    memory_growth: int
    events: list[str]


def load_guarded(*folders: Path, python_path: Path | None = None) -> list[Answer]:
    """One answer per folder, from one guarded process; `python_path` is where a payload could be imported from."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in (ROOT, python_path) if path)
    result = subprocess.run(
        [sys.executable, __file__, *map(str, folders)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return [Answer(**json.loads(line)) for line in result.stdout.splitlines()]


def main() -> None:
    """Runs in the guarded process: loads each folder and prints its answer."""
    import torch

    import pellucid
    from tests.checkpoints.builders import convert_to_bin, valid_checkpoint

    with tempfile.TemporaryDirectory() as warm:  # imports on first use happen before the watch begins
        pellucid.load(convert_to_bin(valid_checkpoint(Path(warm))))
    torch.set_num_threads(1)
    os.environ.pop("HF_HUB_OFFLINE", None)  # a name that is no folder may go to the hub, which the guard must see
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"
    events: list[str] = []

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN or (event == "import" and arguments[0].split(".")[0] == "payload"):
            events.append(f"{event} {arguments}"[:200])
            raise RuntimeError(f"forbidden: {events[-1]}")

    sys.addaudithook(refuse)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    for folder in sys.argv[1:]:
        events.clear()
        before, started = peak_memory(), time.process_time()
        error = message = ""
        try:
            pellucid.load(folder)
        except Exception as caught:  # noqa: BLE001 - the parent judges it
            error, message = type(caught).__name__, str(caught)
        took = time.process_time() - started
        answer = Answer(error, message, took, peak_memory() - before, list(events))
        print(json.dumps(vars(answer)), flush=True)


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
