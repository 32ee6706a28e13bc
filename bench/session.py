"""The beginning and end of every benchmark: a quiet process and the machine; verdicts and a file of numbers."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from corpus import CorpusError, data_folder
from machine import describe, quiet_environment


class Session:
    """One run of a benchmark. said: its verdicts, one line each, in order."""

    def __init__(self, *, with_data: bool = False) -> None:
        """Prints the machine. with_data: whether real data are needed; without their folder the process exits here."""
        self.begun, self.said = time.perf_counter(), list[str]()
        quiet_environment()
        if with_data:
            try:
                data_folder()
            except CorpusError as missing:
                print(missing, file=sys.stderr)
                sys.exit(2)
        self.machine = describe(with_torch=False)
        print(*self.machine.lines(), "", sep="\n", flush=True)

    def end(self, file: Path | None, **numbers: Any) -> None:
        """Prints the verdicts and, if a file is passed, writes all numbers to it."""
        print(*self.said, f"{time.perf_counter() - self.begun:.0f} s in all", sep="\n")
        if file:
            found = {"machine": self.machine.as_dict(), **numbers, "verdicts": self.said}
            file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
