"""Classes derived from those of `pellucid.compat`, loaded by their own `from_pretrained`."""

import functools
import logging
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate.utils.operations import convert_outputs_to_fp32
from safetensors.torch import load_file, save_file
from torch import nn

import pellucid
from pellucid import compat
from tests.checkpoints.builders import edit_json
from tests.parity import tiny
from tests.test_compat_auto import ours, reference

IDS = torch.tensor([[5, 9, 14, 33, 21]])


class Plain(compat.BertForSequenceClassification):
    """A derived class without its own `__init__`."""

    def answer(self, ids: torch.Tensor) -> int:
        return int(self(ids).logits.argmax())


class Mine(compat.BertForSequenceClassification):
    """A derived class with a layer that no file of its family contains, and a frozen body."""

    def __init__(self, config: Any, width: int = 2, *, bias: bool = True) -> None:
        super().__init__(config)
        self.register_module("top", nn.Linear(config.num_labels, width, bias=bias))
        nn.init.constant_(self.top.weight, 0.25)
        self.base_model.requires_grad_(False)
        with torch.no_grad():
            self.network.embeddings.token.weight.zero_()  # values set here are overwritten by those of the files
        self.post_init()

    def forward(self, *given: Any, **said: Any) -> Any:
        return self.top(super().forward(*given, **said).logits)


class Headed(compat.BertForSequenceClassification):
    """A derived class that gets its head as an argument."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        super().__init__(config)
        self.classifier = head


class Theirs(transformers.BertForSequenceClassification):
    """`Headed`, derived from the reference's class."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        super().__init__(config)
        self.classifier = head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference("bert", "SequenceClassification", tmp_path / "one")
    return tmp_path / "one"


def test_a_class_without_an_init_of_its_own_is_what_is_opened(folder: Path) -> None:
    model = Plain.from_pretrained(folder, attn_implementation="eager")
    wanted = ours("SequenceClassification", folder)(IDS).logits
    assert type(model) is Plain and model.answer(IDS) == int(wanted.argmax())
    assert torch.equal(model(IDS).logits, wanted) and model.pellucid.loaded.untrained == ()
    assert type(compat.BertForSequenceClassification.from_pretrained(folder)) is compat.BertForSequenceClassification


def test_an_init_is_asked_and_then_the_numbers_of_the_files_are_taken(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pellucid"):
        model = Mine.from_pretrained(folder, 5, bias=False, output_attentions=True, attn_implementation="eager")
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} holds no weights for top.weight of this Mine: they keep the values of its __init__, so train it "
        "first"
    ]
    wanted = ours("SequenceClassification", folder)(IDS).logits
    assert type(model) is Mine and model.config.output_attentions and not model.training and not model.top.training
    assert torch.equal(model.top.weight, torch.full((5, 3), 0.25)) and model.top.bias is None
    assert torch.equal(super(Mine, model).forward(IDS).logits, wanted)
    assert torch.equal(model(IDS), model.top(wanted)) and torch.equal(model.pellucid(IDS).logits, wanted)
    assert [name for name, one in model.named_parameters() if one.requires_grad] == [
        "network.head.classifier.weight",
        "network.head.classifier.bias",
        "top.weight",
    ]
    assert model.pellucid.loaded.untrained == () and model.pellucid.loaded.source is not None
    with pytest.raises(pellucid.InputError, match=r"^this Mine has numbers .* \(top.weight\): keep state_dict"):
        model.save_pretrained(folder.parent / "two")


def test_kind_device_and_way_of_attention_are_those_that_were_asked_for(folder: Path) -> None:
    wide = Mine.from_pretrained(folder, dtype="float64", attn_implementation="eager")
    assert {one.dtype for one in wide.parameters()} == {torch.float64} and wide(IDS).dtype == torch.float64
    assert all(layer.attention.explicit for layer in wide.network.layers)
    assert not any(layer.attention.explicit for layer in Mine.from_pretrained(folder).network.layers)
    with pytest.raises(pellucid.InputError, match=r"^Mine needs float weights, and this model has 8-bit ones"):
        Mine.from_pretrained(folder, dtype="int8")


def test_a_head_that_an_init_sets_has_the_numbers_of_the_files_as_in_the_reference(folder: Path) -> None:
    model, theirs = Headed.from_pretrained(folder, nn.Linear(24, 3)), Theirs.from_pretrained(folder, nn.Linear(24, 3))
    torch.testing.assert_close(model(IDS).logits, theirs(IDS).logits, rtol=0, atol=1e-5)
    nn.init.ones_(model.classifier.weight)
    model.save_pretrained(folder.parent / "two")
    again = Headed.from_pretrained(folder.parent / "two", nn.Linear(24, 3))
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_a_head_that_the_files_lack_keeps_its_numbers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = reference("bert", "", tmp_path)
    nn.init.constant_((head := nn.Linear(24, 7)).weight, 0.5)
    with caplog.at_level(logging.WARNING, "pellucid"):
        model = Headed.from_pretrained(tmp_path, head)
    assert len(caplog.records) == 1 and "no trained weights for its head: they are random" in caplog.text
    assert model.classifier is head and torch.equal(head.weight, torch.full((7, 24), 0.5))
    assert model.num_labels == 7 and model.pellucid.loaded.untrained == ("head",)
    torch.testing.assert_close(model(IDS).logits, head(theirs(IDS).pooler_output), rtol=0, atol=1e-5)


