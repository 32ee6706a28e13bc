"""The start of training: which weights are kept, random or frozen; the given model stays unchanged."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

import pellucid
from pellucid.config import Head, SequenceClassification, TokenClassification
from pellucid.errors import InputError
from pellucid.training.low_rank import merge_adapters
from pellucid.training.objective import Objective, head_for
from pellucid.training.settings import Settings
from pellucid.training.start import mark_trained, model_for_training

LoadTiny = Callable[..., "pellucid.Model"]


class GivenHead(Objective):
    """An objective that has only a given head, labels and facts."""

    def __init__(self, head: str | None, labels: tuple[str, ...] | None = None, **facts: Any) -> None:
        super().__init__()
        vars(self).update(head_name=head, given_labels=labels, given_facts=facts)

    def head(self, loaded: Any) -> Head | None:
        return None if self.head_name is None else head_for(loaded, self.head_name)

    def labels(self, loaded: Any) -> tuple[str, ...]:
        return self.given_labels or loaded.config.labels

    def facts(self) -> dict[str, Any]:
        return self.given_facts

    def _not_called(self, *args: Any) -> Any:
        raise AssertionError("the start of training needs head, labels and facts alone")

    examples = collate = loss = score = _not_called


CLASSES = GivenHead("sequence-classification", ("ham", "spam", "egg"))


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in model.module.state_dict().items()}


def same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], names: list[str]) -> bool:
    return all(torch.equal(ours[name], theirs[name]) for name in names)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_new_head_is_drawn_from_the_seed(body: "pellucid.Model") -> None:
    before = weights(body)
    found = model_for_training(body.loaded, CLASSES, Settings(seed=3))
    after = weights(found)
    assert same_weights(after, before, list(before)) and set(after) - set(before) == {
        "head.classifier.weight",
        "head.classifier.bias",
    }
    assert found.untrained == ("head.classifier.bias", "head.classifier.weight")
    assert found.config.labels == ("ham", "spam", "egg") and after["head.classifier.weight"].shape == (3, 32)
    repeated = model_for_training(body.loaded, CLASSES, Settings(seed=3))
    other = model_for_training(body.loaded, CLASSES, Settings(seed=4))
    assert torch.equal(after["head.classifier.weight"], weights(repeated)["head.classifier.weight"])
    assert not torch.equal(after["head.classifier.weight"], weights(other)["head.classifier.weight"])


def test_base_model_is_unchanged(body: "pellucid.Model") -> None:
    before, facts = weights(body), body.config
    found = model_for_training(body.loaded, CLASSES, Settings(freeze=("embeddings.*",)))
    with torch.no_grad():
        for parameter in found.module.parameters():
            parameter.add_(1.0)
    assert same_weights(weights(body), before, list(before)) and body.config == facts and not body.loaded.untrained
    assert all(parameter.requires_grad for parameter in body.parameters())


def test_model_with_removed_layers_is_refused(body: "pellucid.Model") -> None:
    body.module.layers = body.module.layers[:1]
    with pytest.raises(InputError, match=r"cannot be trained: its parts were changed, and layers\.1\."):
        model_for_training(body.loaded, CLASSES, Settings())


def test_head_with_the_same_labels_is_kept(load_tiny: LoadTiny, caplog: pytest.LogCaptureFixture) -> None:
    base = load_tiny("bert-feelings")
    found = model_for_training(base.loaded, GivenHead("sequence-classification"), Settings())
    assert (
        same_weights(weights(found), weights(base), list(weights(base))) and not found.untrained and not caplog.messages
    )


def test_head_with_other_labels_is_replaced_and_reported(load_tiny: LoadTiny, caplog: pytest.LogCaptureFixture) -> None:
    base = load_tiny("bert-feelings")
    found = model_for_training(base.loaded, CLASSES, Settings())
    assert [name for name in found.untrained if "classifier" in name] == list(found.untrained) != []
    assert not torch.equal(weights(found)["head.classifier.weight"], weights(base)["head.classifier.weight"])
    assert caplog.messages == [
        "the model's labels are negative, neutral, positive, those to be learned ham, spam, egg: its head "
        "starts with new weights"
    ]


def test_head_of_another_type_is_replaced(load_tiny: LoadTiny, caplog: pytest.LogCaptureFixture) -> None:
    base = load_tiny("bert-filler")
    found = model_for_training(base.loaded, CLASSES, Settings())
    assert isinstance(found.config.head, SequenceClassification) and not caplog.messages
    assert set(found.untrained) == {
        f"{part}.{kind}" for part in ("head.classifier", "pooler.dense") for kind in ("weight", "bias")
    }
    body = [name for name in weights(base) if not name.startswith("head.")]
    assert same_weights(weights(found), weights(base), body)


def test_tied_embeddings_stay_tied(load_tiny: LoadTiny) -> None:
    found = model_for_training(load_tiny("bert-body").loaded, GivenHead("masked-lm"), Settings())
    table = found.module.get_parameter("embeddings.token.weight")
    assert found.module.get_parameter("head.decoder.weight") is table
    assert torch.equal(table, weights(load_tiny("bert-body"))["embeddings.token.weight"])
    assert "head.decoder.weight" not in found.untrained and "head.dense.weight" in found.untrained
    gpt2 = load_tiny("gpt2").loaded
    found = model_for_training(gpt2, GivenHead("causal-lm"), Settings())
    assert found.module.get_parameter("head.decoder.weight") is found.module.get_parameter("embeddings.token.weight")
    assert not found.untrained


@pytest.mark.parametrize("name", ["t5-tied", "t5-tasks", "bart", "llama", "llama-chat"])
def test_weights_of_other_families_are_kept(load_tiny: LoadTiny, name: str) -> None:
    base = load_tiny(name)
    found = model_for_training(base.loaded, GivenHead(base.config.head.name), Settings())
    assert same_weights(weights(found), weights(base), list(weights(base))) and not found.untrained


def test_untrained_model_keeps_its_weights_and_stays_untrained(scratch: "pellucid.Model") -> None:
    found = model_for_training(scratch.loaded, CLASSES, Settings())
    shared = [name for name in weights(scratch) if name in weights(found)]
    assert same_weights(weights(found), weights(scratch), shared) and len(shared) > 10
    assert set(found.untrained) == {name for name, _ in found.module.named_parameters()}


def test_random_head_is_listed_as_untrained(load_tiny: LoadTiny) -> None:
    base = load_tiny("bert-body", head="token-classification")
    assert base.loaded.untrained == ("head",)
    found = model_for_training(base.loaded, GivenHead("token-classification"), Settings())
    assert found.untrained == ("head.classifier.bias", "head.classifier.weight")
    assert same_weights(weights(found), weights(base), list(weights(base)))


# -- facts ------------------------------------------------------------------------------------------------------------


def test_pooler_exists_where_the_head_reads_it(load_tiny: LoadTiny) -> None:
    assert model_for_training(load_tiny("bert-filler").loaded, CLASSES, Settings()).module.pooler is not None
    assert (
        model_for_training(load_tiny("bert-body").loaded, GivenHead("token-classification"), Settings()).module.pooler
        is None
    )
    bare = model_for_training(load_tiny("bert-filler").loaded, GivenHead(None), Settings())
    assert bare.module.pooler is None and not bare.config.pooler, "nothing is random in a body that had no pooler"
    assert model_for_training(load_tiny("bert-body").loaded, GivenHead(None), Settings()).module.pooler is not None


def test_new_heads_have_the_form_of_their_family(load_tiny: LoadTiny) -> None:
    forms = {"distilbert-plain": ("first", "relu"), "roberta-people": ("first", "tanh"), "gpt2": ("last", None)}
    for name, form in forms.items():
        head = model_for_training(load_tiny(name).loaded, CLASSES, Settings()).config.head
        assert isinstance(head, SequenceClassification) and (head.pool, head.dense_activation) == form
    with pytest.raises(InputError, match="t5 has no head 'token-classification'; it has"):
        model_for_training(load_tiny("t5-tied").loaded, GivenHead("token-classification"), Settings())


def test_only_a_decoder_without_a_padding_id_gets_one(load_tiny: LoadTiny) -> None:
    """By the reference's rule, the last token of a text is the one before the first padding token."""
    base = load_tiny("gpt2")
    assert base.config.pad_token_id is None and base.tokenizer.pad_token_id is None
    found = model_for_training(base.loaded, CLASSES, Settings())
    assert found.config.pad_token_id == base.config.eos_token_id == found.padding_id
    own = replace(base.loaded, config=base.config.replace(pad_token_id=3))
    assert model_for_training(own, CLASSES, Settings()).config.pad_token_id == 3
    ids = torch.tensor([[5, 6, 7], [8, 9, found.padding_id]])
    padded = found.module(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]))["logits"]
    unpadded = found.module(torch.tensor([[8, 9]]))["logits"]
    torch.testing.assert_close(padded[1:], unpadded)


