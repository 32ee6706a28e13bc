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
from tests.test_compat_auto import our_model, reference_model

IDS = torch.tensor([[5, 9, 14, 33, 21]])


class WithoutInit(compat.BertForSequenceClassification):
    """A derived class without its own `__init__`."""

    def answer(self, ids: torch.Tensor) -> int:
        return int(self(ids).logits.argmax())


class WithFrozenBody(compat.BertForSequenceClassification):
    """A derived class with a layer that no file of its family contains, and a frozen body."""

    def __init__(self, config: Any, width: int = 2, *, bias: bool = True) -> None:
        super().__init__(config)
        self.register_module("top", nn.Linear(config.num_labels, width, bias=bias))
        nn.init.constant_(self.top.weight, 0.25)
        self.base_model.requires_grad_(False)
        with torch.no_grad():
            self.network.embeddings.token.weight.zero_()  # values set here are overwritten by those of the files
        self.post_init()

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.top(super().forward(*arguments, **options).logits)


class WithGivenHead(compat.BertForSequenceClassification):
    """A derived class that gets its head as an argument."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        super().__init__(config)
        self.classifier = head


class ReferenceWithGivenHead(transformers.BertForSequenceClassification):
    """`WithGivenHead`, derived from the reference's class."""

    def __init__(self, config: Any, head: nn.Module) -> None:
        super().__init__(config)
        self.classifier = head


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference_model("bert", "SequenceClassification", tmp_path / "one")
    return tmp_path / "one"


def test_derived_class_without_init_loads_like_its_base(folder: Path) -> None:
    model = WithoutInit.from_pretrained(folder, attn_implementation="eager")
    expected = our_model("SequenceClassification", folder)(IDS).logits
    assert type(model) is WithoutInit and model.answer(IDS) == int(expected.argmax())
    assert torch.equal(model(IDS).logits, expected) and model.pellucid.loaded.untrained == ()
    assert type(compat.BertForSequenceClassification.from_pretrained(folder)) is compat.BertForSequenceClassification


def test_derived_init_runs_before_weights_are_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pellucid"):
        model = WithFrozenBody.from_pretrained(
            folder, 5, bias=False, output_attentions=True, attn_implementation="eager"
        )
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} holds no weights for top.weight of this WithFrozenBody: they keep the values of its __init__, so "
        "train it first"
    ]
    expected = our_model("SequenceClassification", folder)(IDS).logits
    assert (
        type(model) is WithFrozenBody
        and model.config.output_attentions
        and not model.training
        and not model.top.training
    )
    assert torch.equal(model.top.weight, torch.full((5, 3), 0.25)) and model.top.bias is None
    assert torch.equal(super(WithFrozenBody, model).forward(IDS).logits, expected)
    assert torch.equal(model(IDS), model.top(expected)) and torch.equal(model.pellucid(IDS).logits, expected)
    assert [name for name, one in model.named_parameters() if one.requires_grad] == [
        "network.head.classifier.weight",
        "network.head.classifier.bias",
        "top.weight",
    ]
    assert model.pellucid.loaded.untrained == () and model.pellucid.loaded.source is not None
    with pytest.raises(
        pellucid.InputError, match=r"^this WithFrozenBody has numbers .* \(top.weight\): keep state_dict"
    ):
        model.save_pretrained(folder.parent / "two")


def test_derived_class_honours_dtype_and_attention(folder: Path) -> None:
    float64_model = WithFrozenBody.from_pretrained(folder, dtype="float64", attn_implementation="eager")
    assert {one.dtype for one in float64_model.parameters()} == {torch.float64} and float64_model(
        IDS
    ).dtype == torch.float64
    assert all(layer.attention.explicit for layer in float64_model.network.layers)
    assert not any(layer.attention.explicit for layer in WithFrozenBody.from_pretrained(folder).network.layers)
    with pytest.raises(
        pellucid.InputError, match=r"^WithFrozenBody needs float weights, and this model has 8-bit ones"
    ):
        WithFrozenBody.from_pretrained(folder, dtype="int8")


def test_head_set_by_init_gets_the_weights_of_the_files(folder: Path) -> None:
    model, theirs = (
        WithGivenHead.from_pretrained(folder, nn.Linear(24, 3)),
        ReferenceWithGivenHead.from_pretrained(folder, nn.Linear(24, 3)),
    )
    torch.testing.assert_close(model(IDS).logits, theirs(IDS).logits, rtol=0, atol=1e-5)
    nn.init.ones_(model.classifier.weight)
    model.save_pretrained(folder.parent / "two")
    again = WithGivenHead.from_pretrained(folder.parent / "two", nn.Linear(24, 3))
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_head_missing_in_the_files_keeps_its_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = reference_model("bert", "", tmp_path)
    nn.init.constant_((head := nn.Linear(24, 7)).weight, 0.5)
    with caplog.at_level(logging.WARNING, "pellucid"):
        model = WithGivenHead.from_pretrained(tmp_path, head)
    assert len(caplog.records) == 1 and "no trained weights for its head: they are random" in caplog.text
    assert model.classifier is head and torch.equal(head.weight, torch.full((7, 24), 0.5))
    assert model.num_labels == 7 and model.pellucid.loaded.untrained == ("head",)
    torch.testing.assert_close(model(IDS).logits, head(theirs(IDS).pooler_output), rtol=0, atol=1e-5)


