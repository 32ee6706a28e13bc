"""Work that is done as a user to whom little belongs."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.search.children import ended, start

NOBODY = 65_534


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody can reach: those of pytest are closed whenever another pytest starts."""
    if os.getuid() != 0:
        pytest.skip("only root can become nobody")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_nobody(work: Callable[[], object], *own: Path) -> None:
    """Does some work in a fork, as a user to whom these folders alone belong."""

    def somebody() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        work()

    for path in own:
        os.chown(path, NOBODY, NOBODY)
    assert ended(start(somebody)) == 0
