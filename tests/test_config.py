"""Checks and derived values of configs."""

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

import pellucid
from pellucid import Config, InputError, blocks
from pellucid.config import (
    CausalLM,
    MaskedLM,
    NextSentence,
    NoPosition,
    QuestionAnswering,
    SequenceClassification,
    SequenceToSequenceLM,
)
from pellucid.config.checks import ACTIVATIONS
from pellucid.models.assemble import assemble, initialise


def test_config_without_families_names_the_right_import() -> None:
    code = "from pellucid.config import Config; Config.of('llama')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.strip().endswith("take Config from pellucid itself, which reads their pages")


@pytest.mark.parametrize("head", [SequenceClassification(), NextSentence()])
@pytest.mark.parametrize("family", ["gpt2", "distilbert", "t5"])
def test_head_that_reads_a_pooler_needs_one(family: str, head: SequenceClassification | NextSentence) -> None:
    with pytest.raises(InputError, match=f"{head.name} reads a pooler, and this {family} config has none"):
        Config.of(family, head=head)
    assert Config.of("bert", head=head).pools


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [("pooler", "gpt2", "decoder"), ("skip_padding", "gpt2", "decoder"), ("skip_padding", "bart", "encoder-decoder")],
)
def test_pooler_and_skip_padding_are_for_encoders_only(name: str, family: str, kind: str) -> None:
    """Tokens are counted within one pass: with a cache, each generated token would get the first position."""
    with pytest.raises(InputError, match=f"{name} is True in a config of kind '{kind}'"):
        Config.of(family, **{name: True})


def test_every_activation_of_a_config_is_implemented() -> None:
    assert set(ACTIVATIONS) == set(blocks.ACTIVATIONS)


def test_labels_may_be_a_list() -> None:
    """A list is not hashable, which the lookup of a model's points needs."""
    names = ["good", "bad"]
    config = Config.of("bert", num_hidden_layers=1, labels=names)
    names.append("neither")
    assert config == config.replace(labels=("good", "bad")) and config.labels == ("good", "bad")
    assert hash(config) == hash(config.replace(labels=["good", "bad"]))


def test_num_labels_keeps_matching_labels() -> None:
    """They used to become LABEL_0 and so on silently, and were saved so."""
    names = ("sad", "glad", "odd")
    config = Config.of("bert", labels=list(names), num_labels=3)
    assert config.labels == config.replace(num_labels=3).labels == names
    assert config.replace(num_labels=2).labels == ("LABEL_0", "LABEL_1")
    with pytest.raises(InputError, match=r"^num_labels is 2 beside 3 labels: give labels alone$"):
        Config.of("bert", labels=names, num_labels=2)
    with pytest.raises(InputError, match=r"^labels are 'sad', expected a list of names$"):
        Config.of("bert", labels="sad", num_labels=3)
    for wrong in (3, "sad", None):  # a number was an error of Python's, and a word silently became LABEL_0 and LABEL_1
        with pytest.raises(InputError, match=rf"^labels are {wrong!r}, expected a list of names$"):
            Config.of("bert", labels=wrong, head=QuestionAnswering())


def test_fact_of_a_replaced_part_is_refused_with_the_name_of_the_part() -> None:
    """The message used to propose the very name that it refused."""
    with pytest.raises(InputError, match=r"^a bert config has no 'max_position_embeddings' with this position$"):
        Config.of("bert", vocab_size=50, position=NoPosition(), max_position_embeddings=40)


@pytest.mark.parametrize("value", [{"rope_type": "linear", "factor": 4.0}, "linear"])
def test_rope_scaling_must_be_one_of_its_types(value: object) -> None:
    """A dict as in config.json used to change nothing, and a trace could not hash it."""
    with pytest.raises(
        InputError, match=r"^rope_scaling is .*, expected pellucid\.config\.Llama3Scaling\(\.\.\.\) or Lin"
    ):
        Config.of("llama", rope_scaling=value)


@pytest.mark.parametrize("invalid", ["rotary", None, -1, float("nan"), "x" * 100_000, Config, Config.of("bert")])
@pytest.mark.parametrize(
    ("name", "expected"),
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
def test_config_parts_must_be_of_their_types(name: str, expected: str, invalid: Any) -> None:
    """A string in place of a part used to end in an error of Python's, or silently meant no positions."""
    config = Config.of("bert")
    if invalid is None and name in ("decoder", "head"):
        assert dataclasses.replace(config, **{name: invalid}) == config
        return
    with pytest.raises(InputError, match=f"^{name} is .*, expected {expected}$") as error:
        dataclasses.replace(config, **{name: invalid})
    assert len(str(error.value)) < 300


def test_config_copies_its_inert_values() -> None:
    inert = {"summary": [1]}
    config = Config.of("bert", inert=inert)
    inert["later"] = [2]
    assert config.inert == {"summary": [1]} and type(dataclasses.asdict(config)["inert"]) is dict


def test_build_refuses_an_invalid_tokenizer() -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 8}
    wrong: Any = "vocab.txt"
    with pytest.raises(InputError, match="tokenizer is str, expected that of a model of pellucid"):
        pellucid.build(Config.of("bert", **sizes), tokenizer=wrong)


def test_head_tied_to_narrower_embeddings_is_refused() -> None:
    sizes = dict.fromkeys(("hidden_size", "vocab_size"), 8) | {"num_hidden_layers": 1, "num_attention_heads": 2}
    config = Config.of("gpt2", head=CausalLM(), embedding_size=4, **sizes)
    tied = r"^head.decoder.weight \[8, 8\] cannot be tied to embeddings.token.weight \[8, 4\]: pass tie_word_emb"
    with pytest.raises(InputError, match=tied):
        pellucid.build(config)
    assert pellucid.build(config.replace(tie_word_embeddings=False))([[1, 2]]).logits.shape == (1, 2, 8)


@pytest.mark.parametrize(("name", "head"), [("bert", MaskedLM()), ("bart", SequenceToSequenceLM(logits_bias=True))])
def test_initial_weights_leave_no_number_of_the_memory(name: str, head: Any) -> None:
    module: Any = assemble(Config.of(name, hidden_size=48, vocab_size=40, head=head))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(torch.nan)
    initialise(module, 0.5, seed=1)
    assert all(parameter.isfinite().all() for parameter in module.parameters())
    table = module.embeddings.token
    assert table.weight.std().item() == pytest.approx(0.5, rel=0.2) and not table.weight[table.padding_idx].any()
