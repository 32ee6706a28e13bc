"""Parts of models, read and set by the reference's names; compared with the reference."""

import contextlib
import copy
import io
import pickle
import threading
import types
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
    held = family in ("bert", "distilbert") and task != "QuestionAnswering"
    told = (
        contextlib.nullcontext() if held else pytest.warns(UserWarning, match=f"^{name} is used and trained as set, ")
    )
    with told:
        setattr(model, name, new)
    setattr(theirs, name, new)
    assert getattr(model, name) is getattr(theirs, name) is new
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
        ("bert", "SequenceClassification", "clasifier", nn.Linear(24, 7), "'clasifier' cannot be replaced"),
        ("bert", "SequenceClassification", "bert", None, "'bert' cannot be replaced"),
        ("bert", "SequenceClassification", "classifier", None, "^classifier is None, expected a module"),
        (
            "bert",
            "SequenceClassification",
            "classifier",
            nn.Parameter(torch.ones(2)),
            "^classifier is Parameter, expec",
        ),
        ("bert", "SequenceClassification", "scale", nn.Parameter(torch.ones(2)), "'scale' cannot be replaced"),
        ("roberta", "SequenceClassification", "classifier", nn.Linear(24, 7), r"set .network.head.classifier, or open"),
        ("bert", "SequenceClassification", "classifier", nn.Linear(9, 3), "^classifier reads 9 numbers, .* has 24: "),
        ("bert", "", "pooler", None, r"'pooler' cannot be replaced.* of this BertModel are in .network$"),
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
    reader.num_labels = 7  # as is often set along with a new head
    reader.classifier = nn.Linear(24, 7)
    assert reader.num_labels == reader.config.num_labels == len(reader.pellucid.config.labels) == 7
    assert vars(reader)["name_or_path"] == reader.name_or_path == str(tmp_path / "two")


GONE = "removed from this BertForSequenceClassification: set it to a module first"


