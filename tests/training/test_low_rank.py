"""Adapters of low rank in training: what is trained, where the sum is used, and what is left at the end."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn

import pellucid
from pellucid.checkpoints.adapter_save import save_adapter
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.tasks.embed import embed
from pellucid.trace import record
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.learner import Learner
from pellucid.training.low_rank import LowRank, adapter_changes, attach_adapters, merge_adapters, save, target_paths
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from pellucid.training.training_run import run_training
from tests.checkpoints import peft_files

Rows = list[dict[str, Any]]
Opened = Callable[..., "pellucid.Model"]
Checkpoint = Callable[[str], Path]

IDS = torch.tensor([[2, 9, 17, 31, 3], [2, 11, 40, 8, 3]])


def loud(loaded: Loaded, seed: int = 3) -> Loaded:
    """Perturbs all trainable parameters, so that the adapters have an effect."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in loaded.module.parameters():
            if one.requires_grad:
                one.add_(0.2 * torch.randn(one.shape, generator=chance))
    return loaded


def still(loaded: Loaded) -> Loaded:
    """The same model without dropout."""
    for part in loaded.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return loaded


def begun(model: pellucid.Model, **settings: Any) -> Loaded:
    """A sentiment classifier at the start of training."""
    objective = TextClassification(classes=("negative", "positive"))
    return model_for_training(model.loaded, objective, Settings(**({"lora": 4} | settings)))


# -- what is trained ---------------------------------------------------------------------------------------------------


def test_it_begins_as_its_base(body: pellucid.Model) -> None:
    with_, without = begun(body), begun(body, lora=None)
    assert torch.equal(with_.module(IDS)["logits"], without.module(IDS)["logits"])
    assert all(not change.up.any() and change.down.any() for change in adapter_changes(with_.module).values())


def test_adapters_and_the_head_learn_and_nothing_else(body: pellucid.Model) -> None:
    loaded = begun(body)
    names = set(Learner(loaded, Settings(lora=4)).parameters())
    low = {name for name in names if ".parametrizations.weight.0." in name}
    assert {name.rpartition(".")[2] for name in low} == {"down", "up"}
    every = [path for path, part in body.module.named_modules() if isinstance(part, nn.Linear)]
    assert {name.partition(".parametrizations")[0] for name in low} == set(every)
    assert names - low == {"head.classifier.weight", "head.classifier.bias"} | set(loaded.untrained)


def test_names_of_targets(body: pellucid.Model) -> None:
    module = begun(body, lora=None).module
    both = ["layers.0.attention.query", "layers.1.attention.query"]
    assert target_paths(module, ["query"]) == target_paths(module, ["layers.*.attention.query"]) == both
    assert target_paths(module, ["layers.0.attention.query", "query"]) == both
    assert target_paths(module, ["feed_forward.up"]) == ["layers.0.feed_forward.up", "layers.1.feed_forward.up"]
    assert "head.classifier" not in target_paths(module, ["all-linear"])
    with pytest.raises(InputError, match=r"is called 'qwery' \(did you mean query\?\); 'all-linear' stands"):
        target_paths(module, ["qwery"])
    with pytest.raises(InputError, match="no linear map is called 'norm'"):
        target_paths(module, ["norm"])


def test_the_table_of_the_tokens_is_no_target(opened: Opened) -> None:
    module = opened("gpt2").module
    with pytest.raises(InputError, match="holds the token embeddings"):
        target_paths(module, ["head.decoder"])


def test_what_is_frozen_gets_no_adapter_and_what_is_named_learns_whole(body: pellucid.Model) -> None:
    loaded = begun(body, freeze=("layers.0.*",), lora_beside=("layers.*.attention_norm", "layers.1.attention.value"))
    paths = {path for path in adapter_changes(loaded.module) if path.startswith("layers.")}
    assert {path.split(".")[1] for path in paths} == {"1"}
    assert "layers.1.attention.value" not in paths
    learns = {name for name, one in loaded.module.named_parameters() if one.requires_grad}
    assert {
        "layers.0.attention_norm.weight",
        "layers.1.attention.value.weight",
        "layers.1.attention.value.bias",
    } <= learns
    with pytest.raises(InputError, match="are random or frozen"):
        begun(body, freeze=("layers.*", "embeddings.*", "pooler.*"))


