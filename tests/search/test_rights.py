"""Texts that this user may not read: in a folder they are skipped and reported, by name they are refused."""

import shutil
import tempfile
from pathlib import Path

import pytest

import pellucid
from pellucid.errors import InputError
from pellucid.search.corpus import Corpus
from pellucid.search.files import find_files
from tests.nobody import as_nobody, open_folder


def notes(place: Path) -> Path:
    """A folder of texts with a closed subfolder, one that can be listed but not entered, one that can be entered but
    not listed, and a link into the first."""
    for name in ("a.md", "deep/b.md", "closed/c.md", "closed/deeper/d.md", "listed/e.md", "entered/f.md", ".hid/g.md"):
        (path := place / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"This is {name}.")
    (place / "notes" / "deep" / "link.md").symlink_to(place / "notes" / "closed" / "c.md")
    (place / "notes" / "closed").chmod(0o700)
    for name, rights in (("listed", 0o744), ("entered", 0o711), (".hid", 0o700)):
        (place / "notes" / name).chmod(rights)
    return place / "notes"


def test_what_may_not_be_read_is_left_out_and_told() -> None:
    def work() -> None:
        for source in (folder, str(folder / "**" / "*.md"), str(folder / "*" / "*.md")):
            corpus = Corpus(source)
            texts = [entry.text for entry in corpus]
            assert texts == ["This is a.md.", "This is deep/b.md."][-1 if source == str(folder / "*" / "*.md") else 0 :]
            assert [str(said) for said in corpus.skipped] == [
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

    with open_folder() as place:
        folder = notes(place)
        as_nobody(work)


def test_what_is_named_alone_and_may_not_be_read_is_refused() -> None:
    def work() -> None:
        for name in ("closed", "listed", "closed/c.md", "closed/*.md", "listed/e.md", "closed/deeper"):
            wrong = folder / name.removesuffix("/*.md")
            with pytest.raises(InputError) as error:
                list(Corpus(str(folder / name)))
            assert str(error.value) == f"cannot read {wrong}: Permission denied"

    with open_folder() as place:
        folder = notes(place)
        as_nobody(work)


def test_without_a_folder_for_temporary_files_it_says_what_helps(
    tiny: pellucid.Model, minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pellucid.tasks.consistency import check_saving

    (gone := tmp_path / "gone").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    shutil.rmtree(gone)
    said = r"cannot make a temporary folder \(No such file or directory\): set TMPDIR to a folder that can be written"
    with pytest.raises(InputError, match=rf"{said}, or pass out=FOLDER$"):
        pellucid.Index.build(minilm, ["one"], progress=False)
    with pytest.raises(InputError, match=rf"{said}$"):
        check_saving(tiny.loaded, [])
