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
from tests.test_compat_auto import our_model, reference_model

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
def test_replaced_head_layer_is_used_as_in_the_reference(family: str, task: str, name: str, tmp_path: Path) -> None:
    theirs, model = reference_model(family, task, tmp_path), our_model(task, tmp_path)
    assert torch.equal(getattr(model, name).weight, getattr(theirs, name).weight)
    rows = {"pre_classifier": 24, "qa_outputs": 2}.get(name, 7)
    torch.manual_seed(0)
    new = nn.Sequential(nn.Linear(24, rows)) if task == "QuestionAnswering" else nn.Linear(24, rows)
    keeps_config = family in ("bert", "distilbert") and task != "QuestionAnswering"
    expected_warning = (
        contextlib.nullcontext()
        if keeps_config
        else pytest.warns(UserWarning, match=f"^{name} is used and trained as set, ")
    )
    with expected_warning:
        setattr(model, name, new)
    setattr(theirs, name, new)
    assert getattr(model, name) is getattr(theirs, name) is new
    found, expected = model(IDS)[0], theirs(IDS)[0]
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    found.sum().backward()
    assert all(one.grad is not None for one in new.parameters())
    assert model.num_parameters() == theirs.num_parameters()
    new.requires_grad_(False)
    options = {"only_trainable": True, "exclude_embeddings": True}
    assert model.num_parameters(**options) == theirs.num_parameters(**options)


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification"])
def test_number_of_labels_follows_a_replaced_head(task: str, tmp_path: Path) -> None:
    reference_model("bert", task, tmp_path / "one")
    model = our_model(task, tmp_path / "one")
    model.classifier = nn.Linear(24, 7)
    assert model.num_labels == model.config.num_labels == len(model.pellucid.config.labels) == 7
    per_text = task == "SequenceClassification"
    model(IDS, labels=torch.tensor([6]) if per_text else torch.full_like(IDS, 6)).loss.backward()
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
def test_parts_that_would_not_be_used_cannot_be_set(
    family: str, task: str, name: str, value: Any, fragment: str, tmp_path: Path
) -> None:
    reference_model(family, task, tmp_path)
    model = our_model(task, tmp_path)
    before, count = model(IDS)[0], model.num_parameters()
    with pytest.raises(pellucid.InputError, match=fragment):
        setattr(model, name, value)
    assert torch.equal(model(IDS)[0], before) and model.num_parameters() == count