def test_first_numbers_are_those_that_peft_would_draw() -> None:
    """Uniform between -1/sqrt(in) and 1/sqrt(in), and different for another seed."""
    table = torch.zeros(8, 400)
    first, same, other = (LowRank(table, 64, 2.0, torch.Generator().manual_seed(seed)).down for seed in (0, 0, 1))
    bound = 1 / math.sqrt(400)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert 0.99 * bound < float(first.detach().abs().max()) <= bound
    assert float(first.detach().var()) == pytest.approx(bound**2 / 3, rel=0.03)
    reference = torch.empty(64, 400)
    nn.init.kaiming_uniform_(reference, a=math.sqrt(5))  # as PEFT calls it
    assert float(reference.var()) == pytest.approx(float(first.detach().var()), rel=0.05)


SAID: dict[str, tuple[dict[str, Any], str]] = {
    "no rank": ({"lora": 0}, "lora is 0, expected a whole number from 1"),
    "no scale": ({"lora": 2, "lora_alpha": 0.0}, "lora_alpha is 0.0"),
    "one word": ({"lora": 2, "lora_targets": "query"}, "lora_targets is 'query', expected names of linear maps"),
    "nothing": ({"lora": 2, "lora_targets": ()}, "lora_targets is empty"),
    "beside one word": ({"lora": 2, "lora_beside": "pooler"}, "lora_beside is 'pooler', expected names of parameters"),
    "only what is not there": ({"adapter_only": True}, "adapter_only is set and lora is not"),
    "numbers": ({"lora": 2, "adapter_dtype": "int8"}, "adapter_dtype is 'int8', expected one of float32, bfloat16"),
}


@pytest.mark.parametrize(("settings", "says"), SAID.values(), ids=SAID)
def test_settings_that_cannot_be(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Settings(**settings)


def test_adapters_learn_at_a_greater_rate() -> None:
    """Ten times the objective's default, unless a rate is given."""
    own = {"learning_rate": 1e-4}
    assert Settings.of({}, own).learning_rate == 1e-4
    assert Settings.of({"lora": None}, own).learning_rate == 1e-4
    assert Settings.of({"lora": 8}, own).learning_rate == pytest.approx(1e-3)
    assert Settings.of({"lora": 8, "learning_rate": 3e-4}, own).learning_rate == 3e-4
    assert Settings.of({"lora": 8}, {}).learning_rate == pytest.approx(5e-4)


# -- where the sum is used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama", "t5-tied"])
def test_everybody_sees_the_sum(name: str, opened: Opened) -> None:
    """By the plain module, its packed copy, a deep copy, the training copy, and the merged plain model."""
    loaded = loud(attach_adapters(still(opened(name).loaded), Settings(lora=3)))
    plain = merge_adapters(loaded)
    ids = {"input_ids": IDS} | ({"decoder_input_ids": IDS} if loaded.config.decoder else {})
    wanted = plain.module(**ids)["last_hidden_state"].detach()
    assert (opened(name).module(**ids)["last_hidden_state"] - wanted).abs().max() > 1e-2
    close = {"rtol": 0, "atol": 1e-4 * float(wanted.abs().max())}
    torch.testing.assert_close(loaded.module(**ids)["last_hidden_state"].detach(), wanted, **close)
    torch.testing.assert_close(loaded.module.packed_copy()(**ids)["last_hidden_state"].detach(), wanted, **close)
    torch.testing.assert_close(copy.deepcopy(loaded.module)(**ids)["last_hidden_state"].detach(), wanted, **close)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(**ids)["last_hidden_state"], wanted, **close)
    learner = Learner(loaded, Settings(lora=3, precision="float32", dropout=0.0))
    stream = learner.before_head(**ids)
    torch.testing.assert_close(stream.detach(), wanted, **close)
    assert merge_adapters(plain) is plain
    assert not adapter_changes(plain.module)
    assert dict(plain.module.named_parameters()).keys() == dict(opened(name).module.named_parameters()).keys()
    loaded.module.to(torch.float64)
    assert merge_adapters(loaded).module(**ids)["last_hidden_state"].dtype == torch.float64


