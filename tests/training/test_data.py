"""Rows from any container; each has its location, and the whole has a digest."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.errors import InputError, NotFoundError
from pellucid.training.answers import QuestionAnswering
from pellucid.training.classification import TextClassification
from pellucid.training.data import Data, File, Record, column_texts, read, row_location, value_of
from pellucid.training.held_out import split
from pellucid.training.tagging import TokenClassification

ROWS = [{"text": "a b", "label": "x"}, {"text": 'say "hi", you', "label": "y"}, {"text": "c\nd", "label": "x"}]

FILES = {
    "rows.csv": 'text,label\na b,x\n"say ""hi"", you",y\n"c\nd",x\n',
    "rows.tsv": 'text\tlabel\na b\tx\n"say ""hi"", you"\ty\n"c\nd"\tx\n',
    "rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "rows.json": json.dumps(ROWS),
}


def write_file(folder: Path, name: str, content: str | None = None) -> Path:
    path = folder / name
    path.write_text(FILES[name] if content is None else content, encoding="utf-8")
    return path


# -- containers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_files_give_the_same_rows_as_a_list(tmp_path: Path, name: str) -> None:
    found = read(write_file(tmp_path, name))
    assert found.rows == ROWS and found.name == name and len(found) == 3
    assert found.digest == read(ROWS).digest


def test_columns_iterators_and_arrays_give_the_same_rows() -> None:
    columns = {name: [row[name] for row in ROWS] for name in ("text", "label")}
    for data in (columns, iter(ROWS), tuple(ROWS), {name: np.array(column) for name, column in columns.items()}):
        assert read(data).digest == read(ROWS).digest
    assert read([{"n": np.int64(3), "m": np.array([1.5])}]).rows == [{"n": 3, "m": [1.5]}]
    assert isinstance(read([{"n": np.int64(3)}]).rows[0]["n"], int)


def test_lines_of_a_text_file_are_texts(tmp_path: Path) -> None:
    assert read(write_file(tmp_path, "book.txt", "one\ntwo\n")).rows == [{"text": "one"}, {"text": "two"}]


def test_digest_depends_on_order_and_content() -> None:
    assert read(ROWS[::-1]).digest != read(ROWS).digest
    assert read([*ROWS[:2], ROWS[2] | {"label": "z"}]).digest != read(ROWS).digest
    assert read([dict(reversed(row.items())) for row in ROWS]).digest == read(ROWS).digest
    assert read([{"label": {"b", "a", "c"}}]).digest == read([{"label": ["a", "b", "c"]}]).digest


def test_columns_are_renamed() -> None:
    rows = [{"sentence": "a", "sentiment": "x", "text": "not this"}]
    renamed = read(rows, {"text": "sentence", "label": "sentiment"}, TextClassification).rows
    assert renamed == [{"text": "a", "label": "x"}]
    assert read([{"pre\u0301nom": "a"}], {"text": "prénom"}, TextClassification).rows == [{"text": "a"}]
    with pytest.raises(InputError, match=r"row 0: no column 'sentense' \(did you mean sentence, sentiment\?\)"):
        read(rows, {"text": "sentense"})
    unnamed = [dict(enumerate(rows[0].values()))]
    assert read(unnamed, {"text": 0, "label": 1}, TextClassification).rows == [renamed[0] | {"2": "not this"}]  # type: ignore[dict-item]
    with pytest.raises(InputError, match="row 0: no column '3'; its columns are 0, 1, 2"):
        read(unnamed, {"text": 3})  # type: ignore[dict-item]
    with pytest.raises(
        InputError, match=r"columns: the task has no column 'txt' \(did you mean text\?\), expected text, label"
    ):
        read(rows, {"txt": "sentence"}, TextClassification)


class Pairs:
    """The columns of an objective that reads two line-aligned files."""

    columns = parallel = ("source", "target")


def test_line_aligned_files_are_read_as_pairs(tmp_path: Path) -> None:
    paths = [write_file(tmp_path, "train.en", "a\nb\n"), write_file(tmp_path, "train.de", "x\ny\n")]
    found = read(paths, objective=Pairs)
    assert found.rows == [{"source": "a", "target": "x"}, {"source": "b", "target": "y"}]
    assert (
        found.name == "train.en and train.de"
        and row_location(found.rows[1]) == "train.en (source) and train.de (target), line 2"
    )
    paths[1].write_text("x\nz\n", encoding="utf-8")
    assert found.change_message() is not None
    with pytest.raises(
        InputError, match=r"rows\.csv is a table, expected lines of plain text: put all columns into one"
    ):
        read([paths[0], write_file(tmp_path, "rows.csv")], objective=Pairs)


def test_conll_and_squad_files_are_read(tmp_path: Path) -> None:
    tags = read(write_file(tmp_path, "esp.train", "Ana B-PER\nva O\n\nRoma B-LOC\n"), objective=TokenClassification)
    assert [row["tags"] for row in tags.rows] == [["B-PER", "O"], ["B-LOC"]]
    assert row_location(tags.rows[1]) == "esp.train, example 2"
    question = {"question": "Who?", "id": "1", "answers": [{"text": "Ana", "answer_start": 0}]}
    squad = {"data": [{"paragraphs": [{"context": "Ana va", "qas": [question]}]}]}
    (row,) = read(write_file(tmp_path, "dev.json", json.dumps(squad)), objective=QuestionAnswering).rows
    assert row["context"] == "Ana va" and row_location(row) == "dev.json, example 1"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_are_read(library: str) -> None:
    frames = pytest.importorskip(library, reason=f"{library} is not installed: its frames are known by their methods")
    assert read(frames.DataFrame(ROWS)).digest == read(ROWS).digest
    numbers = read(frames.DataFrame({"text": ["a", "b"], "label": [1, 2]})).rows
    assert [row["label"] for row in numbers] == [1, 2] and type(numbers[0]["label"]) is int
    with_missing = read(frames.DataFrame({"text": ["a", None], "label": [1, 2]})).rows
    with pytest.raises(InputError, match="row 1: 'text' is empty"):
        column_texts(with_missing, "text")
    if library == "polars":
        assert read(frames.LazyFrame(ROWS)).digest == read(ROWS).digest


def test_error_about_a_missing_column_mentions_the_index_of_the_frame() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: its frames are known by their methods")
    for name, columns in (("label", None), ("mood", {"label": "mood"})):
        frame = pandas.DataFrame(ROWS).rename(columns={"label": name}).set_index(name)
        with pytest.raises(InputError, match=rf"'{name}' is the index of the data frame.*: give data.reset_index\(\)"):
            read(frame, columns, TextClassification)
        assert read(frame.reset_index(), columns, TextClassification).rows == ROWS
    named = pandas.DataFrame(ROWS).rename_axis("label")  # the default index's name does not count
    assert read(named.rename(columns={"label": "mood"}), {"label": "mood"}, TextClassification).rows == ROWS


def test_duplicate_columns_of_frames_are_refused() -> None:
    """Only one of them would be read: silently from Arrow, and with a warning of its own from pandas."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: its tables are known by their methods")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: its frames are known by their methods")
    table = arrow.table([arrow.array(["a"]), arrow.array(["b"])], names=["text", "text"])
    for data in (table, table.to_batches()[0], pandas.DataFrame([["a", "b"]], columns=["text", "text"])):
        with pytest.raises(InputError, match="has more than one column 'text': rename them"):
            read(data)