class Apart(nn.Module):
    """A head whose number of labels cannot be read from the outside."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.top = nn.Linear(24, number)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.top(states)


class Twice(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def classifier(folder: Path, family: str = "bert") -> Any:
    reference(family, "SequenceClassification", folder)
    return ours("SequenceClassification", folder)


@pytest.mark.parametrize("number", [2, 7])
def test_a_chain_has_labels_as_a_map_has_and_another_those_that_are_said(number: int, tmp_path: Path) -> None:
    model = classifier(tmp_path)
    with pytest.warns(
        UserWarning, match=r"^classifier is used and trained as set, but only state_dict\(\) keeps it: this mod"
    ):
        model.classifier = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(24, number), nn.Identity()))
    assert model.num_labels == len(model.pellucid.config.labels) == number
    other = ours("SequenceClassification", tmp_path)
    with pytest.warns(UserWarning, match="its number of labels is unknown: set model.num_labels$"):
        other.classifier = Apart(number)
    assert other.num_labels == 3
    other.num_labels = number
    assert len(other.current_model().config.labels) == number
    other(IDS, labels=torch.tensor([number - 1])).loss.backward()
    with pytest.raises(pellucid.InputError, match=r"head.classifier.top.bias .* no longer fit its config"):
        other.save_pretrained(tmp_path / "two")


def test_a_map_within_a_part_is_set_in_the_network_and_has_its_labels(tmp_path: Path) -> None:
    model = classifier(tmp_path / "one", "roberta")
    model.network.head.classifier = nn.Linear(24, 7)
    assert model.config.num_labels == len(model.config.id2label) == 7
    assert model.num_labels == len(model.current_model().config.labels) == 7
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_a_map_that_computes_otherwise_is_not_saved_as_one_that_does_not(tmp_path: Path) -> None:
    model = classifier(tmp_path / "one")
    with pytest.warns(UserWarning, match="head.classifier is a Twice, which does not compute"):
        model.classifier = Twice(24, 3)
    with pytest.raises(
        pellucid.InputError, match=r"head.classifier is a Twice, .* would be lost; put back what it replaced$"
    ):
        model.save_pretrained(tmp_path / "two")
    with pytest.raises(pellucid.InputError, match=r"head.classifier is a Twice, .*; put back what it replaced$"):
        model.pellucid.save(tmp_path / "two")
    del model.classifier
    assert not hasattr(model, "classifier")
    for ask in (lambda: model.classifier, lambda: delattr(model, "classifier")):
        with pytest.raises(AttributeError, match=f"^classifier was {GONE}$"):
            ask()
    model.classifier = nn.Linear(24, 3)
    model.save_pretrained(tmp_path / "two")
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_a_table_that_is_no_more_one_with_that_of_tokens_is_saved_where_the_config_says_so(tmp_path: Path) -> None:
    reference("gpt2", "CausalLM", tmp_path / "one")
    model = ours("CausalLM", tmp_path / "one")
    with pytest.warns(UserWarning, match="if they are two, set config.tie_word_embeddings = False$"):
        model.lm_head = nn.Linear(24, model.config.vocab_size, bias=False)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_a_part_beside_a_forward_of_its_own_is_asked(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    model.forward = types.MethodType(lambda self, ids: self.top(type(self).forward(self, ids).logits), model)
    model.top = nn.Linear(3, 2)
    assert model(IDS).shape == (1, 2) and "top.weight" in model.state_dict()


class Locked(compat.BertForSequenceClassification):
    def __getstate__(self) -> dict[str, Any]:
        return {name: one for name, one in vars(self).items() if name != "lock"}


class Reduced(compat.BertForSequenceClassification):
    def __reduce__(self) -> Any:
        return type(self), (self.config,)


def test_copies_go_by_the_ways_of_a_subclass(tmp_path: Path) -> None:
    config = classifier(tmp_path).config
    model = Locked(config)
    model.lock = threading.Lock()
    for one in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert type(one) is Locked and "lock" not in vars(one) and torch.equal(one(IDS).logits, model(IDS).logits)
    assert type(copy.copy(reduced := Reduced(config))) is Reduced and copy.copy(reduced).network is not reduced.network


def test_a_model_that_was_pickled_before_there_were_names_of_its_parts_has_them(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    for name in ("maps", "name_or_path"):
        del vars(model)[name]
    model._load_state_dict_pre_hooks.clear()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert again.maps == {"classifier": "head.classifier"} and again.name_or_path == str(tmp_path)
    assert not again.load_state_dict({"classifier.weight": torch.ones(3, 24)}, strict=False).unexpected_keys
    assert again.classifier.weight.mean() == 1


def test_a_head_or_a_map_of_it_that_is_gone_is_told_of(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    del model.classifier
    gone = "^classifier was removed from this BertForSequenceClassification: set it to a module first$"
    with pytest.raises(AttributeError, match=gone):
        model(IDS)
    del model.network.head
    assert model.config.num_labels == model.num_labels == 3
    with pytest.raises(AttributeError, match=gone):
        model(IDS)
    reference("bert", "TokenClassification", tmp_path)
    model = ours("TokenClassification", tmp_path)
    model.network.head = None
    assert model(IDS).last_hidden_state.shape == (*IDS.shape, 24)


@pytest.mark.parametrize(("family", "task"), [("bert", ""), ("gpt2", ""), ("t5", "Seq2SeqLM")])
def test_there_are_as_many_states_as_layers_were_left(family: str, task: str, tmp_path: Path) -> None:
    reference(family, task, tmp_path)
    model = ours(task, tmp_path)
    side, cut = ("encoder_", model.network.encoder) if task else ("", model.network)
    cut.layers = cut.layers[:1]
    found = model(IDS, output_hidden_states=True, output_attentions=True)
    assert [len(found[f"{side}{seen}"]) for seen in ("hidden_states", "attentions")] == [2, 1]
    if task:
        whole = len(model.network.decoder.layers)
        assert len(found.decoder_hidden_states) - 1 == len(found.cross_attentions) == whole > 1
    else:
        assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
