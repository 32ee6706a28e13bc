"""Texts that this user may not read: in a folder they are skipped and reported, by name they are refused."""

import shutil
import tempfile
from pathlib import Path

import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.search.corpus import Corpus
from pellucid.search.files import find_files
from tests.unprivileged import as_nobody, open_folder


def make_notes(root: Path) -> Path:
    """A folder of texts with a closed subfolder, one that can be listed but not entered, one that can be entered but
    not listed, and a link into the first."""
    for name in ("a.md", "deep/b.md", "closed/c.md", "closed/deeper/d.md", "listed/e.md", "entered/f.md", ".hid/g.md"):
        (path := root / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"This is {name}.")
    (root / "notes" / "deep" / "link.md").symlink_to(root / "notes" / "closed" / "c.md")
    (root / "notes" / "closed").chmod(0o700)
    for name, mode in (("listed", 0o744), ("entered", 0o711), (".hid", 0o700)):
        (root / "notes" / name).chmod(mode)
    return root / "notes"


def test_unreadable_files_in_a_folder_are_skipped_and_reported() -> None:
    def work() -> None:
        for source in (folder, str(folder / "**" / "*.md"), str(folder / "*" / "*.md")):
            corpus = Corpus(source)
            texts = [entry.text for entry in corpus]
            assert texts == ["This is a.md.", "This is deep/b.md."][-1 if source == str(folder / "*" / "*.md") else 0 :]
            assert [str(message) for message in corpus.skipped] == [
                f"cannot read {folder / name}: Permission denied"
                for name in ("closed", "entered", "listed", "deep/link.md")
            ]
        corpus = Corpus(str(folder / "*" / "e.md"))
        with pytest.raises(
            InputError, match=r"no files \(left out: cannot read .*closed: Permission denied and 1 more"
        ):
            list(corpus)
        assert find_files(str(folder / "ent*" / "f.md")) == ([folder / "entered" / "f.md"], [], [])
        assert [path.name for path in find_files(str(folder / "deep" / ".." / "*.md"))[0]] == ["a.md"]
        assert find_files(folder / "deep") == ([folder / "deep" / "b.md", folder / "deep" / "link.md"], [], [])

    with open_folder() as root:
        folder = make_notes(root)
        as_nobody(work)


def test_unreadable_path_that_is_named_is_refused() -> None:
    def work() -> None:
        for name in ("closed", "listed", "closed/c.md", "closed/*.md", "listed/e.md", "closed/deeper"):
            named_path = folder / name.removesuffix("/*.md")
            with pytest.raises(InputError) as error:
                list(Corpus(str(folder / name)))
            assert str(error.value) == f"cannot read {named_path}: Permission denied"

    with open_folder() as root:
        folder = make_notes(root)
        as_nobody(work)


def test_missing_temporary_folder_is_reported_with_advice(
    tiny: pellucid.Model, minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pellucid.tasks.consistency import check_saving

    (folder := tmp_path / "gone").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    shutil.rmtree(folder)
    message = (
        r"cannot make a temporary folder \(No such file or directory\): set TMPDIR to a folder that can be written"
    )
    with pytest.raises(InputError, match=rf"{message}, or pass out=FOLDER$"):
        pellucid.Index.build(minilm, ["one"], progress=False)
    with pytest.raises(InputError, match=rf"{message}$"):
        check_saving(tiny.loaded, [])
