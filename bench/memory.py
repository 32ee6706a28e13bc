"""The peak memory of a process as Linux counts it: resident pages, including those of mapped files."""

from pathlib import Path

from side import UnavailableError

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _status() -> dict[str, int]:
    """Bytes by the kernel's names of the fields."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


class MemoryMeter:
    """Measures memory from its creation on."""

    def __init__(self) -> None:
        if not STATUS.exists():
            raise UnavailableError("the peak memory of a process is only known on Linux")
        try:
            RESET.write_text("5")  # resets the peak to the current memory
        except OSError as refused:
            raise UnavailableError(f"the kernel refuses to reset the peak memory: {refused}") from refused
        self.begun = _status()

    def read(self) -> dict[str, int]:
        """base: bytes at creation; the others are above it. peak: the maximum. own, file: anonymous and mapped, now."""
        now, begun = _status(), self.begun
        return {
            "base": begun["VmRSS"],
            "peak": now["VmHWM"] - begun["VmRSS"],
            "own": now["RssAnon"] - begun["RssAnon"],
            "file": now["RssFile"] - begun["RssFile"],
        }
