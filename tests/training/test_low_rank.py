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
from pellucid.training.start import mark_trained, model_for_training
from pellucid.training.training_run import run_training
from tests.checkpoints import peft_files

Rows = list[dict[str, Any]]
LoadTiny = Callable[..., "pellucid.Model"]
Checkpoint = Callable[[str], Path]

IDS = torch.tensor([[2, 9, 17, 31, 3], [2, 11, 40, 8, 3]])


def perturbed(loaded: Loaded, seed: int = 3) -> Loaded:
    """Perturbs all trainable parameters, so that the adapters have an effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return loaded


def without_dropout(loaded: Loaded) -> Loaded:
    """The same model without dropout."""
    for module in loaded.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return loaded


def at_start(model: pellucid.Model, **settings: Any) -> Loaded:
    """A sentiment classifier at the start of training."""
    objective = TextClassification(classes=("negative", "positive"))
    return model_for_training(model.loaded, objective, Settings(**({"lora": 4} | settings)))


# -- what is trained ---------------------------------------------------------------------------------------------------


def test_new_adapters_do_not_change_the_output(body: pellucid.Model) -> None:
    adapted, plain = at_start(body), at_start(body, lora=None)
    assert torch.equal(adapted.module(IDS)["logits"], plain.module(IDS)["logits"])
    assert all(not change.up.any() and change.down.any() for change in adapter_changes(adapted.module).values())


def test_only_adapters_and_the_head_are_trained(body: pellucid.Model) -> None:
    loaded = at_start(body)
    names = set(Learner(loaded, Settings(lora=4)).parameters())
    adapters = {name for name in names if ".parametrizations.weight.0." in name}
    assert {name.rpartition(".")[2] for name in adapters} == {"down", "up"}
    linear_paths = [path for path, part in body.module.named_modules() if isinstance(part, nn.Linear)]
    assert {name.partition(".parametrizations")[0] for name in adapters} == set(linear_paths)
    assert names - adapters == {"head.classifier.weight", "head.classifier.bias"} | set(loaded.untrained)


def test_head_and_new_parameters_are_trained_whole(body: pellucid.Model, load_tiny: LoadTiny) -> None:
    """A head that the base has already, and a pooler that it lacks; the head over its vocabulary is frozen."""
    classifier = pellucid.Model(mark_trained(at_start(body, lora=None)))
    for base, name in ((classifier, "head.classifier.weight"), (load_tiny("bert-filler"), "pooler.dense.weight")):
        assert base.loaded.untrained == ()
        assert at_start(base).module.get_parameter(name).requires_grad
    filler = attach_adapters(load_tiny("bert-filler").loaded, Settings(lora=4))
    assert all(".parametrizations." in name for name in Learner(filler, Settings(lora=4)).parameters())


def test_target_names_are_resolved_to_paths(body: pellucid.Model) -> None:
    module = at_start(body, lora=None).module
    both = ["layers.0.attention.query", "layers.1.attention.query"]
    assert target_paths(module, ["query"]) == target_paths(module, ["layers.*.attention.query"]) == both
    assert target_paths(module, ["layers.0.attention.query", "query"]) == both
    assert target_paths(module, ["feed_forward.up"]) == ["layers.0.feed_forward.up", "layers.1.feed_forward.up"]
    assert "head.classifier" not in target_paths(module, ["all-linear"])
    with pytest.raises(InputError, match=r"is called 'qwery' \(did you mean query\?\); 'all-linear' stands"):
        target_paths(module, ["qwery"])
    with pytest.raises(InputError, match="no linear map is called 'norm'"):
        target_paths(module, ["norm"])


def test_token_embeddings_are_refused_as_a_target(load_tiny: LoadTiny) -> None:
    module = load_tiny("gpt2").module
    with pytest.raises(InputError, match="holds the token embeddings"):
        target_paths(module, ["head.decoder"])


def test_frozen_layers_get_no_adapter_and_lora_beside_trains_whole_weights(body: pellucid.Model) -> None:
    loaded = at_start(body, freeze=("layers.0.*",), lora_beside=("layers.*.attention_norm", "layers.1.attention.value"))
    paths = {path for path in adapter_changes(loaded.module) if path.startswith("layers.")}
    assert {path.split(".")[1] for path in paths} == {"1"}
    assert "layers.1.attention.value" not in paths
    trainable = {name for name, one in loaded.module.named_parameters() if one.requires_grad}
    assert {
        "layers.0.attention_norm.weight",
        "layers.1.attention.value.weight",
        "layers.1.attention.value.bias",
    } <= trainable
    with pytest.raises(InputError, match="are random or frozen"):
        at_start(body, freeze=("layers.*", "embeddings.*", "pooler.*"))


def test_initial_adapter_weights_have_peft_s_distribution() -> None:
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


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no rank": ({"lora": 0}, "lora is 0, expected a whole number from 1"),
    "no scale": ({"lora": 2, "lora_alpha": 0.0}, "lora_alpha is 0.0"),
    "one word": ({"lora": 2, "lora_targets": "query"}, "lora_targets is 'query', expected names of linear maps"),
    "nothing": ({"lora": 2, "lora_targets": ()}, "lora_targets is empty"),
    "beside one word": ({"lora": 2, "lora_beside": "pooler"}, "lora_beside is 'pooler', expected names of parameters"),
    "only what is not there": ({"adapter_only": True}, "adapter_only is set and lora is not"),
    "numbers": ({"lora": 2, "adapter_dtype": "int8"}, "adapter_dtype is 'int8', expected one of float32, bfloat16"),
}


@pytest.mark.parametrize(("settings", "message"), INVALID.values(), ids=INVALID)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings)


def test_default_learning_rate_of_adapters_is_ten_times_higher() -> None:
    """Ten times the objective's default, unless a rate is given."""
    defaults = {"learning_rate": 1e-4}
    assert Settings.of({}, defaults).learning_rate == 1e-4
    assert Settings.of({"lora": None}, defaults).learning_rate == 1e-4
    assert Settings.of({"lora": 8}, defaults).learning_rate == pytest.approx(1e-3)
    assert Settings.of({"lora": 8, "learning_rate": 3e-4}, defaults).learning_rate == 3e-4
    assert Settings.of({"lora": 8}, {}).learning_rate == pytest.approx(5e-4)