def test_dropout_and_problem_type_are_set_in_the_config(load_tiny: LoadTiny) -> None:
    base = load_tiny("bert-stars")
    objective = GivenHead("sequence-classification", problem_type="single_label_classification")
    found = model_for_training(base.loaded, objective, Settings(dropout=0.25, attention_dropout=0.0)).config
    assert (found.hidden_dropout_prob, found.classifier_dropout, found.attention_probs_dropout_prob) == (
        0.25,
        0.25,
        0.0,
    )
    assert found.inert["problem_type"] == "single_label_classification"
    other = model_for_training(base.loaded, GivenHead("token-classification"), Settings()).config
    assert "problem_type" not in other.inert and other.dropout == base.config.dropout
    assert isinstance(other.head, TokenClassification)


def test_pooling_is_removed_where_a_head_is_added(minilm: "pellucid.Model") -> None:
    assert model_for_training(minilm.loaded, CLASSES, Settings()).pooling is None
    assert model_for_training(minilm.loaded, GivenHead(None), Settings()).pooling == minilm.loaded.pooling


# -- what is trained --------------------------------------------------------------------------------------------------


def frozen_names(loaded: Any) -> set[str]:
    return {name for name, one in loaded.module.named_parameters() if not one.requires_grad}


def test_frozen_parameters_require_no_gradient(body: "pellucid.Model") -> None:
    found = model_for_training(body.loaded, CLASSES, Settings(freeze=("embeddings", "layers.0.*")))
    assert {name.split(".")[0] for name in frozen_names(found)} == {"embeddings", "layers"}
    assert not any(name.startswith("layers.1") for name in frozen_names(found))
    body.freeze("layers.1.*")
    assert frozen_names(model_for_training(body.loaded, CLASSES, Settings())) == frozen_names(body.loaded) != set()


