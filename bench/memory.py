"""The peak of a process's memory, as Linux counts it: pages in memory, those of mapped files included."""

from pathlib import Path

from side import UnavailableError

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status() -> dict[str, int]:
    """Bytes by the kernel's names."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


class Meter:
    """Counts, from its making on."""

    def __init__(self) -> None:
        if not STATUS.exists():
            raise UnavailableError("only Linux tells a process its peak of memory")
        try:
            CLEAR.write_text("5")  # the peak starts anew from what is in memory now
        except OSError as refused:
            raise UnavailableError(f"the kernel does not let the peak start anew: {refused}") from refused
        self.begun = _status()

    def read(self) -> dict[str, int]:
        """base: at the beginning; all others are above it. peak: at the most. own, file: now, its own and of files."""
        now, begun = _status(), self.begun
        return {
            "base": begun["VmRSS"],
            "peak": now["VmHWM"] - begun["VmRSS"],
            "own": now["RssAnon"] - begun["RssAnon"],
            "file": now["RssFile"] - begun["RssFile"],
        }