def test_pre_classifier_is_loaded_for_a_new_classifier(tmp_path: Path) -> None:
    class Derived(compat.RobertaForSequenceClassification):
        pass

    folder = tiny.write("roberta-toxic", tmp_path / "one")
    model = Derived.from_pretrained(folder, num_labels=5, ignore_mismatched_sizes=True)
    assert model.pellucid.loaded.untrained == ("head.classifier",)
    expected = pellucid.load(folder).module.head.pre_classifier.weight
    assert torch.equal(model.network.head.pre_classifier.weight, expected)


def test_weights_that_do_not_fit_the_init_are_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        pellucid.InputError, match=r"^head.classifier.weight is \[7, 24\] as WithGivenHead.__init__ makes it"
    ):
        WithGivenHead.from_pretrained(folder, nn.Linear(24, 7))
    with (
        caplog.at_level(logging.WARNING, "pellucid"),
        pytest.warns(UserWarning, match="^classifier is used and trained"),
    ):
        model = WithGivenHead.from_pretrained(folder, nn.Sequential(nn.Linear(24, 7)))
    assert "no weights for network.head.classifier.0.weight, network.head.classifier.0.bias of this" in caplog.text
    assert "head.classifier.weight, head.classifier.bias of " in caplog.text
    assert model.num_labels == 7 and model.pellucid.loaded.untrained == ("head",) and model(IDS).logits.shape == (1, 7)


@pytest.mark.parametrize(
    ("derived", "options", "error", "fragment"),
    [
        (WithoutInit, {"widht": 3}, pellucid.InputError, "no argument and no fact 'widht' of a BertConfig"),
        (
            WithFrozenBody,
            {"output_attention": 3},
            pellucid.InputError,
            r"'output_attention' .* \(did you mean output_attentions",
        ),
        (WithGivenHead, {}, TypeError, "missing 1 required positional argument: 'head'"),
    ],
)
def test_arguments_unknown_to_config_and_init_are_refused(
    derived: Any, options: dict[str, Any], error: type[Exception], fragment: str, folder: Path
) -> None:
    with pytest.raises(error, match=fragment):
        derived.from_pretrained(folder, **options)


def test_derived_class_loads_only_its_family(tmp_path: Path) -> None:
    reference_model("distilbert", "SequenceClassification", tmp_path)
    with pytest.raises(pellucid.InputError, match="is a distilbert, not a bert: open it with an Auto class"):
        WithFrozenBody.from_pretrained(tmp_path)


class WithFactNames(compat.BertForSequenceClassification):
    """A derived class with arguments that have the names of facts."""

    def __init__(self, config: Any, temperature: float, top_k: int = 1, num_labels: int = 0, **more: Any) -> None:
        super().__init__(config)
        self.received = temperature, top_k, num_labels, more


class WithDropoutArgument(compat.GPT2LMHeadModel):
    def __init__(self, config: Any, hidden_dropout_prob: float = 0.5, attn_pdrop: float = 0.5) -> None:
        super().__init__(config)
        self.received = hidden_dropout_prob, attn_pdrop


class WithPoolerArgument(compat.BertModel):
    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)


def test_arguments_of_init_are_passed_to_it(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"temperature": 2.5, "top_k": 4, "num_labels": 3, "kind": "mine"}
    model = WithFactNames.from_pretrained(folder, **options, output_attentions=True)
    assert model.received == (2.5, 4, 3, {"kind": "mine"}) and model.config.output_attentions
    assert "temperature" not in model.config.to_dict() and model.num_labels == 3
    config = compat.AutoConfig.from_pretrained(folder)
    model = WithFactNames.from_pretrained(
        folder, config=config, **options, output_attentions=True
    )  # as in the reference
    assert model.received == (2.5, 4, 3, {"kind": "mine", "output_attentions": True})
    assert not model.config.output_attentions
    reference_model("gpt2", "CausalLM", tmp_path / "two")
    probabilities = {"hidden_dropout_prob": 0.25, "resid_pdrop": 0.125, "attn_pdrop": 0.75}
    decoder = WithDropoutArgument.from_pretrained(tmp_path / "two", **probabilities)
    assert decoder.received == (0.25, 0.75)
    assert (decoder.config.resid_pdrop, decoder.config.attn_pdrop) == (0.125, 0.75)


