"""Paths on the command line that this user may not read or write."""

from pathlib import Path

import pytest

from pellucid.cli.options import NonEmptyPath
from pellucid.cli.reading import file_argument
from pellucid.errors import InputError
from pellucid.files import write_atomically
from pellucid.paths import target_of
from tests.unprivileged import as_nobody, open_folder


def test_output_file_without_read_permission_is_written() -> None:
    def check_write() -> None:
        path = NonEmptyPath(dir_okay=False).convert(str(own / "private"), None, None)
        assert write_atomically(target_of(path), lambda file: file.write(b"new")) == own / "private"
        assert NonEmptyPath(file_okay=False).convert(str(folder / "closed"), None, None) == folder / "closed"
        assert NonEmptyPath(dir_okay=False).convert(str(own / "link"), None, None) == own / "link"
        with pytest.raises(InputError, match=f"cannot write {own / 'link'}: Permission denied"):
            target_of(own / "link")

    with open_folder() as folder:
        (own := folder / "own").mkdir()
        (folder / "closed").mkdir(mode=0o700)
        (own / "private").touch(mode=0o200)
        (own / "link").symlink_to(folder / "closed" / "file")
        as_nobody(check_write, own, own / "private")
        assert (own / "private").read_bytes() == b"new"
        assert (own / "private").stat().st_mode & 0o777 == 0o200


@pytest.mark.parametrize("column", [None, "text"])
def test_file_in_a_closed_folder_is_not_reported_as_missing(column: str | None) -> None:
    def check_read() -> None:
        with pytest.raises(InputError, match=f"cannot read {file}: Permission denied"):
            file_argument((str(file),), column)

    with open_folder() as folder:
        file: Path = folder / "closed" / "a.txt"
        file.parent.mkdir(mode=0o700)
        file.write_text("a text\n")
        as_nobody(check_read)
