"""The beginning and end of a benchmark: a quiet process and the machine; verdicts and a file of numbers."""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from corpus import CorpusError, data_folder
from machine import describe, quiet_environment


class Session:
    """One run of a benchmark. verdicts: one line each, in order."""

    def __init__(self, *, with_data: bool = False, with_torch: bool = False) -> None:
        """Prints the machine.

        with_data: whether real data are needed; without their folder the process exits here.
        with_torch: whether to import torch for the names of its libraries.
        """
        self.begun, self.verdicts = time.perf_counter(), list[str]()
        quiet_environment()
        if with_data:
            try:
                data_folder()
            except CorpusError as missing:
                exit_with(missing)
        self.machine = describe(with_torch)
        print(*self.machine.lines(), "", sep="\n", flush=True)

    def end(self, file: Path | None, **numbers: Any) -> None:
        """Prints the verdicts and, if a file is passed, writes all numbers to it as JSON."""
        print(*self.verdicts, f"{time.perf_counter() - self.begun:.0f} s in all", sep="\n")
        if file:
            written = {"machine": self.machine.as_dict(), **numbers, "verdicts": self.verdicts}
            part = file.with_name(f"{file.name}.tmp")
            part.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
            part.replace(file)


def exit_with(reason: object) -> NoReturn:
    """Ends the process with a message and code 2."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def selected_names(option: str | None, known: Iterable[str], kind: str) -> list[str]:
    """The names in an option, separated by commas, in the order of ``known``; all of them without the option.

    kind: what is named, such as "side"; a name that is not known ends the process.
    """
    known = list(known)
    names = option.split(",") if option else known
    if unknown := [name for name in names if name not in known]:
        exit_with(f"bench: there is no {kind} named {', '.join(unknown)}; choose among {', '.join(known)}")
    return [name for name in known if name in names]