def test_what_a_new_classifier_reads_is_that_of_the_files(tmp_path: Path) -> None:
    class Derived(compat.RobertaForSequenceClassification):
        pass

    folder = tiny.write("roberta-toxic", tmp_path / "one")
    model = Derived.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    assert model.pellucid.loaded.untrained == ("head.classifier",)
    wanted = pellucid.load(folder).module.head.pre_classifier.weight
    assert torch.equal(model.network.head.pre_classifier.weight, wanted)


def test_what_does_not_fit_what_an_init_makes_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(pellucid.InputError, match=r"^head.classifier.weight is \[7, 24\] as Headed.__init__ makes it"):
        Headed.from_pretrained(folder, nn.Linear(24, 7))
    with (
        caplog.at_level(logging.WARNING, "pellucid"),
        pytest.warns(UserWarning, match="^classifier is used and trained"),
    ):
        model = Headed.from_pretrained(folder, nn.Sequential(nn.Linear(24, 7)))
    assert "no weights for network.head.classifier.0.weight, network.head.classifier.0.bias of this" in caplog.text
    assert "head.classifier.weight, head.classifier.bias of " in caplog.text
    assert model.num_labels == 7 and model.pellucid.loaded.untrained == ("head",) and model(IDS).logits.shape == (1, 7)


@pytest.mark.parametrize(
    ("kind", "said", "error", "fragment"),
    [
        (Plain, {"widht": 3}, pellucid.InputError, "no argument and no fact 'widht' of a BertConfig"),
        (Mine, {"output_attention": 3}, pellucid.InputError, r"'output_attention' .* \(did you mean output_attentions"),
        (Headed, {}, TypeError, "missing 1 required positional argument: 'head'"),
    ],
)
def test_what_neither_a_config_nor_an_init_knows_is_refused(
    kind: Any, said: dict[str, Any], error: type[Exception], fragment: str, folder: Path
) -> None:
    with pytest.raises(error, match=fragment):
        kind.from_pretrained(folder, **said)


def test_a_derived_class_opens_its_family_alone(tmp_path: Path) -> None:
    reference("distilbert", "SequenceClassification", tmp_path)
    with pytest.raises(pellucid.InputError, match="is a distilbert, not a bert: open it with an Auto class"):
        Mine.from_pretrained(tmp_path)


class Told(compat.BertForSequenceClassification):
    """A derived class with arguments that have the names of facts."""

    def __init__(self, config: Any, temperature: float, top_k: int = 1, num_labels: int = 0, **more: Any) -> None:
        super().__init__(config)
        self.told = temperature, top_k, num_labels, more


class Dropping(compat.GPT2LMHeadModel):
    def __init__(self, config: Any, hidden_dropout_prob: float = 0.5) -> None:
        super().__init__(config)
        self.told = hidden_dropout_prob


class Unpooled(compat.BertModel):
    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)


def test_what_an_init_asks_for_by_name_is_handed_over(folder: Path, tmp_path: Path) -> None:
    said: dict[str, Any] = {"temperature": 2.5, "top_k": 4, "num_labels": 3, "kind": "mine"}
    model = Told.from_pretrained(folder, **said, output_attentions=True)
    assert model.told == (2.5, 4, 3, {"kind": "mine"}) and model.config.output_attentions
    assert "temperature" not in model.config.to_dict() and model.num_labels == 3
    config = compat.AutoConfig.from_pretrained(folder)
    model = Told.from_pretrained(folder, config=config, **said, output_attentions=True)  # as in the reference
    assert model.told == (2.5, 4, 3, {"kind": "mine", "output_attentions": True})
    assert not model.config.output_attentions
    reference("gpt2", "CausalLM", tmp_path / "two")
    dropping = Dropping.from_pretrained(tmp_path / "two", hidden_dropout_prob=0.25, resid_pdrop=0.125)
    assert dropping.told == 0.25 and dropping.config.resid_pdrop == 0.125


