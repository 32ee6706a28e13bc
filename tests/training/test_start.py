"""Where a training begins: whose numbers go on, which are random, what does not learn; what was given stays so."""

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

Opened = Callable[..., "pellucid.Model"]


class Headed(Objective):
    """An objective that needs some head and some labels, and nothing else."""

    def __init__(self, head: str | None, labels: tuple[str, ...] | None = None, **facts: Any) -> None:
        super().__init__()
        vars(self).update(wanted=head, own=labels, said=facts)

    def head(self, loaded: Any) -> Head | None:
        return None if self.wanted is None else head_for(loaded, self.wanted)

    def labels(self, loaded: Any) -> tuple[str, ...]:
        return self.own or loaded.config.labels

    def facts(self) -> dict[str, Any]:
        return self.said

    def _unasked(self, *given: Any) -> Any:
        raise AssertionError("a beginning asks for head, labels and facts alone")

    examples = collate = loss = score = _unasked


CLASSES = Headed("sequence-classification", ("ham", "spam", "egg"))


def numbers(model: Any) -> dict[str, torch.Tensor]:
    return {name: one.clone() for name, one in model.module.state_dict().items()}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], names: list[str]) -> bool:
    return all(torch.equal(ours[name], theirs[name]) for name in names)


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_a_body_gets_a_new_head_of_the_seed(body: "pellucid.Model") -> None:
    before = numbers(body)
    found = model_for_training(body.loaded, CLASSES, Settings(seed=3))
    now = numbers(found)
    assert same(now, before, list(before)) and set(now) - set(before) == {
        "head.classifier.weight",
        "head.classifier.bias",
    }
    assert found.untrained == ("head.classifier.bias", "head.classifier.weight")
    assert found.config.labels == ("ham", "spam", "egg") and now["head.classifier.weight"].shape == (3, 32)
    again = model_for_training(body.loaded, CLASSES, Settings(seed=3))
    other = model_for_training(body.loaded, CLASSES, Settings(seed=4))
    assert torch.equal(now["head.classifier.weight"], numbers(again)["head.classifier.weight"])
    assert not torch.equal(now["head.classifier.weight"], numbers(other)["head.classifier.weight"])


def test_the_given_model_stays_as_it_is(body: "pellucid.Model") -> None:
    before, facts = numbers(body), body.config
    found = model_for_training(body.loaded, CLASSES, Settings(freeze=("embeddings.*",)))
    with torch.no_grad():
        for one in found.module.parameters():
            one.add_(1.0)
    assert same(numbers(body), before, list(before)) and body.config == facts and not body.loaded.untrained
    assert all(one.requires_grad for one in body.parameters())


def test_a_model_whose_layers_were_taken_away_does_not_learn_with_random_ones(body: "pellucid.Model") -> None:
    body.module.layers = body.module.layers[:1]
    with pytest.raises(InputError, match=r"cannot be trained: its parts were changed, and layers\.1\."):
        model_for_training(body.loaded, CLASSES, Settings())


