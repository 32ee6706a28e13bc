"""Progress is shown by a bar, with its total where that is known."""

from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.bars import progress_bar
from pellucid.search import change
from pellucid.search.corpus import Corpus
from pellucid.search.progress import estimated_rows


def test_number_of_rows_is_estimated_before_reading(companies: Path, tmp_path: Path) -> None:
    assert estimated_rows(Corpus(companies, column="name")) == 100
    assert estimated_rows(Corpus(str(companies), column="name")) == 100
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"name": "a"}\n{"name": "b"}\n', encoding="utf-8")
    assert estimated_rows(Corpus(lines, column="name")) == 2
    assert estimated_rows(Corpus(["a", "b", "c"])) == 3
    (tmp_path / "lines.txt").write_text("one text\nof two lines\n", encoding="utf-8")
    for unknown in (
        iter(["a"]),
        tmp_path / "lines.txt",
        tmp_path / "notes",
        tmp_path / "*.md",
        tmp_path / "missing.csv",
    ):
        assert estimated_rows(Corpus(unknown, column="name")) is None


def test_progress_bar_reaches_its_total_with_known_texts(
    minilm: pellucid.Model, companies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = []

    def recorded_bar(*arguments: Any, **keywords: Any) -> object:
        bars.append(progress_bar(*arguments, **keywords))
        return bars[-1]

    monkeypatch.setattr(change, "progress_bar", recorded_bar)
    options = {"column": "name", "id_column": "symbol", "progress": True}
    index = pellucid.Index.build(minilm, companies, tmp_path / "a.index", **options)
    index.add(companies, update=True, progress=True)
    embedding = [one for one in bars if one.desc.startswith("embedding")]
    assert [(one.n, one.total) for one in embedding] == [(100, 100), (100, 100)]


def test_progress_false_shows_no_bar(minilm: pellucid.Model, capfd: pytest.CaptureFixture[str]) -> None:
    for progress in (False, None):  # None: shown in a terminal only, and this is none
        with progress_bar("embedding", total=10, shown=progress) as bar:
            bar.delay = 0
            bar.update(10)
    assert capfd.readouterr().err == ""