def test_the_twin_for_speed_is_made_anew_when_an_adapter_has_learned(opened: Opened) -> None:
    loaded = attach_adapters(opened("bert-body").loaded, Settings(lora=2))
    before = embed(loaded, ["good glass"])
    loud(loaded)
    assert (embed(loaded, ["good glass"]) - before).abs().max() > 1e-3
    torch.testing.assert_close(
        embed(loaded, ["good glass"]), embed(merge_adapters(loaded), ["good glass"]), rtol=0, atol=1e-5
    )


def test_a_trace_sees_the_sum(opened: Opened) -> None:
    loaded = loud(attach_adapters(opened("bert-body").loaded, Settings(lora=2)))
    name = "layers.1.attention.query"
    found, wanted = (
        record(loaded, "good glass", keep=name)[name],
        record(merge_adapters(loaded), "good glass", keep=name)[name],
    )
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=0, atol=1e-5)


def test_gradients_are_those_of_peft(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Of the two small matrices and the head, with the same weights, without dropout."""
    head = "sequence-classification"
    base = pellucid.load(checkpoint("bert-body"), head=head).save(tmp_path / "base")
    chosen = {"lora_targets": ("query", "feed_forward.up"), "adapter_only": True}
    settings = Settings(lora=3, lora_alpha=5, precision="float32", dropout=0.0, attention_dropout=0.0, **chosen)
    given = pellucid.load(base).loaded
    loaded = loud(model_for_training(given, TextClassification(classes=given.config.labels), settings))
    folder = save(loaded, settings, tmp_path / "adapter")
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = peft_files.open_adapter(base, folder, head, learns=True, **none)
    labels = torch.tensor([0, 1])
    nn.functional.cross_entropy(theirs(input_ids=IDS).logits, labels).backward()
    learner = Learner(loaded, settings)
    learner.seed_dropout(0, 0)
    nn.functional.cross_entropy(learner.logits(input_ids=IDS), labels).backward()
    wanted = {name: one.grad for name, one in theirs.named_parameters() if one.requires_grad}
    for i in (0, 1):
        for ours, word in (("attention.query", "attention.self.query"), ("feed_forward.up", "intermediate.dense")):
            low = loaded.module.get_submodule(f"layers.{i}.{ours}.parametrizations.weight.0")
            for side, letter in (("down", "A"), ("up", "B")):
                name = f"base_model.model.bert.encoder.layer.{i}.{word}.lora_{letter}.default.weight"
                torch.testing.assert_close(getattr(low, side).grad, wanted[name], rtol=1e-4, atol=1e-6)
    table = wanted["base_model.model.classifier.modules_to_save.default.weight"]
    torch.testing.assert_close(loaded.module.get_parameter("head.classifier.weight").grad, table, rtol=1e-4, atol=1e-6)


# -- a whole training run ----------------------------------------------------------------------------------------------

QUICK = {"lora": 4, "learning_rate": 2e-2, "batch_size": 8, "epochs": 8, "precision": "float32", "seed": 1}


def test_it_learns_and_its_base_stays(checkpoint: Checkpoint, feelings: Callable[..., Rows], tmp_path: Path) -> None:
    base = pellucid.load(checkpoint("bert-body"))
    before = {name: one.clone() for name, one in base.module.state_dict().items()}
    given = {"data": feelings(64), "task": "text-classification", "validation": feelings(32, seed=9)}
    model = pellucid.train(base, **given, out=tmp_path / "whole", **QUICK)
    assert model.report.scores["accuracy"] > 0.9
    assert all(torch.equal(base.module.state_dict()[name], one) for name, one in before.items())
    embeddings = [name for name in before if name.startswith("embeddings.")]
    assert all(torch.equal(model.module.state_dict()[name], before[name]) for name in embeddings)
    query = "layers.0.attention.query.weight"
    change = model.module.state_dict()[query] - before[query]
    assert int(torch.linalg.matrix_rank(change)) == 4
    found = pellucid.load(tmp_path / "whole")
    assert found.loaded.source is not None and found.loaded.source.base is None
    assert torch.equal(found.module.state_dict()[query], model.module.state_dict()[query])


def test_the_adapter_alone(checkpoint: Checkpoint, feelings: Callable[..., Rows], tmp_path: Path) -> None:
    given = {"data": feelings(64), "task": "text-classification", "validation": feelings(32, seed=9)}
    whole = pellucid.train(checkpoint("bert-body"), **given, out=tmp_path / "whole", **QUICK)
    model = pellucid.train(checkpoint("bert-body"), **given, out=tmp_path / "adapter", adapter_only=True, **QUICK)
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= files
    assert not files & {"config.json", "model.safetensors", "training"}
    found = pellucid.load(tmp_path / "adapter")
    source = model.loaded.source
    assert source is not None and source.base is not None and source.base.folder == checkpoint("bert-body")
    assert found.config.labels == ("negative", "positive")
    for name, numbers in whole.module.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], numbers), name
        torch.testing.assert_close(found.module.state_dict()[name], numbers, rtol=0, atol=1e-6)
    said = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["modules_to_save"]) == (4, 8, ["classifier"])
    held = sum(one.numel() for one in load_file(tmp_path / "adapter" / "adapter_model.safetensors").values())
    assert held < sum(one.numel() for one in whole.module.parameters()) / 4


def test_it_goes_on_where_it_was_broken_off(
    checkpoint: Checkpoint, feelings: Callable[..., Rows], tmp_path: Path
) -> None:
    """The state holds only what is trained; the result is the same, bit for bit."""

    def stop(one: Any) -> None:
        if one.step == 5 and not one.is_evaluation:
            raise RuntimeError("the power is gone")

    said = {"precision": "float32", "batch_size": 8, "max_steps": 8, "save_every": 1, "learning_rate": 1e-2}
    settings = Settings(lora=4, adapter_only=True, **said)
    base, given = pellucid.load(checkpoint("bert-body")).loaded, DataArguments(feelings(40))
    straight = run_training(base, given, TextClassification(), settings, out=tmp_path / "straight", progress=False)
    with pytest.raises(RuntimeError, match="the power is gone"):
        run_training(
            base, given, TextClassification(), settings, out=tmp_path / "broken", progress=False, on_event=stop
        )
    (state,) = (tmp_path / "broken" / "training").glob("state-*.safetensors")
    assert not any("embeddings" in name or name.endswith(".original") for name in load_file(state))
    found = run_training(
        base, given, TextClassification(), settings, out=tmp_path / "broken", progress=False, resume=True
    )
    assert found.start.step == 4
    for name, numbers in straight.loaded.module.state_dict().items():
        assert torch.equal(found.loaded.module.state_dict()[name], numbers), name
    files = [load_file(tmp_path / one / "adapter_model.safetensors") for one in ("straight", "broken")]
    assert all(torch.equal(one, files[1][name]) for name, one in files[0].items())


def test_a_model_without_a_name_cannot_be_a_base(scratch: pellucid.Model, feelings: Callable[..., Rows]) -> None:
    with pytest.raises(InputError, match="an adapter names its base"):
        pellucid.train(scratch, feelings(16), "text-classification", adapter_only=True, **QUICK)


def test_its_base_is_not_written_over(checkpoint: Checkpoint, feelings: Callable[..., Rows], tmp_path: Path) -> None:
    """Refused before anything there is touched."""
    base = pellucid.load(checkpoint("bert-body")).save(tmp_path / "base")
    (tmp_path / "link").symlink_to(base)
    before = sorted(base.iterdir())
    for out in (base, tmp_path / "link"):
        with pytest.raises(InputError, match="holds the base, which the adapter needs to be there"):
            given = {"adapter_only": True, "out": out, "overwrite": True, **QUICK}
            pellucid.train(base, feelings(16), "text-classification", **given)
    with pytest.raises(InputError, match="holds the base"):
        save_adapter(pellucid.load(base).loaded, {}, [], base, overwrite=True)
    assert sorted(base.iterdir()) == before


def test_a_new_head_is_written_though_it_did_not_learn(body: pellucid.Model, tmp_path: Path) -> None:
    """Its weights are stored nowhere else."""
    said: dict[str, Any] = {"lora": 4, "adapter_only": True, "freeze": ("head.*",)}
    loaded = loud(begun(body, **said))
    found = pellucid.load(save(loaded, Settings(**said), tmp_path / "adapter"))
    wanted = merge_adapters(loaded).module(IDS)["logits"]
    torch.testing.assert_close(found.module(IDS)["logits"], wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("how", ["learned since", "rounded"])
def test_a_model_with_other_numbers_than_its_base_has_no_adapter_alone(
    how: str, checkpoint: Checkpoint, feelings: Callable[..., Rows], tmp_path: Path
) -> None:
    model = pellucid.load(checkpoint("bert-body"), dtype="bfloat16" if how == "rounded" else "float32")
    given: dict[str, Any] = {"data": feelings(16), "task": "classify", "adapter_only": True, **QUICK}
    if how == "learned since":
        pellucid.train(model, **given, out=tmp_path / "as it was")
        loud(model.loaded)
    with pytest.raises(InputError, match=r"of this model holds other numbers than the base: save the model"):
        pellucid.train(model, **given)


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"pooling": "max"}, {"max_length": 5}], ids=str)
def test_the_adapter_alone_makes_its_vectors(option: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The base does not hold these options; if the adapter's folder lacks them, the base's own apply."""
    ends = [("a good film about the sea", "the sea", 0.9), ("bad food", "a long story of a house", 0.1)]
    rows = [{"sentence1": one, "sentence2": two, "score": score} for one, two, score in ends * 2]
    said = {"lora": 2, "learning_rate": 5e-3, "precision": "float32", "max_steps": 2, "validation": 0, **option}
    folder = tmp_path / "adapter"
    model = pellucid.train(checkpoint("bert-body"), rows, "similarity", adapter_only=True, out=folder, **said)
    text = ["the people went home and read a story about a film"]
    torch.testing.assert_close(pellucid.load(folder).embed(text), model.embed(text), rtol=0, atol=1e-6)
    (folder / "modules.json").unlink()
    assert pellucid.load(folder).loaded.pooling == pellucid.load(checkpoint("bert-body")).loaded.pooling


@pytest.mark.parametrize("name", ["bert-body", "bert-filler", "roberta-toxic", "mpnet-topics"])
def test_sentence_transformers_opens_the_adapter_alone(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """It looks for the tokenizer in this folder, not in the base's; PEFT and pellucid open it as before."""
    ends = [("a good film about the sea", "the sea", 0.9), ("bad food", "a long story of a house", 0.1)]
    rows = [{"sentence1": one, "sentence2": two, "score": score} for one, two, score in ends * 2]
    said = {"lora": 2, "learning_rate": 5e-3, "precision": "float32", "max_steps": 2, "validation": 0, "max_length": 9}
    folder = tmp_path / "adapter"
    model = pellucid.train(checkpoint(name), rows, "similarity", adapter_only=True, out=folder, **said)
    texts = ["The people went home, and read a story about a film.", "Good food", ""]
    wanted = model.embed(texts)
    assert (pellucid.load(checkpoint(name), head=None).embed(texts, max_length=9) - wanted).abs().max() > 1e-3
    theirs = torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(texts))
    torch.testing.assert_close(theirs, wanted, rtol=0, atol=2e-6)
    found = pellucid.load(folder)
    torch.testing.assert_close(found.embed(texts), wanted, rtol=0, atol=1e-6)
    assert found.tokenizer is not None and model.tokenizer is not None
    assert found.tokenizer(texts)["input_ids"] == model.tokenizer(texts)["input_ids"]
    with peft_files.quiet_peft() as peft:
        other = peft.AutoPeftModelForFeatureExtraction.from_pretrained(folder)
    ids = torch.tensor([found.tokenizer(texts[1])["input_ids"]])
    states = model(ids).last_hidden_state.detach()
    torch.testing.assert_close(peft_files.model_output(other, ids, None), states, rtol=0, atol=1e-5)


def test_the_adapter_alone_says_what_stands_before_a_text(checkpoint: Checkpoint, tmp_path: Path) -> None:
    rows, said = [{"text": f"good {i}", "target": "bad"} for i in range(4)], {"precision": "float32", "generate": False}
    given = {"prefix": "say: ", "lora": 2, "adapter_only": True, "max_steps": 1, "validation": 0, **said}
    pellucid.train(checkpoint("t5-tied"), rows, "translation", out=tmp_path / "adapter", **given)
    assert pellucid.load(tmp_path / "adapter").config.inert["prefix"] == "say: "