def test_the_same_labels_keep_their_head(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    given = opened("bert-feelings")
    found = model_for_training(given.loaded, Headed("sequence-classification"), Settings())
    assert same(numbers(found), numbers(given), list(numbers(given))) and not found.untrained and not caplog.messages


def test_other_labels_get_a_new_head_and_say_so(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    given = opened("bert-feelings")
    found = model_for_training(given.loaded, CLASSES, Settings())
    assert [name for name in found.untrained if "classifier" in name] == list(found.untrained) != []
    assert not torch.equal(numbers(found)["head.classifier.weight"], numbers(given)["head.classifier.weight"])
    assert caplog.messages == [
        "the model's labels are negative, neutral, positive, those to be learned ham, spam, egg: its head starts with "
        "new weights"
    ]


def test_a_head_of_another_kind_makes_way(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    given = opened("bert-filler")
    found = model_for_training(given.loaded, CLASSES, Settings())
    assert isinstance(found.config.head, SequenceClassification) and not caplog.messages
    assert set(found.untrained) == {
        f"{part}.{kind}" for part in ("head.classifier", "pooler.dense") for kind in ("weight", "bias")
    }
    body = [name for name in numbers(given) if not name.startswith("head.")]
    assert same(numbers(found), numbers(given), body)


def test_tables_that_are_one_stay_one(opened: Opened) -> None:
    found = model_for_training(opened("bert-body").loaded, Headed("masked-lm"), Settings())
    table = found.module.get_parameter("embeddings.token.weight")
    assert found.module.get_parameter("head.decoder.weight") is table
    assert torch.equal(table, numbers(opened("bert-body"))["embeddings.token.weight"])
    assert "head.decoder.weight" not in found.untrained and "head.dense.weight" in found.untrained
    gpt = opened("gpt2").loaded
    found = model_for_training(gpt, Headed("causal-lm"), Settings())
    assert found.module.get_parameter("head.decoder.weight") is found.module.get_parameter("embeddings.token.weight")
    assert not found.untrained


@pytest.mark.parametrize("name", ["t5-tied", "t5-tasks", "bart", "llama", "llama-chat"])
def test_every_number_of_other_kinds_goes_on(opened: Opened, name: str) -> None:
    given = opened(name)
    found = model_for_training(given.loaded, Headed(given.config.head.name), Settings())
    assert same(numbers(found), numbers(given), list(numbers(given))) and not found.untrained


def test_from_scratch(scratch: "pellucid.Model") -> None:
    found = model_for_training(scratch.loaded, CLASSES, Settings())
    kept = [name for name in numbers(scratch) if name in numbers(found)]
    assert same(numbers(found), numbers(scratch), kept) and len(kept) > 10
    assert set(found.untrained) == {name for name, _ in found.module.named_parameters()}


def test_a_head_that_was_random_is_named(opened: Opened) -> None:
    given = opened("bert-body", head="token-classification")
    assert given.loaded.untrained == ("head",)
    found = model_for_training(given.loaded, Headed("token-classification"), Settings())
    assert found.untrained == ("head.classifier.bias", "head.classifier.weight")
    assert same(numbers(found), numbers(given), list(numbers(given)))


# -- facts ------------------------------------------------------------------------------------------------------------


def test_a_pooler_is_there_where_it_is_read(opened: Opened) -> None:
    assert model_for_training(opened("bert-filler").loaded, CLASSES, Settings()).module.pooler is not None
    assert (
        model_for_training(opened("bert-body").loaded, Headed("token-classification"), Settings()).module.pooler is None
    )
    bare = model_for_training(opened("bert-filler").loaded, Headed(None), Settings())
    assert bare.module.pooler is None and not bare.config.pooler, "nothing is random in a body that had no pooler"
    assert model_for_training(opened("bert-body").loaded, Headed(None), Settings()).module.pooler is not None


def test_heads_have_the_form_of_their_family(opened: Opened) -> None:
    forms = {"distilbert-plain": ("first", "relu"), "roberta-people": ("first", "tanh"), "gpt2": ("last", None)}
    for name, form in forms.items():
        head = model_for_training(opened(name).loaded, CLASSES, Settings()).config.head
        assert isinstance(head, SequenceClassification) and (head.pool, head.dense_activation) == form
    with pytest.raises(InputError, match="t5 has no head 'token-classification'; it has"):
        model_for_training(opened("t5-tied").loaded, Headed("token-classification"), Settings())


def test_a_decoder_without_padding_gets_some(opened: Opened) -> None:
    """By the reference's rule the last word of a text stands before the first token of padding."""
    given = opened("gpt2")
    assert given.config.pad_token_id is None and given.tokenizer.pad_token_id is None
    found = model_for_training(given.loaded, CLASSES, Settings())
    assert found.config.pad_token_id == given.config.eos_token_id == found.padding_id
    ids = torch.tensor([[5, 6, 7], [8, 9, found.padding_id]])
    both = found.module(ids, torch.tensor([[1, 1, 1], [1, 1, 0]]))["logits"]
    alone = found.module(torch.tensor([[8, 9]]))["logits"]
    torch.testing.assert_close(both[1:], alone)


def test_dropout_and_the_problem_stand_in_the_facts(opened: Opened) -> None:
    given = opened("bert-stars")
    objective = Headed("sequence-classification", problem_type="single_label_classification")
    found = model_for_training(given.loaded, objective, Settings(dropout=0.25, attention_dropout=0.0)).config
    assert (found.hidden_dropout_prob, found.classifier_dropout, found.attention_probs_dropout_prob) == (
        0.25,
        0.25,
        0.0,
    )
    assert found.inert["problem_type"] == "single_label_classification"
    other = model_for_training(given.loaded, Headed("token-classification"), Settings()).config
    assert "problem_type" not in other.inert and other.dropout == given.config.dropout
    assert isinstance(other.head, TokenClassification)


def test_a_sentence_model_with_a_head_is_none(minilm: "pellucid.Model") -> None:
    assert model_for_training(minilm.loaded, CLASSES, Settings()).pooling is None
    assert model_for_training(minilm.loaded, Headed(None), Settings()).pooling == minilm.loaded.pooling


# -- what learns ------------------------------------------------------------------------------------------------------


def frozen(loaded: Any) -> set[str]:
    return {name for name, one in loaded.module.named_parameters() if not one.requires_grad}


def test_frozen_names_do_not_learn(body: "pellucid.Model") -> None:
    found = model_for_training(body.loaded, CLASSES, Settings(freeze=("embeddings", "layers.0.*")))
    assert {name.split(".")[0] for name in frozen(found)} == {"embeddings", "layers"}
    assert not any(name.startswith("layers.1") for name in frozen(found))
    body.freeze("layers.1.*")
    assert frozen(model_for_training(body.loaded, CLASSES, Settings())) == frozen(body.loaded) != set()


@pytest.mark.parametrize("lora", [None, 2])
def test_the_way_of_attention_goes_on(opened: Opened, lora: int | None) -> None:
    model = opened("bert-body", attention="explicit")
    for given, explicit in ((model, True), (opened("bert-body"), False)):
        found = model_for_training(given.loaded, CLASSES, Settings(lora=lora))
        for module in (found.module, merge_adapters(found).module):
            assert module.layers[0].attention.explicit is explicit


def test_wrong_names_are_refused(body: "pellucid.Model") -> None:
    with pytest.raises(InputError, match=r"no parameter is called 'embedings.token.weight' \(did you mean embeddings"):
        model_for_training(body.loaded, CLASSES, Settings(freeze=("embedings.token.weight",)))
    with pytest.raises(InputError, match="everything is frozen, so nothing could learn"):
        model_for_training(body.loaded, CLASSES, Settings(freeze=("*",)))


def test_what_has_learned_is_random_no_more(body: "pellucid.Model") -> None:
    assert mark_trained(model_for_training(body.loaded, CLASSES, Settings())).untrained == ()
    part = model_for_training(body.loaded, CLASSES, Settings(freeze=("head.classifier.weight",)))
    assert mark_trained(part).untrained == ("head.classifier.weight",)
    assert mark_trained(replace(part, untrained=())).untrained == ()


def test_packed_numbers_do_not_learn(checkpoint: Callable[[str], Any]) -> None:
    with pytest.raises(InputError, match="training needs float weights, and this model has 8-bit ones"):
        model_for_training(pellucid.load(checkpoint("bert-body"), dtype="int8").loaded, CLASSES, Settings())


def test_what_training_would_lose_is_refused(body: "pellucid.Model") -> None:
    with body.edit({"layers.0.attention.output": 0.0}):
        body.embed("good")  # or the edit complains that it never fired
        with pytest.raises(InputError, match="an edited model does not learn"):
            pellucid.train(body, [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "classify", validation=0)
    layer, query = body.loaded.module.layers[0], body.loaded.module.layers[0].attention.query
    for hang in (layer.register_forward_hook, layer.register_full_backward_hook, layer.register_full_backward_pre_hook):
        hook = hang(lambda *given: None)
        with pytest.raises(InputError, match="has a hook or is of another library"):
            model_for_training(body.loaded, CLASSES, Settings())
        hook.remove()
    for hang in (query.weight.register_hook, query.weight.register_post_accumulate_grad_hook):
        hook = hang(lambda given: None)
        with pytest.raises(InputError, match=r"query\.weight has a hook on its gradient"):
            model_for_training(body.loaded, CLASSES, Settings())
        hook.remove()
    parametrize.register_parametrization(query, "weight", torch.nn.Tanh())
    with pytest.raises(InputError, match="query has a table that is computed"):
        model_for_training(body.loaded, CLASSES, Settings())
    parametrize.remove_parametrizations(query, "weight")
    assert not any("query" in name for name in model_for_training(body.loaded, CLASSES, Settings()).untrained)


def test_narrow_numbers_learn_as_float32(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = model_for_training(opened("bert-body", dtype="bfloat16").loaded, CLASSES, Settings())
    assert {one.dtype for one in found.module.parameters()} == {torch.float32} and not caplog.messages
