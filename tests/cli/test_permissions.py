"""Paths on the command line that this user may not read or write."""

from pathlib import Path

import pytest

from pellucid.cli.options import NonEmptyPath
from pellucid.cli.reading import file_argument
from pellucid.errors import InputError
from pellucid.files import target_of, write_atomically
from tests.nobody import as_nobody, open_folder


def test_an_output_that_may_not_be_read_is_written() -> None:
    def work() -> None:
        found = NonEmptyPath(dir_okay=False).convert(str(own / "private"), None, None)
        assert write_atomically(target_of(found), lambda file: file.write(b"new")) == own / "private"
        assert NonEmptyPath(file_okay=False).convert(str(place / "closed"), None, None) == place / "closed"
        with pytest.raises(InputError, match=f"cannot write {own / 'link'}: Permission denied"):
            target_of(own / "link")

    with open_folder() as place:
        (own := place / "own").mkdir()
        (place / "closed").mkdir(mode=0o700)
        (own / "private").touch(mode=0o200)
        (own / "link").symlink_to(place / "closed" / "file")
        as_nobody(work, own, own / "private")
        assert (own / "private").read_bytes() == b"new"
        assert (own / "private").stat().st_mode & 0o777 == 0o200


@pytest.mark.parametrize("column", [None, "text"])
def test_a_file_that_may_not_be_known_is_no_missing_one(column: str | None) -> None:
    def work() -> None:
        with pytest.raises(InputError, match=f"cannot read {file}: Permission denied"):
            file_argument((str(file),), column)

    with open_folder() as place:
        file: Path = place / "closed" / "a.txt"
        file.parent.mkdir(mode=0o700)
        file.write_text("a text\n")
        as_nobody(work)