def test_other_attributes_are_set_as_on_any_module(tmp_path: Path) -> None:
    reference_model("bert", "SequenceClassification", tmp_path)
    model = our_model("SequenceClassification", tmp_path)
    model.hf_quantizer, model.hf_device_map, model.note = None, {"": "cpu"}, "mine"
    assert (model.hf_quantizer, model.hf_device_map, model.note) == (None, {"": "cpu"}, "mine")

    class Own(compat.BertModel):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.top = nn.Linear(24, 2)

        def forward(self, *inputs: Any, **options: Any) -> Any:
            return self.top(super().forward(*inputs, **options).last_hidden_state[:, 0])

    derived = Own(compat.AutoConfig.from_pretrained(tmp_path))
    assert derived(IDS).shape == (1, 2) and "top.weight" in derived.state_dict()


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
def test_missing_attributes_are_explained_by_public_names(name: str, fragment: str, tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model = our_model("CausalLM", tmp_path)
    with pytest.raises(AttributeError, match=fragment) as error:
        getattr(model, name)
    assert " _" not in str(error.value) and not hasattr(model, name)


def test_attributes_that_reference_libraries_read_exist(tmp_path: Path) -> None:
    theirs, model = reference_model("gpt2", "CausalLM", tmp_path / "one"), our_model("CausalLM", tmp_path / "one")
    assert model.can_generate() == theirs.can_generate() and model.tie_weights() is None
    reference_model("bert", "TokenClassification", tmp_path / "two")
    encoder = our_model("TokenClassification", tmp_path / "two")
    assert not encoder.can_generate() and encoder.num_labels == 3
    encoder.num_labels = 7  # as is often set along with a new head
    encoder.classifier = nn.Linear(24, 7)
    assert encoder.num_labels == encoder.config.num_labels == len(encoder.pellucid.config.labels) == 7
    assert vars(encoder)["name_or_path"] == encoder.name_or_path == str(tmp_path / "two")


REMOVED = "removed from this BertForSequenceClassification: set it to a module first"


class OpaqueHead(nn.Module):
    """A head whose number of labels cannot be read from the outside."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.top = nn.Linear(24, number)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.top(states)


class DoubledLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def our_classifier(folder: Path, family: str = "bert") -> Any:
    reference_model(family, "SequenceClassification", folder)
    return our_model("SequenceClassification", folder)


@pytest.mark.parametrize("number", [2, 7])
def test_number_of_labels_of_a_sequential_or_opaque_head(number: int, tmp_path: Path) -> None:
    model = our_classifier(tmp_path)
    with pytest.warns(
        UserWarning, match=r"^classifier is used and trained as set, but only state_dict\(\) keeps it: this mod"
    ):
        model.classifier = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(24, number), nn.Identity()))
    assert model.num_labels == len(model.pellucid.config.labels) == number
    other = our_model("SequenceClassification", tmp_path)
    with pytest.warns(UserWarning, match="its number of labels is unknown: set model.num_labels$"):
        other.classifier = OpaqueHead(number)
    assert other.num_labels == 3
    other.num_labels = number
    assert len(other.current_model().config.labels) == number
    other(IDS, labels=torch.tensor([number - 1])).loss.backward()
    with pytest.raises(pellucid.InputError, match=r"head.classifier.top.bias .* no longer fit its config"):
        other.save_pretrained(tmp_path / "two")


def test_head_layer_set_in_the_network_changes_the_labels(tmp_path: Path) -> None:
    model = our_classifier(tmp_path / "one", "roberta")
    model.network.head.classifier = nn.Linear(24, 7)
    assert model.config.num_labels == len(model.config.id2label) == 7
    assert model.num_labels == len(model.current_model().config.labels) == 7
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_subclass_of_linear_is_not_saved_as_linear(tmp_path: Path) -> None:
    model = our_classifier(tmp_path / "one")
    with pytest.warns(UserWarning, match="head.classifier is a DoubledLinear, which does not compute"):
        model.classifier = DoubledLinear(24, 3)
    with pytest.raises(
        pellucid.InputError, match=r"head.classifier is a DoubledLinear, .* would be lost; put back what it replaced$"
    ):
        model.save_pretrained(tmp_path / "two")
    with pytest.raises(
        pellucid.InputError, match=r"head.classifier is a DoubledLinear, .*; put back what it replaced$"
    ):
        model.pellucid.save(tmp_path / "two")
    del model.classifier
    assert not hasattr(model, "classifier")
    for access in (lambda: model.classifier, lambda: delattr(model, "classifier")):
        with pytest.raises(AttributeError, match=f"^classifier was {REMOVED}$"):
            access()
    model.classifier = nn.Linear(24, 3)
    model.save_pretrained(tmp_path / "two")
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_separate_output_embeddings_are_saved_if_untied_in_the_config(tmp_path: Path) -> None:
    reference_model("gpt2", "CausalLM", tmp_path / "one")
    model = our_model("CausalLM", tmp_path / "one")
    with pytest.warns(UserWarning, match="if they are two, set config.tie_word_embeddings = False$"):
        model.lm_head = nn.Linear(24, model.config.vocab_size, bias=False)
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path / "two")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(again(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)


def test_part_beside_an_overridden_forward_is_used(tmp_path: Path) -> None:
    model = our_classifier(tmp_path)
    model.forward = types.MethodType(lambda self, ids: self.top(type(self).forward(self, ids).logits), model)
    model.top = nn.Linear(3, 2)
    assert model(IDS).shape == (1, 2) and "top.weight" in model.state_dict()


class WithGetstate(compat.BertForSequenceClassification):
    def __getstate__(self) -> dict[str, Any]:
        return {name: one for name, one in vars(self).items() if name != "lock"}


class WithReduce(compat.BertForSequenceClassification):
    def __reduce__(self) -> Any:
        return type(self), (self.config,)


def test_copies_respect_getstate_and_reduce(tmp_path: Path) -> None:
    config = our_classifier(tmp_path).config
    model = WithGetstate(config)
    model.lock = threading.Lock()
    for copied in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert (
            type(copied) is WithGetstate
            and "lock" not in vars(copied)
            and torch.equal(copied(IDS).logits, model(IDS).logits)
        )
    assert (
        type(copy.copy(reduced := WithReduce(config))) is WithReduce
        and copy.copy(reduced).network is not reduced.network
    )


def test_older_pickle_gets_the_names_of_its_parts(tmp_path: Path) -> None:
    model = our_classifier(tmp_path)
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


def test_removed_head_is_reported(tmp_path: Path) -> None:
    model = our_classifier(tmp_path)
    del model.classifier
    message = "^classifier was removed from this BertForSequenceClassification: set it to a module first$"
    with pytest.raises(AttributeError, match=message):
        model(IDS)
    del model.network.head
    assert model.config.num_labels == model.num_labels == 3
    with pytest.raises(AttributeError, match=message):
        model(IDS)
    reference_model("bert", "TokenClassification", tmp_path)
    model = our_model("TokenClassification", tmp_path)
    model.network.head = None
    assert model(IDS).last_hidden_state.shape == (*IDS.shape, 24)


@pytest.mark.parametrize(("family", "task"), [("bert", ""), ("gpt2", ""), ("t5", "Seq2SeqLM")])
def test_hidden_states_follow_removed_layers(family: str, task: str, tmp_path: Path) -> None:
    reference_model(family, task, tmp_path)
    model = our_model(task, tmp_path)
    prefix, encoder = ("encoder_", model.network.encoder) if task else ("", model.network)
    encoder.layers = encoder.layers[:1]
    found = model(IDS, output_hidden_states=True, output_attentions=True)
    assert [len(found[f"{prefix}{kind}"]) for kind in ("hidden_states", "attentions")] == [2, 1]
    if task:
        depth = len(model.network.decoder.layers)
        assert len(found.decoder_hidden_states) - 1 == len(found.cross_attentions) == depth > 1
    else:
        assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
