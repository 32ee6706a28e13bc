"""A recipe: what it holds is read, errors name file and key, and a saved one repeats its run."""

import logging
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from pellucid.errors import InputError, NotFoundError
from pellucid.training.recipe import Recipe, read_recipe, recipe_or_empty

Feelings = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def table(tmp_path: Path, feelings: Feelings) -> Path:
    path = tmp_path / "train.csv"
    lines = ["words;feeling"] + [f"{row['text']};{row['label']}" for row in feelings(40, seed=1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_what_a_person_writes_is_read(written: Callable[[str], Path]) -> None:
    path = written(
        'task = "classify"\nmodel = "all-MiniLM-L6-v2"\ndata = "train.csv"\nvalidation = 0.2\n[settings]\nepochs = 2\n'
    )
    found = read_recipe(path)
    assert (found.task, found.model, found.data) == ("classify", {"name": "all-MiniLM-L6-v2"}, {"file": "train.csv"})
    assert (found.held_out, found.options_and_settings, found.file) == (0.2, {"epochs": 2}, path)


def test_files_stand_where_they_are_or_beside_the_recipe(
    written: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_recipe(written('data = ["a.txt", "b.txt"]\nvalidation = "dev.csv"\n'))
    (tmp_path / "a.txt").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(pellucid.NotFoundError, match=r"names b.txt as its data, a path from the folder where it"):
        found.files("data")
    Path("b.txt").touch()
    Path("dev.csv").touch()
    assert found.files("data") == (str(tmp_path / "a.txt"), "b.txt")
    assert found.held_out == "dev.csv"


def test_a_recipe_is_what_was_written(tmp_path: Path, written: Callable[[str], Path]) -> None:
    recipe = Recipe(
        task="text-classification",
        model={"name": "a/b", "revision": None},
        data={"file": 'ä "quoted" \\ name.csv', "rows": 3, "columns": {"text": "Wörter\n\u2028"}},
        validation={"share": 0.1},
        options={"classes": ("no", "yes"), "max_length": "none"},
        settings={"learning_rate": 1e-4, "keep_best": True, "freeze": ()},
        made={"pellucid": "0"},
        result={"scores": {"accuracy": 0.5}},
    )
    found = read_recipe(written(recipe.toml()))
    assert found.model == {"name": "a/b"} and found.data == recipe.data and found.validation == recipe.validation
    assert found.options == {"classes": ["no", "yes"], "max_length": "none"}
    assert found.settings == {"learning_rate": 1e-4, "keep_best": True, "freeze": []}
    assert found.result == recipe.result
    assert "pellucid train --recipe" in recipe.toml().splitlines()[1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task = \n", r"recipe\.toml is not a recipe: .*line 1"),
        ("[settings]\nepochs = 1\nepochs = 2\n", r"recipe\.toml is not a recipe"),
        ("epochs = 3\n", r"recipe\.toml has no key epochs.*options and settings belong below \[settings\]"),
        ('tsak = "classify"\n', r"recipe\.toml has no key tsak \(did you mean task\?\)"),
        ("task = 3\n", r"recipe\.toml: task is 3, expected a text"),
        ("model = 3\n", r"recipe\.toml: model is 3, expected a text or a table"),
        ("[model]\nnmae = 'a'\n", r"recipe\.toml has no key model\.nmae \(did you mean name"),
        ("[data]\nrows = '3'\n", r"recipe\.toml: data\.rows is '3', expected a whole number"),
        ("[data.columns]\ntext = 3\n", r"recipe\.toml: data\.columns is .*, expected names of columns"),
        ("[validation]\nshare = 'a'\n", r"recipe\.toml: validation\.share is 'a', expected a number"),
        ("[data]\nfile = [1, 2]\n", r"recipe\.toml: data\.file is \[1, 2\], expected names of files"),
        ("[validation]\nfile = [1]\n", r"recipe\.toml: validation\.file is \[1\], expected names of files"),
        ("[validation]\nshare = 0.2\nfile = 'v.csv'\n", r"recipe\.toml: validation has a share of the data and a file"),
        ("settings = 3\n", r"recipe\.toml: settings is 3, expected a table"),
        (
            "[settings]\nlora = 1\n[options]\nlora = 1\n",
            r"recipe\.toml: lora is in both \[options\] and \[settings\]",
        ),
        (f"format = 1{'0' * 5000}\n", r"recipe\.toml is not a recipe: Exceeds the limit"),
        (f"[settings]\nseed = 0x1{'0' * 5000}\n", r"recipe\.toml is not a recipe: Exceeds the limit"),
        ("format = 9\n", r"recipe\.toml is a recipe of format 9"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(written: Callable[[str], Path], text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_recipe(written(text))


def test_of_a_recipe_beside_a_model_that_cannot_be_read_nothing_is_said(written: Callable[[str], Path]) -> None:
    for text in ("task = \n", f"format = 1{'0' * 5000}\n", f"[settings]\nseed = 0x1{'0' * 5000}\n"):
        assert recipe_or_empty(written(text)) == Recipe()


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no recipe"):
        read_recipe(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a recipe"):
        read_recipe(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="cannot read"):
        read_recipe(tmp_path)


def test_what_has_no_end_is_no_recipe(tmp_path: Path) -> None:
    """A recipe may lie beside somebody else's model, and is read without request when the model is evaluated."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    with (tmp_path / "long.toml").open("wb") as file:
        file.truncate(2**40)
    for name in ("pipe", "link", "long"):
        with pytest.raises(
            InputError, match=rf"{name}\.toml is not a recipe: expected a file of at most 20,000,000 bytes"
        ):
            read_recipe(tmp_path / f"{name}.toml")


def test_a_mark_at_the_beginning_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbftask = 'classify'\r\n")
    assert read_recipe(tmp_path / "recipe.toml").task == "classify"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("epochz = 3", r"recipe\.toml: text-classification has no setting 'epochz' \(did you mean epochs"),
        ("epochs = '3'", r"recipe\.toml: epochs is '3', expected a whole number"),
        ("classes = 3", r"recipe\.toml: classes is 3, expected a list, each a text"),
    ],
)
def test_settings_of_a_recipe_are_named_with_it(
    written: Callable[[str], Path], scratch: pellucid.Model, line: str, complaint: str
) -> None:
    path = written(f"task = 'classify'\n[settings]\n{line}\n")
    with pytest.raises(InputError, match=complaint):
        pellucid.train(scratch, [{"text": "a", "label": "b"}], recipe=path)


# -- repeated runs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
def test_a_saved_recipe_repeats_the_training(
    checkpoint: Callable[[str], Path], table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"text": "words", "label": "feeling"}
    settings = {"epochs": 1, "seed": 5, "learning_rate": 1e-3, "batch_size": 8, "precision": "float32"}
    first = pellucid.train(
        checkpoint("bert-body"), table, "classify", out=tmp_path / "first", columns=columns, validation=0.25, **settings
    )
    saved = tomllib.loads((tmp_path / "first" / "recipe.toml").read_text(encoding="utf-8"))
    assert saved["task"] == "text-classification" and saved["data"]["rows"] == 40 and saved["validation"]["rows"] == 10
    assert saved["settings"]["learning_rate"] == 1e-3
    assert saved["result"]["scores"] == pytest.approx(dict(first.report.scores))

    again = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "again")
    assert again.report.scores == first.report.scores
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again")]
    assert weights[0] == weights[1]
    assert not [one for one in caplog.records if one.levelno > logging.INFO]

    other = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "other", seed=6)
    assert other.report.log != first.report.log


@pytest.mark.usefixtures("one_thread")
def test_other_data_are_told(
    checkpoint: Callable[[str], Path], table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"text": "words", "label": "feeling"}
    pellucid.train(checkpoint("bert-body"), table, "classify", out=tmp_path / "first", columns=columns, max_steps=1)
    table.write_text(table.read_text(encoding="utf-8") + "good people;positive\n", encoding="utf-8")
    pellucid.train(recipe=tmp_path / "first" / "recipe.toml")
    assert "recipe.toml: the data is not that of the recipe (digest" in caplog.text


@pytest.mark.usefixtures("one_thread")
def test_random_numbers_are_repeated_too(scratch: pellucid.Model, table: Path, tmp_path: Path) -> None:
    columns = {"text": "words", "label": "feeling"}
    built = pellucid.build(scratch.config, seed=4, tokenizer=scratch.tokenizer)
    settings = {"max_steps": 2, "seed": 4, "precision": "float32", "validation": 0}
    first = pellucid.train(built, table, "classify", out=tmp_path / "first", columns=columns, **settings)
    again = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "again")
    losses = [[line["loss"] for line in one.report.log if "loss" in line] for one in (first, again)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_rows_in_memory_must_be_handed_over_again(feelings: Feelings, scratch: pellucid.Model, tmp_path: Path) -> None:
    pellucid.train(
        scratch, feelings(20), "classify", out=tmp_path / "first", max_steps=1, validation=feelings(8, seed=2)
    )
    recipe = tmp_path / "first" / "recipe.toml"
    with pytest.raises(InputError, match=r"recipe\.toml names no file for its data, which was a list of rows"):
        pellucid.train(recipe=recipe)
    with pytest.raises(InputError, match=r"names no file for its validation, which was a list of rows"):
        pellucid.train(data=feelings(20), recipe=recipe)
    found = pellucid.train(data=feelings(20), validation=feelings(8, seed=2), recipe=recipe)
    assert found.report.held_out == 8


def test_a_recipe_builds_an_architecture(
    written: Callable[[str], Path], checkpoint: Callable[[str], Path], table: Path
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    path = written(
        f'task = "classify"\n[data]\nfile = "{table.name}"\ncolumns = {{text = "words", label = "feeling"}}\n'
        f'[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n'
        + "".join(f"{name} = {value}\n" for name, value in sizes.items())
        + "[settings]\nmax_steps = 1\n"
    )
    found = pellucid.train(recipe=path)
    assert found.config.hidden_size == 16 and found.config.vocab_size == 600 and not found.loaded.untrained
    path.write_text(path.read_text(encoding="utf-8").replace("tokenizer", "#"), encoding="utf-8")
    with pytest.raises(InputError, match=r"name its tokenizer as model\.tokenizer"):
        pellucid.train(recipe=path)


@pytest.mark.parametrize(("fact", "ends"), [("", ()), ("eos_token_id = 3\n", (3,))])
def test_special_tokens_are_those_of_the_words(
    written: Callable[[str], Path], tmp_path: Path, fact: str, ends: tuple[int, ...]
) -> None:
    """The family's own end-of-text id is a letter in another vocabulary."""
    words = pellucid.train_tokenizer(texts=["a line!"], kind="characters")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    said = pellucid.Config.of("llama", **sizes, num_key_value_heads=2, vocab_size=len(words))
    folder = pellucid.build(said, tokenizer=words).save(tmp_path / "words")
    path = written(
        f'task = "text-generation"\n[model]\nfamily = "llama"\ntokenizer = "{folder}"\n[model.facts]\n{fact}'
        + "".join(f"{name} = {value}\n" for name, value in {**sizes, "num_key_value_heads": 2}.items())
    )
    found = pellucid.train(recipe=path, data=[{"text": "a line!"}] * 4, max_steps=1, validation=0).config
    assert (found.end_tokens, found.bos_token_id, found.pad_token_id) == (ends, None, None)


def test_a_table_that_is_too_small_for_the_words_is_refused(
    written: Callable[[str], Path], checkpoint: Callable[[str], Path]
) -> None:
    path = written(
        f'task = "fill-mask"\n[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n'
        "vocab_size = 5\n"
    )
    with pytest.raises(InputError, match=r"recipe\.toml, \[model\]: vocab_size is 5, expected at least 600"):
        pellucid.train(recipe=path, data=[{"text": "a"}])


@pytest.mark.parametrize(
    ("fact", "complaint"),
    [
        ('family = "bert"', "family is given twice, 'bert' and 'bert'"),
        ("labels = 5", "labels are 5, expected a list of names"),
        ("labels = [1, 2]", r"labels are \[1, 2\], expected a list of names"),
        ('num_labels = "x"', "num_labels is 'x', expected a whole number"),
        ('head = "x"', "head is 'x', expected one of the types"),
        ("dropout = 3", "dropout is 3, expected its facts one by one: hidden_dropout_prob, "),
    ],
)
def test_facts_of_a_wrong_type_are_named(
    written: Callable[[str], Path], checkpoint: Callable[[str], Path], fact: str, complaint: str
) -> None:
    path = written(
        f'task = "classify"\n[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n{fact}\n'
    )
    with pytest.raises(InputError, match=rf"recipe\.toml, \[model\]: {complaint}"):
        pellucid.train(recipe=path, data=[{"text": "a", "label": "b"}])
