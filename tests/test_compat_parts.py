"""Parts of models by the reference's names, set and asked for; the reference beside."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import pellucid
from pellucid import compat
from tests.test_compat_auto import ours, reference

IDS = torch.tensor([[5, 9, 14, 33, 21]])
HEADS = [
    ("bert", "SequenceClassification", "classifier"),
    ("bert", "TokenClassification", "classifier"),
    ("bert", "QuestionAnswering", "qa_outputs"),
    ("distilbert", "SequenceClassification", "classifier"),
    ("distilbert", "SequenceClassification", "pre_classifier"),
    ("llama", "SequenceClassification", "score"),
    ("gpt2", "CausalLM", "lm_head"),
]


@pytest.mark.parametrize(("family", "task", "name"), HEADS)
def test_a_map_of_the_head_is_the_one_that_was_set(family: str, task: str, name: str, tmp_path: Path) -> None:
    theirs, model = reference(family, task, tmp_path), ours(task, tmp_path)
    assert torch.equal(getattr(model, name).weight, getattr(theirs, name).weight)
    rows = {"pre_classifier": 24, "qa_outputs": 2}.get(name, 7)
    torch.manual_seed(0)
    new = nn.Sequential(nn.Linear(24, rows)) if task == "QuestionAnswering" else nn.Linear(24, rows)
    for one in (model, theirs):
        setattr(one, name, new)
        assert getattr(one, name) is new
    found, wanted = model(IDS)[0], theirs(IDS)[0]
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    found.sum().backward()
    assert all(one.grad is not None for one in new.parameters())
    assert model.num_parameters() == theirs.num_parameters()


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification"])
def test_there_are_as_many_labels_as_a_new_head_has(task: str, tmp_path: Path) -> None:
    reference("bert", task, tmp_path / "one")
    model = ours(task, tmp_path / "one")
    model.classifier = nn.Linear(24, 7)
    assert model.num_labels == model.config.num_labels == len(model.pellucid.config.labels) == 7
    whole = task == "SequenceClassification"
    model(IDS, labels=torch.tensor([6]) if whole else torch.full_like(IDS, 6)).loss.backward()
    assert model.network.head.classifier.weight.grad.abs().sum() > 0
    model.save_pretrained(tmp_path / "two")
    again = getattr(transformers, f"AutoModelFor{task}").from_pretrained(tmp_path / "two")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "task", "name", "value", "fragment"),
    [
        (
            "bert",
            "SequenceClassification",
            "embeddings",
            nn.Identity(),
            r"of its head set 'classifier', which is .netw",
        ),
        ("bert", "SequenceClassification", "clasifier", nn.Linear(24, 7), "'clasifier' cannot be set to another part"),
        ("bert", "SequenceClassification", "bert", None, "'bert' cannot be set to another part"),
        ("bert", "SequenceClassification", "classifier", None, "^classifier is None, expected a module"),
        (
            "bert",
            "SequenceClassification",
            "classifier",
            nn.Parameter(torch.ones(2)),
            "^classifier is Parameter, expec",
        ),
        ("bert", "SequenceClassification", "scale", nn.Parameter(torch.ones(2)), "'scale' cannot be set"),
        ("roberta", "SequenceClassification", "classifier", nn.Linear(24, 7), r"set .network.head.classifier$"),
        ("bert", "", "pooler", None, r"'pooler' cannot be set .* of this BertModel stand in .network$"),
        ("gpt2", "CausalLM", "transformer", nn.Identity(), "'lm_head', which is .network.head.decoder$"),
    ],
)
def test_a_part_that_no_pass_would_ask_is_refused(
    family: str, task: str, name: str, value: Any, fragment: str, tmp_path: Path
) -> None:
    reference(family, task, tmp_path)
    model = ours(task, tmp_path)
    before, count = model(IDS)[0], model.num_parameters()
    with pytest.raises(pellucid.InputError, match=fragment):
        setattr(model, name, value)
    assert torch.equal(model(IDS)[0], before) and model.num_parameters() == count


def test_what_is_no_part_is_set_as_on_any_module(tmp_path: Path) -> None:
    reference("bert", "SequenceClassification", tmp_path)
    model = ours("SequenceClassification", tmp_path)
    model.hf_quantizer, model.hf_device_map, model.note = None, {"": "cpu"}, "mine"
    assert (model.hf_quantizer, model.hf_device_map, model.note) == (None, {"": "cpu"}, "mine")

    class Own(compat.BertModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.top = nn.Linear(24, 2)

        def forward(self, *inputs: Any, **said: Any) -> Any:
            return self.top(super().forward(*inputs, **said).last_hidden_state[:, 0])

    own = Own(compat.AutoConfig.from_pretrained(tmp_path))
    assert own(IDS).shape == (1, 2) and "top.weight" in own.state_dict()


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("prune_heads", r"'prune_heads': .pellucid.edit\("),
        ("gradient_checkpointing_enable", "smaller batches need less memory"),
        ("set_attn_implementation", "pass attn_implementation to from_pretrained"),
        ("get_encoder", "AutoModel.from_pretrained opens the body"),
        ("model", r"no 'model' \(did you mean (?!_)"),
        ("save_pretraned", r"\(did you mean save_pretrained"),
    ],
)
def test_what_is_not_there_is_told_by_names_that_are_for_all(name: str, fragment: str, tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model = ours("CausalLM", tmp_path)
    with pytest.raises(AttributeError, match=fragment) as caught:
        getattr(model, name)
    assert " _" not in str(caught.value) and not hasattr(model, name)


def test_what_the_reference_s_libraries_ask_of_a_model_is_answered(tmp_path: Path) -> None:
    theirs, model = reference("gpt2", "CausalLM", tmp_path / "one"), ours("CausalLM", tmp_path / "one")
    assert model.can_generate() == theirs.can_generate() and model.tie_weights() is None
    reference("bert", "TokenClassification", tmp_path / "two")
    reader = ours("TokenClassification", tmp_path / "two")
    assert not reader.can_generate() and reader.num_labels == 3
    reader.num_labels = 7  # as is often said beside a new head
    reader.classifier = nn.Linear(24, 7)
    assert reader.num_labels == reader.config.num_labels == len(reader.pellucid.config.labels) == 7
    assert vars(reader)["name_or_path"] == reader.name_or_path == str(tmp_path / "two")
    assert isinstance(reader, transformers.PreTrainedModel) and type(reader) is compat.BertForTokenClassification
