"""What the sides of all benchmarks share. A side is pellucid or one of the peers that it is compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Setting = dict[str, Any]
"""The values of a side's axes by name."""


class UnavailableError(Exception):
    """This side cannot run on this machine; the message gives the reason."""


@dataclass(frozen=True)
class Workspace:
    """The checkpoint that a side loads, a folder in which it may write files, and its number of threads."""

    model: Path
    scratch: Path
    threads: int

    def parallel_batches(self) -> list[int]:
        """Numbers of parallel batches to try: from one on all threads to one per thread."""
        return sorted({1, max(1, self.threads // 2), self.threads})