def test_body_can_be_built_without_pooler(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    pooled = compat.AutoModel.from_pretrained(folder)
    model = WithPoolerArgument.from_pretrained(folder, add_pooling_layer=False)
    assert "network.pooler" not in str(model.state_dict().keys()) and model.pellucid.loaded.untrained == ()
    assert "pooler.dense.weight, pooler.dense.bias of " in caplog.text
    assert "pooler_output" not in model(IDS) and "pooler_output" in pooled(IDS)
    assert torch.equal(model(IDS).last_hidden_state, pooled(IDS).last_hidden_state)
    model.save_pretrained(folder.parent / "two")
    again = WithPoolerArgument.from_pretrained(folder.parent / "two", add_pooling_layer=False)
    assert torch.equal(again(IDS).last_hidden_state, pooled(IDS).last_hidden_state)
    assert compat.BertModel(model.config, False).network.pooler is None
    with pytest.raises(pellucid.InputError, match="the head sequence-classification reads a pooler"):
        compat.BertForSequenceClassification(model.config, add_pooling_layer=False)


def test_class_without_architecture_is_refused(folder: Path) -> None:
    class Bare(compat.PreTrainedModel):
        pass

    message = "^Bare has no architecture: derive from a class that has one, such as BertModel, or hold what AutoModel"
    for create in (Bare.from_pretrained, lambda path: Bare(compat.AutoConfig.from_pretrained(path))):
        with pytest.raises(pellucid.InputError, match=message):
            create(folder)
    with pytest.raises(AttributeError, match="has no 'BertPreTrainedModel': derive from the class of an architecture"):
        _ = compat.BertPreTrainedModel


class WithNote(compat.T5ForConditionalGeneration):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.note = "mine"


@pytest.mark.parametrize(
    ("facts", "separate_head"),
    [
        ({"tie_word_embeddings": True}, False),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, True),
        ({"tie_word_embeddings": False}, True),
        ({"tie_word_embeddings": False}, False),
    ],
)
def test_tied_or_separate_embeddings_follow_the_files(
    facts: dict[str, bool], separate_head: bool, tmp_path: Path
) -> None:
    """Even if the config contradicts the files, as in T5 version 1.1 and in what version 5 of the reference saves."""
    reference_model("t5", "Seq2SeqLM", tmp_path)
    edit_json(tmp_path / "config.json", lambda config_facts: config_facts.update(facts))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    if separate_head:
        tensors["lm_head.weight"] = torch.randn_like(tensors["shared.weight"])
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, expected = WithNote.from_pretrained(tmp_path), our_model("Seq2SeqLM", tmp_path)
    assert model.note == "mine" and model.pellucid.config == expected.pellucid.config
    assert (model.network.head.decoder.weight is model.get_input_embeddings().weight) is not separate_head
    torch.testing.assert_close(model(IDS).logits, expected(IDS).logits, rtol=0, atol=1e-5)
    assert model.state_dict().keys() == expected.state_dict().keys()


class BiasedForward(compat.GPT2LMHeadModel):
    def forward(self, *arguments: Any, **options: Any) -> Any:
        answer = super().forward(*arguments, **options)
        answer.logits[..., 7] += 1000
        return answer


class NegatedForward(compat.BertForSequenceClassification):
    @torch.no_grad()
    def forward(self, *arguments: Any, **options: Any) -> Any:
        return {"logits": -super().forward(*arguments, **options).logits}


def test_generate_and_pipelines_refuse_an_overridden_forward(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    reference_model("gpt2", "CausalLM", tmp_path)
    model, plain = BiasedForward.from_pretrained(tmp_path), our_model("CausalLM", tmp_path)
    assert int(model(IDS).logits[0, -1].argmax()) == 7
    message = (
        "^this BiasedForward has a forward of its own, which generate would not call: call the model itself, or use "
        ".pellucid"
    )
    with pytest.raises(pellucid.InputError, match=message):
        model.generate(IDS, max_new_tokens=2)
    plain.generate(IDS, max_new_tokens=2)
    class_forward = plain.forward
    plain.forward = functools.wraps(class_forward)(lambda *arguments, **options: class_forward(*arguments, **options))
    with pytest.raises(pellucid.InputError, match="forward of its own, which generate would not call"):
        plain.generate(IDS, max_new_tokens=2)
    for task in ("text-classification", "feature-extraction"):
        with pytest.raises(
            pellucid.InputError, match="this NegatedForward has a forward of its own, which a pipeline would not"
        ):
            compat.pipeline(task, NegatedForward.from_pretrained(checkpoint("bert-feelings")))


def test_pipeline_detects_a_forward_set_later(checkpoint: Callable[[str], Path]) -> None:
    model = compat.AutoModelForSequenceClassification.from_pretrained(checkpoint("bert-feelings"))
    pipe = compat.pipeline("text-classification", model)
    expected = pipe("a cat")
    for wrapper in (torch.no_grad(), torch.autocast("cpu", enabled=False)):
        model.forward = wrapper(model.forward)  # wrapped as by accelerate
    model.forward = types.MethodType(convert_outputs_to_fp32(model.forward.__wrapped__.__wrapped__.__func__), model)
    assert pipe("a cat") == expected
    model.forward = lambda *arguments, **options: None
    with pytest.raises(pellucid.InputError, match="a forward of its own, which a pipeline would not call"):
        pipe("a cat")
    assert compat.pipeline("text-classification", model.pellucid)("a cat") == expected