def test_a_body_is_made_without_its_pooler(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    pooled = compat.AutoModel.from_pretrained(folder)
    model = Unpooled.from_pretrained(folder, add_pooling_layer=False)
    assert "network.pooler" not in str(model.state_dict().keys()) and model.pellucid.loaded.untrained == ()
    assert "pooler.dense.weight, pooler.dense.bias of " in caplog.text
    assert "pooler_output" not in model(IDS) and "pooler_output" in pooled(IDS)
    assert torch.equal(model(IDS).last_hidden_state, pooled(IDS).last_hidden_state)
    model.save_pretrained(folder.parent / "two")
    again = Unpooled.from_pretrained(folder.parent / "two", add_pooling_layer=False)
    assert torch.equal(again(IDS).last_hidden_state, pooled(IDS).last_hidden_state)
    assert compat.BertModel(model.config, False).network.pooler is None
    with pytest.raises(pellucid.InputError, match="the head sequence-classification reads a pooler"):
        compat.BertForSequenceClassification(model.config, add_pooling_layer=False)


def test_a_class_of_no_architecture_says_from_what_to_derive(folder: Path) -> None:
    class Bare(compat.PreTrainedModel):
        pass

    said = "^Bare has no architecture: derive from a class that has one, such as BertModel, or hold what AutoModel"
    for make in (Bare.from_pretrained, lambda where: Bare(compat.AutoConfig.from_pretrained(where))):
        with pytest.raises(pellucid.InputError, match=said):
            make(folder)
    with pytest.raises(AttributeError, match="has no 'BertPreTrainedModel': derive from the class of an architecture"):
        _ = compat.BertPreTrainedModel


class Writer(compat.T5ForConditionalGeneration):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.note = "mine"


@pytest.mark.parametrize(
    ("facts", "held"),
    [
        ({"tie_word_embeddings": True}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True),
        ({"tie_word_embeddings": False}, True),
        ({"tie_word_embeddings": False}, False),
    ],
)
def test_tables_are_one_or_two_as_in_the_files(facts: dict[str, bool], held: bool, tmp_path: Path) -> None:
    """Even if the config contradicts the files, as in T5 version 1.1 and in what version 5 of the reference saves."""
    reference("t5", "Seq2SeqLM", tmp_path)
    edit_json(tmp_path / "config.json", lambda said: said.update(facts))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    if held:
        tensors["lm_head.weight"] = torch.randn_like(tensors["shared.weight"])
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, wanted = Writer.from_pretrained(tmp_path), ours("Seq2SeqLM", tmp_path)
    assert model.note == "mine" and model.pellucid.config == wanted.pellucid.config
    assert (model.network.head.decoder.weight is model.get_input_embeddings().weight) is not held
    torch.testing.assert_close(model(IDS).logits, wanted(IDS).logits, rtol=0, atol=1e-5)
    assert model.state_dict().keys() == wanted.state_dict().keys()


class Biased(compat.GPT2LMHeadModel):
    def forward(self, *given: Any, **said: Any) -> Any:
        answer = super().forward(*given, **said)
        answer.logits[..., 7] += 1000
        return answer


class Flip(compat.BertForSequenceClassification):
    @torch.no_grad()
    def forward(self, *given: Any, **said: Any) -> Any:
        return {"logits": -super().forward(*given, **said).logits}


def test_a_forward_that_writing_and_pipelines_would_not_ask_is_refused(
    tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    reference("gpt2", "CausalLM", tmp_path)
    model, plain = Biased.from_pretrained(tmp_path), ours("CausalLM", tmp_path)
    assert int(model(IDS).logits[0, -1].argmax()) == 7
    said = (
        "^this Biased has a forward of its own, which generate would not call: call the model itself, or use .pellucid"
    )
    with pytest.raises(pellucid.InputError, match=said):
        model.generate(IDS, max_new_tokens=2)
    plain.generate(IDS, max_new_tokens=2)
    of_class = plain.forward
    plain.forward = functools.wraps(of_class)(lambda *given, **said: of_class(*given, **said))
    with pytest.raises(pellucid.InputError, match="forward of its own, which generate would not call"):
        plain.generate(IDS, max_new_tokens=2)
    for task in ("text-classification", "feature-extraction"):
        with pytest.raises(pellucid.InputError, match="this Flip has a forward of its own, which a pipeline would not"):
            compat.pipeline(task, Flip.from_pretrained(checkpoint("bert-feelings")))


def test_a_forward_that_is_set_on_the_model_of_a_pipeline_is_heard_of(checkpoint: Callable[[str], Path]) -> None:
    model = compat.AutoModelForSequenceClassification.from_pretrained(checkpoint("bert-feelings"))
    ask = compat.pipeline("text-classification", model)
    wanted = ask("a cat")
    for around in (torch.no_grad(), torch.autocast("cpu", enabled=False)):
        model.forward = around(model.forward)  # wrapped as by accelerate
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__wrapped__.__wrapped__.__func__), model)
    assert ask("a cat") == wanted
    model.forward = lambda *given, **said: None
    with pytest.raises(pellucid.InputError, match="a forward of its own, which a pipeline would not call"):
        ask("a cat")
    assert compat.pipeline("text-classification", model.pellucid)("a cat") == wanted