# -- where the sum is used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-body", "gpt2", "llama", "t5-tied"])
def test_every_copy_of_the_model_applies_the_adapters(name: str, load_tiny: LoadTiny) -> None:
    """The plain module, its packed copy, a deep copy, the training copy, and the merged plain model."""
    loaded = perturbed(attach_adapters(without_dropout(load_tiny(name).loaded), Settings(lora=3)))
    merged = merge_adapters(loaded)
    ids = {"input_ids": IDS} | ({"decoder_input_ids": IDS} if loaded.config.decoder else {})
    expected = merged.module(**ids)["last_hidden_state"].detach()
    assert (load_tiny(name).module(**ids)["last_hidden_state"] - expected).abs().max() > 1e-2
    tolerance = {"rtol": 0, "atol": 1e-4 * float(expected.abs().max())}
    torch.testing.assert_close(loaded.module(**ids)["last_hidden_state"].detach(), expected, **tolerance)
    torch.testing.assert_close(loaded.module.packed_copy()(**ids)["last_hidden_state"].detach(), expected, **tolerance)
    torch.testing.assert_close(copy.deepcopy(loaded.module)(**ids)["last_hidden_state"].detach(), expected, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(**ids)["last_hidden_state"], expected, **tolerance)
    learner = Learner(loaded, Settings(lora=3, precision="float32", dropout=0.0))
    stream = learner.before_head(**ids)
    torch.testing.assert_close(stream.detach(), expected, **tolerance)
    assert merge_adapters(merged) is merged
    assert not adapter_changes(merged.module)
    assert dict(merged.module.named_parameters()).keys() == dict(load_tiny(name).module.named_parameters()).keys()
    loaded.module.to(torch.float64)
    assert merge_adapters(loaded).module(**ids)["last_hidden_state"].dtype == torch.float64


def test_packed_copy_follows_changes_of_the_adapters(load_tiny: LoadTiny) -> None:
    loaded = attach_adapters(load_tiny("bert-body").loaded, Settings(lora=2))
    before = embed(loaded, ["good glass"])
    perturbed(loaded)
    assert (embed(loaded, ["good glass"]) - before).abs().max() > 1e-3
    torch.testing.assert_close(
        embed(loaded, ["good glass"]), embed(merge_adapters(loaded), ["good glass"]), rtol=0, atol=1e-5
    )


