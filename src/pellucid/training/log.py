"""The log of a training run: `log.jsonl`, one JSON object a line for each step and each evaluation.

    {"step": 12, "epoch": 0, "loss": 0.61, "learning_rate": 0.0001, "gradient_norm": 1.2, "tokens": 190, "seconds": 0.2}
    {"step": 12, "scores": {"loss": 0.58, "accuracy": 0.71}, "best": true, "seconds": 0.9}

A number that is not finite is null; a step that was not applied has `"skipped": true`.
"""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pellucid.errors import ResourceError
from pellucid.files import FULL, cannot_write, file_errors, write_atomically
from pellucid.training.advice import RESUME

log = logging.getLogger("pellucid")


class Log:
    """The log of a running training.

    path: its file; None keeps the lines in memory only.  step: lines of later steps are removed first, since these run
    again, with the same results but for the seconds.
    """

    def __init__(self, path: Path | None, step: int = 0) -> None:
        self.path, self.lines = path, list[dict[str, Any]]()
        self._handle: int | None = None
        if path is None:
            return
        self.lines = [line for line in read_log(path) if line["step"] <= step]
        if missing := step - len({line["step"] for line in self.lines if "loss" in line}):
            log.warning("%s lacks %s of the first %d steps: it holds only the others", path, f"{missing:,}", step)
        self.copy(path)
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise cannot_write(path, error) from error

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line. Raises ResourceError where the disk is full; the file then ends with the line before."""
        self.lines.append(line)
        if self._handle is None:
            return
        content, before = _written(line), os.fstat(self._handle).st_size
        try:
            left = content
            while left:  # after a partial write the next one raises the error
                left = left[os.write(self._handle, left) :]
        except OSError as error:
            os.ftruncate(self._handle, before)
            wrong = cannot_write(self.path or Path(), error)
            if error.errno in FULL:
                wrong = ResourceError(
                    f"{FULL[error.errno]} for {len(content)} more bytes of {self.path}; what was saved before is still "
                    "there: free some space, and continue with ",
                    RESUME,
                )
            raise wrong from error

    def flush(self) -> None:
        """Flushes all lines to the disk (fsync)."""
        if self._handle is not None:
            os.fsync(self._handle)

    def close(self) -> None:
        """Closes the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def copy(self, target: Path) -> None:
        """Writes all lines to a file, atomically."""
        write_atomically(target, lambda file: file.write(b"".join(map(_written, self.lines))), only_writer=True)


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a log; a last one that was cut off is skipped."""
    found = []
    with file_errors(path):
        lines = path.read_bytes().splitlines() if path.is_file() else []
    for content in lines:
        try:
            line = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and type(line.get("step")) is int:
            found.append(line)
    return found


def replace_non_finite(value: Any) -> Any:
    """A value for JSON, which has neither infinity nor NaN: None in their place."""
    if isinstance(value, Mapping):
        return {name: replace_non_finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _written(line: dict[str, Any]) -> bytes:
    return (json.dumps(line, allow_nan=False) + "\n").encode()
