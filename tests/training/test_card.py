"""The card of a trained model: the hub's own library reads its front matter, and what it states is true of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import pellucid
from pellucid.config import SequenceToSequenceLM
from pellucid.text.tokenizer_training import train_tokenizer
from pellucid.training.card import escape_markdown
from tests.conftest import as_trained

Sentiments = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("one_thread")


def train_and_read_card(
    model: Any, rows: Any, out: Path, task: str = "classify", **options: Any
) -> tuple[pellucid.Model, str]:
    trained = pellucid.train(model, rows, task, out=out, **{"max_steps": 2} | options)
    return trained, (out / "README.md").read_text(encoding="utf-8")


def code_of(card: str) -> str:
    """The example in a card."""
    return card.partition("```python\n")[2].partition("```")[0]


def test_hub_library_reads_the_front_matter(scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path) -> None:
    trained, text = train_and_read_card(scratch, sentiments(40), tmp_path / "model")
    data = ModelCard(text).data
    assert data.pipeline_tag == "text-classification" and data.library_name == "transformers"
    assert data.base_model is None and "pellucid" in data.tags and "accuracy" in data.metrics
    scores = {result.metric_name: result.metric_value for result in data.eval_results}
    assert scores == {name: value for name, value in trained.report.scores.items() if name != "loss"}
    assert {result.dataset_name for result in data.eval_results} == {"a list of rows"}
    assert data.model_name == "model"


def test_card_links_to_a_base_on_the_hub(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = scratch.save(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    named = pellucid.load("owner/model")
    _, text = train_and_read_card(named, sentiments(40), tmp_path / "new")
    assert ModelCard(text).data.base_model == "owner/model"
    assert "[owner/model](https://huggingface.co/owner/model)" in text
    scratch.save(tmp_path / "alone")
    for i, base in enumerate((pellucid.load(folder), pellucid.load("alone"))):
        _, text = train_and_read_card(base, sentiments(40), tmp_path / f"newer-{i}")
        assert ModelCard(text).data.base_model is None


def test_card_shows_scores_beside_the_baseline_and_those_before_training(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path
) -> None:
    rows = sentiments(40)
    trained, text = train_and_read_card(scratch, rows, tmp_path / "first", validation=sentiments(10, seed=3))
    assert "| | this model | baseline |" in text and "Of 10 held-out rows:" in text
    assert f"| accuracy | {trained.report.scores['accuracy']:.4f} | 0.5000 |" in text
    retrained, text = train_and_read_card(
        tmp_path / "first", rows, tmp_path / "second", validation=sentiments(10, seed=3)
    )
    assert retrained.report.before["accuracy"] == pytest.approx(trained.report.scores["accuracy"])
    assert "| | this model | before | baseline |" in text


def test_card_counts_rows_and_not_windows(scratch: pellucid.Model, tmp_path: Path) -> None:
    rows = [{"tokens": ["Ada", "came", "to", "Oslo", "again"] * 4, "tags": ["B-PER", "O", "O", "B-LOC", "O"] * 4}] * 3
    trained = pellucid.train(scratch, rows, "tag", out=tmp_path / "m", validation=rows[:1], max_steps=1, max_length=10)
    text = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert trained.report.held_out == 1 and "Of 1 held-out row:" in text


def test_code_of_the_card_has_the_mask_token_of_the_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    rows = [{"text": "a good film about the sea"}] * 6
    base, options = checkpoint("roberta-nli"), {"max_steps": 1, "validation": 0}
    _, text = train_and_read_card(base, rows, tmp_path / "model", "fill-mask", **options)
    assert '"Paris is the <mask> of France."' in code_of(text)
    exec(code_of(text), {})


def test_code_of_the_card_runs(scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path) -> None:
    _, text = train_and_read_card(scratch, sentiments(40), tmp_path / "o'brien")
    code = code_of(text)
    namespace: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), namespace)
    assert namespace["ask"]("It was good.")["label"] in ("positive", "negative")
    for name in ("recipe.toml", "log.jsonl", "curves.svg"):
        assert f"({name})" in text and (tmp_path / "o'brien" / name).is_file()


def test_card_without_held_out_rows_has_no_scores(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path
) -> None:
    _, text = train_and_read_card(scratch, sentiments(20), tmp_path / "model", validation=0)
    assert "## Scores" not in text and not ModelCard(text).data.eval_results


def test_card_mentions_the_best_step_only_if_its_weights_are_kept(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path
) -> None:
    _, text = train_and_read_card(scratch, sentiments(40), tmp_path / "best")
    assert "; the weights are those of step " in text and ", the best" in text
    _, text = train_and_read_card(scratch, sentiments(40), tmp_path / "last", keep_best=False)
    assert "| steps | 2 |" in text and "the best" not in text


def test_labels_are_escaped_in_the_card(scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path) -> None:
    rows = [row | {"label": {"positive": "<b>|`#", "negative": "a\nb"}[row["label"]]} for row in sentiments(40)]
    _, text = train_and_read_card(scratch, rows, tmp_path / "model")
    assert r"\<b\>\|\`\#" in text and "<b>" not in text.partition("---\n\n")[2]


def test_card_of_an_adapter_describes_it(
    scratch: pellucid.Model, sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_trained(scratch).save(tmp_path / "owner" / "model")
    monkeypatch.chdir(tmp_path)
    _, text = train_and_read_card(
        pellucid.load("owner/model"), sentiments(40), tmp_path / "adapter", lora=2, adapter_only=True
    )
    data = ModelCard(text).data
    assert data.library_name == "peft" and data.base_model == "owner/model" and "lora" in data.tags
    assert "an adapter of rank 2" in text and "PEFT opens it as well" in text
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    assert pellucid.pipeline("text-classification", tmp_path / "adapter")("It was good.")["label"] in (
        "positive",
        "negative",
    )


def test_card_names_no_library_for_an_architecture_of_pellucid_s_own(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("text", "escaped"), [("a_b", r"a\_b"), ("one\n two", "one two"), ("[x](y)", r"\[x\](y)")])
def test_markdown_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped
