"""Running code as a user with few rights."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.search.child_processes import exit_code_of, start_fork

NOBODY = 65_534


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's own are closed whenever another pytest starts."""
    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(work: Callable[[], object], *owned: Path) -> None:
    """Runs `work` in a forked process, as a user who owns only these folders."""

    def work_unprivileged() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    for path in owned:
        os.chown(path, NOBODY, NOBODY)
    assert exit_code_of(start_fork(work_unprivileged)) == 0
