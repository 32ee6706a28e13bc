"""The card of a trained model: the hub's own library reads its front matter, and what it states is true of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import pellucid
from pellucid.config import SequenceToSequenceLM
from pellucid.text.learned import train_tokenizer
from pellucid.training.card import escape_markdown
from tests.conftest import as_trained

Feelings = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(model: Any, rows: Any, out: Path, **options: Any) -> tuple[pellucid.Model, str]:
    found = pellucid.train(model, rows, "classify", out=out, max_steps=2, **options)
    return found, (out / "README.md").read_text(encoding="utf-8")


def test_the_hub_reads_its_head(scratch: pellucid.Model, feelings: Feelings, tmp_path: Path) -> None:
    found, text = trained(scratch, feelings(40), tmp_path / "model")
    data = ModelCard(text).data
    assert data.pipeline_tag == "text-classification" and data.library_name == "transformers"
    assert data.base_model is None and "pellucid" in data.tags and "accuracy" in data.metrics
    scores = {result.metric_name: result.metric_value for result in data.eval_results}
    assert scores == {name: value for name, value in found.report.scores.items() if name != "loss"}
    assert {result.dataset_name for result in data.eval_results} == {"a list of rows"}
    assert data.model_name == "model"


def test_a_base_of_the_hub_is_named(
    scratch: pellucid.Model, feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scratch.save(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    named = pellucid.load("owner/model")
    _, text = trained(named, feelings(40), tmp_path / "new")
    assert ModelCard(text).data.base_model == "owner/model"
    assert "[owner/model](https://huggingface.co/owner/model)" in text
    scratch.save(tmp_path / "alone")
    for i, base in enumerate((pellucid.load(folder), pellucid.load("alone"))):
        _, text = trained(base, feelings(40), tmp_path / f"newer-{i}")
        assert ModelCard(text).data.base_model is None


def test_scores_stand_beside_the_simplest_and_the_beginning(
    scratch: pellucid.Model, feelings: Feelings, tmp_path: Path
) -> None:
    rows = feelings(40)
    found, text = trained(scratch, rows, tmp_path / "first", validation=feelings(10, seed=3))
    assert "| | this model | baseline |" in text and "Of 10 held-out rows:" in text
    assert f"| accuracy | {found.report.scores['accuracy']:.4f} | 0.5000 |" in text
    again, text = trained(tmp_path / "first", rows, tmp_path / "second", validation=feelings(10, seed=3))
    assert again.report.before["accuracy"] == pytest.approx(found.report.scores["accuracy"])
    assert "| | this model | before | baseline |" in text


def test_rows_are_counted_and_not_what_is_read_of_them(scratch: pellucid.Model, tmp_path: Path) -> None:
    rows = [{"tokens": ["Ada", "came", "to", "Oslo", "again"] * 4, "tags": ["B-PER", "O", "O", "B-LOC", "O"] * 4}] * 3
    done = pellucid.train(scratch, rows, "tag", out=tmp_path / "m", validation=rows[:1], max_steps=1, max_length=10)
    text = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert done.report.held_out == 1 and "Of 1 held-out row:" in text


def test_what_it_tells_to_type_runs(scratch: pellucid.Model, feelings: Feelings, tmp_path: Path) -> None:
    _, text = trained(scratch, feelings(40), tmp_path / "o'brien")
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["ask"]("It was good.")["label"] in ("positive", "negative")
    for name in ("recipe.toml", "log.jsonl", "curves.svg"):
        assert f"({name})" in text and (tmp_path / "o'brien" / name).is_file()


def test_without_held_out_rows_there_are_no_scores(scratch: pellucid.Model, feelings: Feelings, tmp_path: Path) -> None:
    _, text = trained(scratch, feelings(20), tmp_path / "model", validation=0)
    assert "## Scores" not in text and not ModelCard(text).data.eval_results


def test_only_numbers_that_are_kept_are_called_the_best(
    scratch: pellucid.Model, feelings: Feelings, tmp_path: Path
) -> None:
    _, text = trained(scratch, feelings(40), tmp_path / "best")
    assert "; the weights are those of step " in text and ", the best" in text
    _, text = trained(scratch, feelings(40), tmp_path / "last", keep_best=False)
    assert "| steps | 2 |" in text and "the best" not in text


def test_labels_are_only_text(scratch: pellucid.Model, feelings: Feelings, tmp_path: Path) -> None:
    rows = [row | {"label": {"positive": "<b>|`#", "negative": "a\nb"}[row["label"]]} for row in feelings(40)]
    _, text = trained(scratch, rows, tmp_path / "model")
    assert r"\<b\>\|\`\#" in text and "<b>" not in text.partition("---\n\n")[2]


def test_an_adapter_says_what_it_is(
    scratch: pellucid.Model, feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_trained(scratch).save(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    _, text = trained(pellucid.load("owner/model"), feelings(40), tmp_path / "adapter", lora=2, adapter_only=True)
    data = ModelCard(text).data
    assert data.library_name == "peft" and data.base_model == "owner/model" and "lora" in data.tags
    assert "an adapter of rank 2" in text and "PEFT opens it as well" in text
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    assert pellucid.pipeline("text-classification", tmp_path / "adapter")("It was good.")["label"] in (
        "positive",
        "negative",
    )


def test_no_library_is_said_to_open_what_it_does_not_know(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(None, "characters", texts=["0123456789"], special_tokens={"pad": "<pad>"})
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"num_decoder_layers": 1, "decoder_attention_heads": 2, "decoder_intermediate_size": 16, "vocab_size": 11}
    config = pellucid.Config.of("transformer", head=SequenceToSequenceLM(), **sizes)
    rows = [{"text": f"{i}", "target": f"{i + 1}"} for i in range(20)]
    model = pellucid.build(config).reading(tokenizer)
    pellucid.train(model, rows, "translation", out=tmp_path / "model", max_steps=1, batch_size=8)
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert ModelCard(text).data.library_name == "pellucid" and "opens it as well" not in text
    assert "A model for translation: a text in another language. Trained" in text


@pytest.mark.parametrize(("text", "found"), [("a_b", r"a\_b"), ("one\n two", "one two"), ("[x](y)", r"\[x\](y)")])
def test_signs_of_markdown_are_signs(text: str, found: str) -> None:
    assert escape_markdown(text) == found