def test_class_labels_of_datasets_are_read_as_names() -> None:
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed: its tables are known by their methods"
    )
    kinds = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features(text=datasets.Value("string"), label=kinds, tags=datasets.Sequence(kinds))
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [1], []]}
    data = datasets.Dataset.from_dict(columns, features=features)
    found = read(data).rows
    assert [row["label"] for row in found] == ["good", "bad", None]
    assert [row["tags"] for row in found] == [["bad", "good"], ["good"], []]
    assert read(datasets.Dataset.from_list(ROWS)).digest == read(ROWS).digest
    assert read(data.to_iterable_dataset()).digest == read(data).digest
    for form in ("numpy", "pandas", "arrow"):  # whose integer labels are no Python int
        assert read(data.with_format(form)).digest == read(data).digest
        assert read(data.to_iterable_dataset().with_format(form)).digest == read(data).digest
        assert list(read(data.with_format(form, columns=["label"])).rows[0]) == ["label"]
    transformed = data.with_transform(lambda columns: {"text": ["A"], "label": np.array(columns["label"])})
    assert read(transformed).rows[1] == {"text": "A", "label": "bad"}
    with pytest.raises(InputError, match=r"the parts train, test: pass one of them, such as data\['train'\]"):
        read(datasets.DatasetDict(train=data, test=data))
    assert read(data.data.table.select(["text"])).rows == [{"text": "a"}, {"text": "b"}, {"text": "c"}]


