"""Checks and derived values of configs."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

import pellucid
from pellucid import Config, InputError, blocks
from pellucid.config import NextSentence, SequenceClassification
from pellucid.config.checks import ACTIVATIONS


def test_a_config_without_the_families_says_where_to_take_it_from() -> None:
    code = "from pellucid.config import Config; Config.of('llama')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("take Config from pellucid itself, which reads their pages")


@pytest.mark.parametrize("head", [SequenceClassification(), NextSentence()])
@pytest.mark.parametrize("family", ["gpt2", "distilbert", "t5"])
def test_a_head_on_a_pooler_needs_one(family: str, head: SequenceClassification | NextSentence) -> None:
    with pytest.raises(InputError, match=f"{head.name} reads a pooler, and this {family} config has none"):
        Config.of(family, head=head)
    assert Config.of("bert", head=head).pools


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [("pooler", "gpt2", "decoder"), ("skip_padding", "gpt2", "decoder"), ("skip_padding", "bart", "encoder-decoder")],
)
def test_encoders_alone_have_a_pooler_and_count_words(name: str, family: str, kind: str) -> None:
    """Tokens are counted within one pass: with a cache, each generated token would get the first position."""
    with pytest.raises(InputError, match=f"{name} is True in a config of kind '{kind}'"):
        Config.of(family, **{name: True})


def test_every_activation_that_a_config_may_name_is_there() -> None:
    assert set(ACTIVATIONS) == set(blocks.ACTIVATIONS)


def test_labels_in_a_list_are_as_good_as_in_a_tuple() -> None:
    """A list is not hashable, which the lookup of a model's points needs."""
    names = ["good", "bad"]
    config = Config.of("bert", num_hidden_layers=1, labels=names)
    names.append("neither")
    assert config == config.replace(labels=("good", "bad")) and config.labels == ("good", "bad")
    assert hash(config) == hash(config.replace(labels=["good", "bad"]))


def test_a_number_of_labels_keeps_as_many_names() -> None:
    """They used to become LABEL_0 and so on silently, and were saved so."""
    names = ("sad", "glad", "odd")
    config = Config.of("bert", labels=list(names), num_labels=3)
    assert config.labels == config.replace(num_labels=3).labels == names
    assert config.replace(num_labels=2).labels == ("LABEL_0", "LABEL_1")
    with pytest.raises(InputError, match=r"^num_labels is 2 beside 3 labels: give labels alone$"):
        Config.of("bert", labels=names, num_labels=2)
    with pytest.raises(InputError, match=r"^labels are 'sad', expected a list of names$"):
        Config.of("bert", labels="sad", num_labels=3)


@pytest.mark.parametrize("said", [{"rope_type": "linear", "factor": 4.0}, "linear"])
def test_a_scaling_is_one_of_two_types_and_no_dict(said: object) -> None:
    """A dict as in config.json used to change nothing, and a trace could not hash it."""
    with pytest.raises(
        InputError, match=r"^rope_scaling is .*, expected pellucid\.config\.Llama3Scaling\(\.\.\.\) or Lin"
    ):
        Config.of("llama", rope_scaling=said)


@pytest.mark.parametrize("wrong", ["rotary", None, -1, float("nan"), "x" * 100_000, Config, Config.of("bert")])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("attention", "Attention of pellucid.config"),
        ("feed_forward", "Plain or Gated of pellucid.config"),
        ("norm", "LayerNorm or RMSNorm of pellucid.config"),
        ("position", "Learned or Sinusoidal or NoPosition of pellucid.config"),
        ("attention_position", "NoPosition or Rotary or RelativeBias of pellucid.config"),
        ("dropout", "Dropout of pellucid.config"),
        ("decoder", "DecoderSide or None of pellucid.config"),
        ("head", "MaskedLM or .* or QuestionAnswering or None of pellucid.config"),
        ("inert", "dict"),
    ],
)
def test_each_part_of_a_config_is_one_of_its_types(name: str, wanted: str, wrong: Any) -> None:
    """A string in place of a part used to end in an error of Python's, or silently meant no positions."""
    config = Config.of("bert")
    if wrong is None and name in ("decoder", "head"):
        assert dataclasses.replace(config, **{name: wrong}) == config
        return
    with pytest.raises(InputError, match=f"^{name} is .*, expected {wanted}$") as caught:
        dataclasses.replace(config, **{name: wrong})
    assert len(str(caught.value)) < 300


def test_what_a_config_keeps_of_its_file_is_its_own() -> None:
    said = {"summary": [1]}
    config = Config.of("bert", inert=said)
    said["later"] = [2]
    assert config.inert == {"summary": [1]} and type(dataclasses.asdict(config)["inert"]) is dict


def test_a_model_is_built_with_a_tokenizer_or_none() -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 8}
    wrong: Any = "vocab.txt"
    with pytest.raises(InputError, match="tokenizer is str, expected that of a model of pellucid"):
        pellucid.build(Config.of("bert", **sizes), tokenizer=wrong)
