"""The limits that control groups (Linux, versions 1 and 2) set to this process's memory and processor time."""

import contextlib
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Where the groups are mounted: a container's own, or the machine's."""

OWN = Path("/proc/self/cgroup")
"""Lists the groups of this process."""

MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""By version: the limit, the usage, and the part of the usage that is file pages, which the system can reclaim."""

PROCESSOR_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
"""By version: the quota of processor time and the period that it applies to."""


def available_memory() -> list[int]:
    """Bytes left within each limit."""
    available = []
    for group in _limiting_groups("memory"):
        for limit, used, pages in MEMORY_FILES:
            with contextlib.suppress(OSError, ValueError):  # another version; "max", which is no limit
                free = int((group / limit).read_text()) - int((group / used).read_text())
                available.append(free + (statistic(group / "memory.stat", pages) or 0))
    return available


def processor_limits() -> list[int]:
    """Whole processors' worth of time that each limit allows; 0 for less than one."""
    limits = []
    for group in _limiting_groups("cpu"):
        for names in PROCESSOR_FILES:
            with contextlib.suppress(OSError, ValueError):
                quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                limits += [quota // period] if quota >= 0 else []
    return limits


def _limiting_groups(controller: str) -> list[Path]:
    """The folders of the groups that limit this process, each within the next; the outer limits apply, too."""
    folders = []
    with contextlib.suppress(OSError, ValueError):  # a system without control groups
        for line in OWN.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds or controller in kinds.split(","):  # version 2 has one tree for all controllers
                root = ROOT / controller if kinds else ROOT
                group = root / path.strip("/")
                folders += [group, *(one for one in group.parents if one.is_relative_to(root))]
    return folders


def statistic(statistics: Path, name: str) -> int | None:
    """A number of a file that lists one a line, after its name; None where it is missing."""
    with contextlib.suppress(OSError):
        for line in statistics.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return None
