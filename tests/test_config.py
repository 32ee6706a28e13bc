"""Configs by themselves."""

import subprocess
import sys

import pytest

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


def test_encoders_alone_have_a_pooler() -> None:
    with pytest.raises(InputError, match="pooler is True in a config of kind 'decoder'"):
        Config.of("gpt2", pooler=True)


def test_every_activation_that_a_config_may_name_is_there() -> None:
    assert set(ACTIVATIONS) == set(blocks.ACTIVATIONS)


def test_labels_in_a_list_are_as_good_as_in_a_tuple() -> None:
    """A list has no hash, by which the points of a model are found."""
    names = ["good", "bad"]
    config = Config.of("bert", num_hidden_layers=1, labels=names)
    names.append("neither")
    assert config == config.replace(labels=("good", "bad")) and config.labels == ("good", "bad")
    assert hash(config) == hash(config.replace(labels=["good", "bad"]))