@pytest.mark.parametrize("lora", [None, 2])
def test_attention_implementation_is_kept(load_tiny: LoadTiny, lora: int | None) -> None:
    model = load_tiny("bert-body", attention="explicit")
    for base, explicit in ((model, True), (load_tiny("bert-body"), False)):
        found = model_for_training(base.loaded, CLASSES, Settings(lora=lora))
        for module in (found.module, merge_adapters(found).module):
            assert module.layers[0].attention.explicit is explicit


def test_invalid_freeze_patterns_are_refused(body: "pellucid.Model") -> None:
    with pytest.raises(InputError, match=r"no parameter is called 'embedings.token.weight' \(did you mean embeddings"):
        model_for_training(body.loaded, CLASSES, Settings(freeze=("embedings.token.weight",)))
    with pytest.raises(InputError, match="everything is frozen, so nothing would be trained"):
        model_for_training(body.loaded, CLASSES, Settings(freeze=("*",)))


def test_trained_parameters_are_no_longer_untrained(body: "pellucid.Model") -> None:
    assert mark_trained(model_for_training(body.loaded, CLASSES, Settings())).untrained == ()
    partly_frozen = model_for_training(body.loaded, CLASSES, Settings(freeze=("head.classifier.weight",)))
    assert mark_trained(partly_frozen).untrained == ("head.classifier.weight",)
    assert mark_trained(replace(partly_frozen, untrained=())).untrained == ()


def test_quantized_model_is_refused(checkpoint: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match="training needs float weights, and this model has 8-bit ones"):
        model_for_training(pellucid.load(checkpoint("bert-body"), dtype="int8").loaded, CLASSES, Settings())


def test_edits_hooks_and_parametrizations_are_refused(body: "pellucid.Model") -> None:
    with body.edit({"layers.0.attention.output": 0.0}):
        body.embed("good")  # otherwise the edit would report that it never applied
        with pytest.raises(InputError, match="an edited model cannot be trained"):
            pellucid.train(body, [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "classify", validation=0)
    layer, query = body.loaded.module.layers[0], body.loaded.module.layers[0].attention.query
    for register in (
        layer.register_forward_hook,
        layer.register_full_backward_hook,
        layer.register_full_backward_pre_hook,
    ):
        hook = register(lambda *given: None)
        with pytest.raises(InputError, match="has a hook or is of another library"):
            model_for_training(body.loaded, CLASSES, Settings())
        hook.remove()
    for register in (query.weight.register_hook, query.weight.register_post_accumulate_grad_hook):
        hook = register(lambda given: None)
        with pytest.raises(InputError, match=r"query\.weight has a hook on its gradient"):
            model_for_training(body.loaded, CLASSES, Settings())
        hook.remove()
    parametrize.register_parametrization(query, "weight", torch.nn.Tanh())
    with pytest.raises(InputError, match="query has a table that is computed"):
        model_for_training(body.loaded, CLASSES, Settings())
    parametrize.remove_parametrizations(query, "weight")
    assert not any("query" in name for name in model_for_training(body.loaded, CLASSES, Settings()).untrained)


def test_bfloat16_weights_are_trained_in_float32(load_tiny: LoadTiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = model_for_training(load_tiny("bert-body", dtype="bfloat16").loaded, CLASSES, Settings())
    assert {one.dtype for one in found.module.parameters()} == {torch.float32} and not caplog.messages