def test_trace_records_values_with_the_adapters_applied(load_tiny: LoadTiny) -> None:
    loaded = perturbed(attach_adapters(load_tiny("bert-body").loaded, Settings(lora=2)))
    name = "layers.1.attention.query"
    found, expected = (
        record(loaded, "good glass", keep=name)[name],
        record(merge_adapters(loaded), "good glass", keep=name)[name],
    )
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=0, atol=1e-5)


def test_gradients_equal_peft_s(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Of the two small matrices and the head, with the same weights, without dropout."""
    head = "sequence-classification"
    base = pellucid.load(checkpoint("bert-body"), head=head).save(tmp_path / "base")
    targets = {"lora_targets": ("query", "feed_forward.up"), "adapter_only": True}
    settings = Settings(lora=3, lora_alpha=5, precision="float32", dropout=0.0, attention_dropout=0.0, **targets)
    loaded_base = pellucid.load(base).loaded
    loaded = perturbed(model_for_training(loaded_base, TextClassification(classes=loaded_base.config.labels), settings))
    folder = save(loaded, settings, tmp_path / "adapter")
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    theirs = peft_files.open_adapter(base, folder, head, trainable=True, **no_dropout)
    labels = torch.tensor([0, 1])
    nn.functional.cross_entropy(theirs(input_ids=IDS).logits, labels).backward()
    learner = Learner(loaded, settings)
    learner.seed_dropout(0, 0)
    nn.functional.cross_entropy(learner.logits(input_ids=IDS), labels).backward()
    expected = {name: one.grad for name, one in theirs.named_parameters() if one.requires_grad}
    for i in (0, 1):
        for ours, their_name in (
            ("attention.query", "attention.self.query"),
            ("feed_forward.up", "intermediate.dense"),
        ):
            low = loaded.module.get_submodule(f"layers.{i}.{ours}.parametrizations.weight.0")
            for side, letter in (("down", "A"), ("up", "B")):
                name = f"base_model.model.bert.encoder.layer.{i}.{their_name}.lora_{letter}.default.weight"
                torch.testing.assert_close(getattr(low, side).grad, expected[name], rtol=1e-4, atol=1e-6)
    table = expected["base_model.model.classifier.modules_to_save.default.weight"]
    torch.testing.assert_close(loaded.module.get_parameter("head.classifier.weight").grad, table, rtol=1e-4, atol=1e-6)


# -- a whole training run ----------------------------------------------------------------------------------------------

QUICK = {"lora": 4, "learning_rate": 2e-2, "batch_size": 8, "epochs": 8, "precision": "float32", "seed": 1}


def test_adapters_are_trained_and_the_base_is_unchanged(
    checkpoint: Checkpoint, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    base = pellucid.load(checkpoint("bert-body"))
    before = {name: one.clone() for name, one in base.module.state_dict().items()}
    arguments = {"data": sentiments(64), "task": "text-classification", "validation": sentiments(32, seed=9)}
    model = pellucid.train(base, **arguments, out=tmp_path / "whole", **QUICK)
    assert model.report.scores["accuracy"] > 0.9
    assert all(torch.equal(base.module.state_dict()[name], one) for name, one in before.items())
    embeddings = [name for name in before if name.startswith("embeddings.")]
    assert all(torch.equal(model.module.state_dict()[name], before[name]) for name in embeddings)
    query = "layers.0.attention.query.weight"
    change = model.module.state_dict()[query] - before[query]
    assert int(torch.linalg.matrix_rank(change)) == 4
    reloaded = pellucid.load(tmp_path / "whole")
    assert reloaded.loaded.source is not None and reloaded.loaded.source.base is None
    assert torch.equal(reloaded.module.state_dict()[query], model.module.state_dict()[query])


def test_adapter_only_folder_loads_like_the_merged_model(
    checkpoint: Checkpoint, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    arguments = {"data": sentiments(64), "task": "text-classification", "validation": sentiments(32, seed=9)}
    merged = pellucid.train(checkpoint("bert-body"), **arguments, out=tmp_path / "whole", **QUICK)
    model = pellucid.train(checkpoint("bert-body"), **arguments, out=tmp_path / "adapter", adapter_only=True, **QUICK)
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md"} <= files
    assert not files & {"config.json", "model.safetensors", "training"}
    reloaded = pellucid.load(tmp_path / "adapter")
    source = model.loaded.source
    assert source is not None and source.base is not None and source.base.folder == checkpoint("bert-body")
    assert reloaded.config.labels == ("negative", "positive")
    for name, numbers in merged.module.state_dict().items():
        assert torch.equal(model.module.state_dict()[name], numbers), name
        torch.testing.assert_close(reloaded.module.state_dict()[name], numbers, rtol=0, atol=1e-6)
    adapter_config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (adapter_config["r"], adapter_config["lora_alpha"], adapter_config["modules_to_save"]) == (
        4,
        8,
        ["classifier"],
    )
    adapter_size = sum(one.numel() for one in load_file(tmp_path / "adapter" / "adapter_model.safetensors").values())
    assert adapter_size < sum(one.numel() for one in merged.module.parameters()) / 4


def test_interrupted_adapter_training_resumes_bit_for_bit(
    checkpoint: Checkpoint, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    """The state holds only what is trained; the result is the same, bit for bit."""

    def interrupt(event: Any) -> None:
        if event.step == 5 and not event.is_evaluation:
            raise RuntimeError("the power is gone")

    options = {"precision": "float32", "batch_size": 8, "max_steps": 8, "save_every": 1, "learning_rate": 1e-2}
    settings = Settings(lora=4, adapter_only=True, **options)
    base, data = pellucid.load(checkpoint("bert-body")).loaded, DataArguments(sentiments(40))
    uninterrupted = run_training(base, data, TextClassification(), settings, out=tmp_path / "straight", progress=False)
    with pytest.raises(RuntimeError, match="the power is gone"):
        run_training(
            base, data, TextClassification(), settings, out=tmp_path / "broken", progress=False, on_event=interrupt
        )
    (state,) = (tmp_path / "broken" / "training").glob("state-*.safetensors")
    assert not any("embeddings" in name or name.endswith(".original") for name in load_file(state))
    resumed = run_training(
        base, data, TextClassification(), settings, out=tmp_path / "broken", progress=False, resume=True
    )
    assert resumed.start.step == 4
    for name, numbers in uninterrupted.loaded.module.state_dict().items():
        assert torch.equal(resumed.loaded.module.state_dict()[name], numbers), name
    files = [load_file(tmp_path / one / "adapter_model.safetensors") for one in ("straight", "broken")]
    assert all(torch.equal(one, files[1][name]) for name, one in files[0].items())


def test_base_without_a_name_is_refused_for_the_adapter_alone(
    scratch: pellucid.Model, sentiments: Callable[..., Rows]
) -> None:
    with pytest.raises(InputError, match="an adapter names its base"):
        pellucid.train(scratch, sentiments(16), "text-classification", adapter_only=True, **QUICK)
    trained = mark_trained(scratch.loaded)
    assert trained.source is None and attach_adapters(trained, Settings(lora=4)) is trained


def test_folder_of_the_base_is_not_overwritten(
    checkpoint: Checkpoint, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    """Refused before anything there is touched."""
    base = pellucid.load(checkpoint("bert-body")).save(tmp_path / "base")
    (tmp_path / "link").symlink_to(base)
    before = sorted(base.iterdir())
    for out in (base, tmp_path / "link"):
        with pytest.raises(InputError, match="holds the base, which the adapter needs to be there"):
            arguments = {"adapter_only": True, "out": out, "overwrite": True, **QUICK}
            pellucid.train(base, sentiments(16), "text-classification", **arguments)
    with pytest.raises(InputError, match="holds the base"):
        save_adapter(pellucid.load(base).loaded, {}, [], base, overwrite=True)
    assert sorted(base.iterdir()) == before


def test_new_head_is_saved_even_if_frozen(body: pellucid.Model, tmp_path: Path) -> None:
    """Its weights are stored nowhere else."""
    settings: dict[str, Any] = {"lora": 4, "adapter_only": True, "freeze": ("head.*",)}
    loaded = perturbed(at_start(body, **settings))
    reloaded = pellucid.load(save(loaded, Settings(**settings), tmp_path / "adapter"))
    expected = merge_adapters(loaded).module(IDS)["logits"]
    torch.testing.assert_close(reloaded.module(IDS)["logits"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", ["learned since", "rounded"])
def test_adapter_only_is_refused_if_the_base_weights_were_changed(
    change: str, checkpoint: Checkpoint, sentiments: Callable[..., Rows], tmp_path: Path
) -> None:
    model = pellucid.load(checkpoint("bert-body"), dtype="bfloat16" if change == "rounded" else "float32")
    arguments: dict[str, Any] = {"data": sentiments(16), "task": "classify", "adapter_only": True, **QUICK}
    if change == "learned since":
        pellucid.train(model, **arguments, out=tmp_path / "as it was")
        perturbed(model.loaded)
    with pytest.raises(InputError, match=r"of this model holds other numbers than the base: save the model"):
        pellucid.train(model, **arguments)


@pytest.mark.parametrize("option", [{"pooling": "cls"}, {"pooling": "max"}, {"max_length": 5}], ids=str)
def test_adapter_only_folder_saves_pooling_and_max_length(
    option: dict[str, Any], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """The base does not hold these options; if the adapter's folder lacks them, the base's own apply."""
    pairs = [("a good film about the sea", "the sea", 0.9), ("bad food", "a long story of a house", 0.1)]
    rows = [{"sentence1": one, "sentence2": two, "score": score} for one, two, score in pairs * 2]
    settings = {"lora": 2, "learning_rate": 5e-3, "precision": "float32", "max_steps": 2, "validation": 0, **option}
    folder = tmp_path / "adapter"
    model = pellucid.train(checkpoint("bert-body"), rows, "similarity", adapter_only=True, out=folder, **settings)
    text = ["the people went home and read a story about a film"]
    torch.testing.assert_close(pellucid.load(folder).embed(text), model.embed(text), rtol=0, atol=1e-6)
    (folder / "modules.json").unlink()
    assert pellucid.load(folder).loaded.pooling == pellucid.load(checkpoint("bert-body")).loaded.pooling


@pytest.mark.parametrize("name", ["bert-body", "bert-filler", "roberta-toxic", "mpnet-topics"])
def test_sentence_transformers_loads_the_adapter_only_folder(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """It looks for the tokenizer in this folder, not in the base's; PEFT and pellucid open it as before."""
    pairs = [("a good film about the sea", "the sea", 0.9), ("bad food", "a long story of a house", 0.1)]
    rows = [{"sentence1": one, "sentence2": two, "score": score} for one, two, score in pairs * 2]
    settings = {
        "lora": 2,
        "learning_rate": 5e-3,
        "precision": "float32",
        "max_steps": 2,
        "validation": 0,
        "max_length": 9,
    }
    folder = tmp_path / "adapter"
    model = pellucid.train(checkpoint(name), rows, "similarity", adapter_only=True, out=folder, **settings)
    texts = ["The people went home, and read a story about a film.", "Good food", ""]
    expected = model.embed(texts)
    assert (pellucid.load(checkpoint(name), head=None).embed(texts, max_length=9) - expected).abs().max() > 1e-3
    theirs = torch.as_tensor(SentenceTransformer(str(folder), device="cpu").encode(texts))
    torch.testing.assert_close(theirs, expected, rtol=0, atol=2e-6)
    reloaded = pellucid.load(folder)
    torch.testing.assert_close(reloaded.embed(texts), expected, rtol=0, atol=1e-6)
    assert reloaded.tokenizer is not None and model.tokenizer is not None
    assert reloaded.tokenizer(texts)["input_ids"] == model.tokenizer(texts)["input_ids"]
    with peft_files.quiet_peft() as peft:
        peft_model = peft.AutoPeftModelForFeatureExtraction.from_pretrained(folder)
    ids = torch.tensor([reloaded.tokenizer(texts[1])["input_ids"]])
    states = model(ids).last_hidden_state.detach()
    torch.testing.assert_close(peft_files.model_output(peft_model, ids, None), states, rtol=0, atol=1e-5)


def test_adapter_only_folder_saves_the_prefix(checkpoint: Checkpoint, tmp_path: Path) -> None:
    rows, options = (
        [{"text": f"good {i}", "target": "bad"} for i in range(4)],
        {"precision": "float32", "generate": False},
    )
    settings = {"prefix": "say: ", "lora": 2, "adapter_only": True, "max_steps": 1, "validation": 0, **options}
    pellucid.train(checkpoint("t5-tied"), rows, "translation", out=tmp_path / "adapter", **settings)
    assert pellucid.load(tmp_path / "adapter").config.inert["prefix"] == "say: "