class Split:
    """What distinguishes a split of `datasets` from a column, to test its refusal without the library, too."""

    column_names = features = ("text",)


INVALID: dict[str, tuple[Any, str]] = {
    "a number": (3, "data is int, expected a file, rows as dicts, a dict of columns or a data frame"),
    "bytes": (b"ab", "data is bytes, expected"),
    "nothing": ([], "the data holds no rows"),
    "texts": (["a b"], "there is no file 'a b'"),
    "pairs": ([("a", "x")], "row 0 is tuple, expected values by column"),
    "one row": ({"text": "a", "label": "x"}, "column 'text' is str, expected a list of values, one for each row"),
    "unequal": ({"text": ["a", "b"], "label": ["x"]}, "columns of unequal length: text 2, label 1"),
    "parts": ({"train": Split(), "test": Split()}, "data hold the parts train, test: pass one of them"),
    "two files": (["a.csv", "b.csv"], "there is no file 'a.csv'"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_containers_are_refused(case: str) -> None:
    data, message = INVALID[case]
    with pytest.raises(InputError, match=message):
        read(data)


def test_invalid_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        read(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"rows\.csv holds no rows"):
        read(write_file(tmp_path, "rows.csv", "text,label\n"))
    with pytest.raises(InputError, match=r"rows\.json holds dict, expected a list of objects"):
        read(write_file(tmp_path, "rows.json", '{"text": "a"}'))
    with pytest.raises(InputError, match=r"rows.json is not JSON: .* \(one object a line is called .jsonl\)"):
        read(write_file(tmp_path, "rows.json", FILES["rows.jsonl"]))
    with pytest.raises(InputError, match=r"rows.json, entry 2 is str, expected values by column"):
        read(write_file(tmp_path, "rows.json", '[{"text": "a"}, "b"]'))
    with pytest.raises(InputError, match=r"rows.json is not JSON: 'text' appears twice"):
        read(write_file(tmp_path, "rows.json", '[{"text": "a", "text": "b"}]'))
    both = [write_file(tmp_path, "rows.csv"), write_file(tmp_path, "rows.tsv")]
    with pytest.raises(InputError, match="data are 2 files"):
        read(both)


# -- locations --------------------------------------------------------------------------------------------------------


def test_rows_have_a_location(tmp_path: Path) -> None:
    found = read(write_file(tmp_path, "rows.csv")).rows
    assert [row_location(row) for row in found] == ["rows.csv, line 2", "rows.csv, line 3", "rows.csv, line 4"]
    assert row_location(read(ROWS).rows[2]) == "row 2" and row_location({"text": "a"}) == "a row"
    copied = pickle.loads(pickle.dumps(found[1]))
    assert copied == found[1] and row_location(copied) == "rows.csv, line 3"
    assert row_location(read(write_file(tmp_path, "rows.csv"), {"words": "text"}).rows[0]) == "rows.csv, line 2"


@pytest.mark.parametrize(("value", "message"), [(None, "is empty"), ("  ", "is empty"), (float("nan"), "is empty")])
def test_missing_values_are_refused_by_row(value: Any, message: str) -> None:
    rows = read([*ROWS, {"text": value, "label": value}]).rows
    with pytest.raises(InputError, match=f"row 3: 'text' {message}: fill it in, or leave the row out"):
        column_texts(rows, "text")
    with pytest.raises(InputError, match=f"row 3: 'label' {message}"):
        value_of(rows[3], "label")


def test_wrong_columns_and_types_are_refused_by_row() -> None:
    with pytest.raises(
        InputError, match=r"row 1: no column 'text' \(did you mean Text\?\); its columns are Text, label"
    ):
        column_texts(read([ROWS[0], {"Text": "a", "label": "x"}]).rows, "text")
    with pytest.raises(InputError, match="row 0: 'text' is int, expected a text"):
        column_texts(read([{"text": 5}]).rows, "text")
    assert [value_of({"label": label}, "label") for label in (0, False, [])] == [0, False, []]


# -- files that change ------------------------------------------------------------------------------------------------


def test_change_of_a_file_is_reported(tmp_path: Path) -> None:
    path = write_file(tmp_path, "rows.csv")
    found = read(path)
    assert found.change_message() is None
    path.touch()
    assert found.change_message() is None, "the time alone is another, the content is not"
    path.write_text(FILES["rows.csv"] + "new,x\n", encoding="utf-8")
    assert (
        found.change_message()
        == f"{path} has changed since it was read: restore its content to continue this training later"
    )
    path.unlink()
    assert found.change_message() == f"{path} was removed after it was read: restore it to continue this training later"
    assert read(ROWS).change_message() is None


def test_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_file(tmp_path, "rows.csv")
    from pellucid.training import data

    original = data.read_rows

    def read_while_changing(*args: Any, **kwargs: Any) -> Any:
        rows = list(original(*args, **kwargs))
        path.write_text(FILES["rows.csv"] + "new,x\n", encoding="utf-8")
        return rows

    monkeypatch.setattr(data, "read_rows", read_while_changing)
    with pytest.raises(
        InputError, match=r"rows.csv changed while it was read: wait until it is written, and try again"
    ):
        read(path)


# -- held-out rows ----------------------------------------------------------------------------------------------------


def rows_by_label(**counts: int) -> Data:
    return read([{"text": f"{label} {i}", "label": label} for label, count in counts.items() for i in range(count)])


def label_of(row: Record) -> str:
    return row["label"]


def label_counts(data: Data) -> dict[str, int]:
    return {
        label: sum(row["label"] == label for row in data.rows) for label in sorted({row["label"] for row in data.rows})
    }


def test_same_share_of_every_label_is_held_out() -> None:
    rest, held_out = split(rows_by_label(a=70, b=20, c=10), 0.1, seed=0, stratum_of=label_of)
    assert label_counts(held_out) == {"a": 7, "b": 2, "c": 1} and len(rest) == 90
    whole = rows_by_label(a=70, b=20, c=10)
    assert sorted(row["text"] for part in (rest, held_out) for row in part.rows) == sorted(
        row["text"] for row in whole.rows
    )
    assert [row.location for row in rest.rows] == sorted(
        (row.location for row in rest.rows), key=lambda one: int(one[4:])
    )
    assert rest.digest == whole.digest != held_out.digest


def test_at_least_one_row_of_every_label_is_kept_for_training() -> None:
    rest, held_out = split(rows_by_label(a=30, b=1, c=2), 0.5, seed=0, stratum_of=label_of)
    assert set(label_counts(rest)) == {"a", "b", "c"} and label_counts(held_out) == {"a": 15, "c": 1}
    with pytest.raises(
        InputError, match="each of 3 rows has a label of its own, so none can be held out: pass validation=FILE"
    ):
        split(rows_by_label(a=1, b=1, c=1), 0.5, seed=0, stratum_of=label_of)


def test_rare_labels_of_multi_label_rows_are_kept_for_training() -> None:
    tags = [{"tokens": ["a", "b"], "tags": ["O", "B-PER"]}] * 39 + [{"tokens": ["IBM"], "tags": ["B-ORG"]}]
    topics = [{"text": "a", "label": "x, y"}] * 39 + [{"text": "b", "label": "x, z"}]
    for rows, objective in ((tags, TokenClassification()), (topics, TextClassification(separator=","))):
        data = read(rows)
        rare = data.rows[-1]
        for seed in range(30):
            rest, held_out = split(data, 0.1, seed, objective.stratum, objective.labels_of_row)
            assert rare in rest.rows and len(held_out) in (3, 4)
        assert any(rare in split(data, 0.1, seed, objective.stratum)[1].rows for seed in range(30))


def test_held_out_rows_depend_on_the_seed() -> None:
    data = rows_by_label(a=50, b=50)
    held_out = [[row["text"] for row in split(data, 0.2, seed, label_of)[1].rows] for seed in (1, 1, 2)]
    assert held_out[0] == held_out[1] != held_out[2]


def test_end_of_ordered_data_is_held_out() -> None:
    rest, held_out = split(rows_by_label(a=10), 0.3, seed=5, ordered=True)
    assert [row["text"] for row in held_out.rows] == ["a 7", "a 8", "a 9"] and len(rest) == 7


def test_split_has_at_least_one_row_on_each_side() -> None:
    assert [len(part) for part in split(rows_by_label(a=2), 0.01, seed=0)] == [1, 1]
    assert [len(part) for part in split(rows_by_label(a=3), 0.99, seed=0)] == [1, 2]
    with pytest.raises(InputError, match="a list of rows holds one row, expected at least 2"):
        split(rows_by_label(a=1), 0.5, seed=0)


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for name in ("pipe.csv", "zero.csv"):
        with pytest.raises(InputError, match=rf"{name} is no file, expected a file"):
            read(tmp_path / name)
    with pytest.raises(InputError, match=r"is a folder, expected a file"):
        File.of(tmp_path)
