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

Sentiments = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def write_recipe(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def csv_file(tmp_path: Path, sentiments: Sentiments) -> Path:
    path = tmp_path / "train.csv"
    lines = ["words;feeling"] + [f"{row['text']};{row['label']}" for row in sentiments(40, seed=1)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_short_recipe_is_read(write_recipe: Callable[[str], Path]) -> None:
    path = write_recipe(
        'task = "classify"\nmodel = "all-MiniLM-L6-v2"\ndata = "train.csv"\nvalidation = 0.2\n[settings]\nepochs = 2\n'
    )
    found = read_recipe(path)
    assert (found.task, found.model, found.data) == ("classify", {"name": "all-MiniLM-L6-v2"}, {"file": "train.csv"})
    assert (found.held_out, found.options_and_settings, found.file) == (0.2, {"epochs": 2}, path)


def test_files_are_found_in_the_working_folder_or_beside_the_recipe(
    write_recipe: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_recipe(write_recipe('data = ["a.txt", "b.txt"]\nvalidation = "dev.csv"\n'))
    (tmp_path / "a.txt").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(pellucid.NotFoundError, match=r"names b.txt as its data, a path from the folder where it"):
        found.files("data")
    Path("b.txt").touch()
    Path("dev.csv").touch()
    assert found.files("data") == (str(tmp_path / "a.txt"), "b.txt")
    assert found.held_out == "dev.csv"


def test_written_recipe_is_read_back(tmp_path: Path, write_recipe: Callable[[str], Path]) -> None:
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
    found = read_recipe(write_recipe(recipe.toml()))
    assert found.model == {"name": "a/b"} and found.data == recipe.data and found.validation == recipe.validation
    assert found.options == {"classes": ["no", "yes"], "max_length": "none"}
    assert found.settings == {"learning_rate": 1e-4, "keep_best": True, "freeze": []}
    assert found.result == recipe.result
    assert "pellucid train --recipe" in recipe.toml().splitlines()[1]


LONG = "a" * 9999


@pytest.mark.parametrize(
    ("text", "message"),
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
        (f"settings = '{LONG}'\n", "settings is 'a{78}…, expected a table"),
        (f"[data]\nrows = '{LONG}'\n", r"data\.rows is 'a{78}…, expected a whole number"),
        (f"[data]\nfile = [1, '{LONG}']\n", r"data\.file is \[1, 'a{74}…, expected names"),
        (f"[data.columns]\ntext = ['{LONG}']\n", r"data\.columns is \{'text': \['a{68}…, expected names"),
        (f"{LONG} = 9\n", r"recipe\.toml has no key a{79}…"),
    ],
)
def test_invalid_recipe_is_refused_by_file_and_key(
    write_recipe: Callable[[str], Path], text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_recipe(write_recipe(text))


def test_unreadable_recipe_beside_a_model_is_ignored(write_recipe: Callable[[str], Path]) -> None:
    for text in ("task = \n", f"format = 1{'0' * 5000}\n", f"[settings]\nseed = 0x1{'0' * 5000}\n"):
        assert recipe_or_empty(write_recipe(text)) == Recipe()


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no recipe"):
        read_recipe(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a recipe"):
        read_recipe(tmp_path / "bytes.toml")
    with pytest.raises(InputError, match="cannot read"):
        read_recipe(tmp_path)


def test_pipes_devices_and_huge_files_are_refused(tmp_path: Path) -> None:
    """A recipe may come with a model by another author, and evaluation reads it without a request."""
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    with (tmp_path / "long.toml").open("wb") as file:
        file.truncate(2**40)
    for name in ("pipe", "link", "long"):
        with pytest.raises(
            InputError, match=rf"{name}\.toml is not a recipe: expected a file of at most 20,000,000 bytes"
        ):
            read_recipe(tmp_path / f"{name}.toml")


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbftask = 'classify'\r\n")
    assert read_recipe(tmp_path / "recipe.toml").task == "classify"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epochz = 3", r"recipe\.toml: text-classification has no setting 'epochz' \(did you mean epochs"),
        ("epochs = '3'", r"recipe\.toml: epochs is '3', expected a whole number"),
        ("classes = 3", r"recipe\.toml: classes is 3, expected a list, each a text"),
    ],
)
def test_error_about_a_setting_names_the_recipe(
    write_recipe: Callable[[str], Path], scratch: pellucid.Model, line: str, message: str
) -> None:
    path = write_recipe(f"task = 'classify'\n[settings]\n{line}\n")
    with pytest.raises(InputError, match=message):
        pellucid.train(scratch, [{"text": "a", "label": "b"}], recipe=path)


# -- repeated runs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
def test_saved_recipe_repeats_the_training(
    checkpoint: Callable[[str], Path], csv_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"text": "words", "label": "feeling"}
    settings = {"epochs": 1, "seed": 5, "learning_rate": 1e-3, "batch_size": 8, "precision": "float32"}
    first = pellucid.train(
        checkpoint("bert-body"),
        csv_file,
        "classify",
        out=tmp_path / "first",
        columns=columns,
        validation=0.25,
        **settings,
    )
    saved = tomllib.loads((tmp_path / "first" / "recipe.toml").read_text(encoding="utf-8"))
    assert saved["task"] == "text-classification" and saved["data"]["rows"] == 40 and saved["validation"]["rows"] == 10
    assert saved["settings"]["learning_rate"] == 1e-3
    assert saved["result"]["scores"] == pytest.approx(dict(first.report.scores))

    repeated = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "again")
    assert repeated.report.scores == first.report.scores
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again")]
    assert weights[0] == weights[1]
    assert not [one for one in caplog.records if one.levelno > logging.INFO]

    with_other_seed = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "other", seed=6)
    assert with_other_seed.report.log != first.report.log


@pytest.mark.usefixtures("one_thread")
def test_changed_data_are_reported(
    checkpoint: Callable[[str], Path], csv_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"text": "words", "label": "feeling"}
    pellucid.train(checkpoint("bert-body"), csv_file, "classify", out=tmp_path / "first", columns=columns, max_steps=1)
    csv_file.write_text(csv_file.read_text(encoding="utf-8") + "good people;positive\n", encoding="utf-8")
    pellucid.train(recipe=tmp_path / "first" / "recipe.toml")
    assert "recipe.toml: the data is not that of the recipe (digest" in caplog.text


@pytest.mark.usefixtures("one_thread")
def test_recipe_repeats_the_training_of_an_untrained_model(
    scratch: pellucid.Model, csv_file: Path, tmp_path: Path
) -> None:
    columns = {"text": "words", "label": "feeling"}
    built = pellucid.build(scratch.config, seed=4, tokenizer=scratch.tokenizer)
    settings = {"max_steps": 2, "seed": 4, "precision": "float32", "validation": 0}
    first = pellucid.train(built, csv_file, "classify", out=tmp_path / "first", columns=columns, **settings)
    repeated = pellucid.train(recipe=tmp_path / "first" / "recipe.toml", out=tmp_path / "again")
    losses = [[line["loss"] for line in one.report.log if "loss" in line] for one in (first, repeated)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


@pytest.mark.usefixtures("one_thread")
def test_recipe_repeats_the_training_on_two_line_aligned_files(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    files = tmp_path / "a.en", tmp_path / "a.de"
    for path, text in zip(files, ("one\ntwo\nthree\nfour\n", "eins\nzwei\ndrei\nvier\n")):
        path.write_text(text, encoding="utf-8")
    settings = {"max_steps": 1, "generate": False, "precision": "float32", "validation": 0}
    first = pellucid.train(checkpoint("t5-tied"), files, "translation", out=tmp_path / "first", **settings)
    repeated = pellucid.train(recipe=tmp_path / "first" / "recipe.toml")
    assert repeated.report.rows == 4 and repeated.report.log[0]["loss"] == first.report.log[0]["loss"]


def test_rows_in_memory_must_be_passed_again(sentiments: Sentiments, scratch: pellucid.Model, tmp_path: Path) -> None:
    pellucid.train(
        scratch, sentiments(20), "classify", out=tmp_path / "first", max_steps=1, validation=sentiments(8, seed=2)
    )
    recipe = tmp_path / "first" / "recipe.toml"
    with pytest.raises(InputError, match=r"recipe\.toml names no file for its data, which was a list of rows"):
        pellucid.train(recipe=recipe)
    with pytest.raises(InputError, match=r"names no file for its validation, which was a list of rows"):
        pellucid.train(data=sentiments(20), recipe=recipe)
    repeated = pellucid.train(data=sentiments(20), validation=sentiments(8, seed=2), recipe=recipe)
    assert repeated.report.held_out == 8


def test_recipe_builds_an_architecture(
    write_recipe: Callable[[str], Path], checkpoint: Callable[[str], Path], csv_file: Path
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    path = write_recipe(
        f'task = "classify"\n[data]\nfile = "{csv_file.name}"\ncolumns = {{text = "words", label = "feeling"}}\n'
        f'[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n'
        + "".join(f"{name} = {value}\n" for name, value in sizes.items())
        + "[settings]\nmax_steps = 1\n"
    )
    trained = pellucid.train(recipe=path)
    assert trained.config.hidden_size == 16 and trained.config.vocab_size == 600 and not trained.loaded.untrained
    path.write_text(path.read_text(encoding="utf-8").replace("tokenizer", "#"), encoding="utf-8")
    with pytest.raises(InputError, match=r"name its tokenizer as model\.tokenizer"):
        pellucid.train(recipe=path)


@pytest.mark.parametrize(("fact", "end_tokens"), [("", ()), ("eos_token_id = 3\n", (3,))])
def test_special_tokens_follow_the_tokenizer(
    write_recipe: Callable[[str], Path], tmp_path: Path, fact: str, end_tokens: tuple[int, ...]
) -> None:
    """The family's own end-of-text id is a letter in another vocabulary."""
    tokenizer = pellucid.train_tokenizer(texts=["a line!"], kind="characters")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = pellucid.Config.of("llama", **sizes, num_key_value_heads=2, vocab_size=len(tokenizer))
    folder = pellucid.build(config, tokenizer=tokenizer).save(tmp_path / "words")
    path = write_recipe(
        f'task = "text-generation"\n[model]\nfamily = "llama"\ntokenizer = "{folder}"\n[model.facts]\n{fact}'
        + "".join(f"{name} = {value}\n" for name, value in {**sizes, "num_key_value_heads": 2}.items())
    )
    found = pellucid.train(recipe=path, data=[{"text": "a line!"}] * 4, max_steps=1, validation=0).config
    assert (found.end_tokens, found.bos_token_id, found.pad_token_id) == (end_tokens, None, None)


def test_vocab_size_below_the_tokenizer_s_is_refused(
    write_recipe: Callable[[str], Path], checkpoint: Callable[[str], Path]
) -> None:
    path = write_recipe(
        f'task = "fill-mask"\n[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n'
        "vocab_size = 5\n"
    )
    with pytest.raises(InputError, match=r"recipe\.toml, \[model\]: vocab_size is 5, expected at least 600"):
        pellucid.train(recipe=path, data=[{"text": "a"}])


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ('family = "bert"', "family is given twice, 'bert' and 'bert'"),
        ("labels = 5", "labels are 5, expected a list of names"),
        ("labels = [1, 2]", r"labels are \[1, 2\], expected a list of names"),
        ('num_labels = "x"', "num_labels is 'x', expected a whole number"),
        ('head = "x"', "head is 'x', expected one of the types"),
        ("dropout = 3", "dropout is 3, expected its facts one by one: hidden_dropout_prob, "),
    ],
)
def test_facts_of_a_wrong_type_are_refused(
    write_recipe: Callable[[str], Path], checkpoint: Callable[[str], Path], fact: str, message: str
) -> None:
    path = write_recipe(
        f'task = "classify"\n[model]\nfamily = "bert"\ntokenizer = "{checkpoint("bert-body")}"\n[model.facts]\n{fact}\n'
    )
    with pytest.raises(InputError, match=rf"recipe\.toml, \[model\]: {message}"):
        pellucid.train(recipe=path, data=[{"text": "a", "label": "b"}])
