"""LoRA adapters in PEFT's format: what the library writes opens here, and what pellucid writes opens there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pellucid
from pellucid.checkpoints.adapter_facts import FILE, WEIGHTS_FILES
from pellucid.checkpoints.adapter_save import save_adapter
from pellucid.checkpoints.families import family_of
from pellucid.checkpoints.load import open_checkpoint, read_config, read_tokenizer
from pellucid.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    InputError,
    NotFoundError,
    PellucidError,
    UnsafeFileError,
)
from pellucid.training.low_rank import attach_adapters, merge_adapters, save
from pellucid.training.settings import Settings
from tests.checkpoints import peft_files
from tests.checkpoints.builders import assert_one_sentence, edit_json, save_bin, with_header
from tests.checkpoints.families import TINY
from tests.checkpoints.hub import LOAD, NAME, Hub, find_snapshot, run_pellucid
from tests.conftest import MINILM
from tests.parity import tiny as golden

KINDS = [
    ("bert", "sequence-classification"),
    ("bert", "question-answering"),
    ("bert", None),
    ("distilbert", "sequence-classification"),
    ("roberta", "sequence-classification"),
    ("albert", "token-classification"),
    ("gpt2", "causal-lm"),
    ("gpt2", "token-classification"),
    ("llama", "causal-lm"),
    ("llama", "sequence-classification"),
    ("t5", "sequence-to-sequence-lm"),
    ("bart", "sequence-to-sequence-lm"),
]
NAMES = [f"{kind}-{head}" for kind, head in KINDS]
IDS = torch.tensor([[5, 9, 17, 31, 2], [7, 11, 40, 3, 2]])
ADAPTER_WEIGHTS = WEIGHTS_FILES[0]


def save_base(folder: Path, kind: str, head: str | None, **facts: Any) -> Path:
    """A tiny base with random weights, biases included."""
    task_head = family_of(kind, "a test").head_named(head) if head else None
    model = pellucid.build(pellucid.Config.of(kind, **(TINY[kind] | facts), head=task_head), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.05 * torch.randn(one.shape, generator=generator))
    return model.save(folder / f"base-{kind}-{head}")


def random_adapter(
    base: Path, folder: Path, settings: Settings | None = None, **options: Any
) -> "tuple[Path, pellucid.Model]":
    """An adapter with random weights on a base, and the merged model."""
    settings = settings or Settings(lora=3, lora_alpha=5, adapter_only=True)
    loaded = attach_adapters(open_checkpoint(base, **options), settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in loaded.module.parameters():
            if one.requires_grad:
                one.add_(0.2 * torch.randn(one.shape, generator=generator))
    return save(loaded, settings, folder), pellucid.Model(merge_adapters(loaded))


@torch.no_grad()
def model_output(model: pellucid.Model, head: str | None) -> Tensor:
    inputs = {"decoder_input_ids": IDS} if head == "sequence-to-sequence-lm" else {}
    return model(IDS, **inputs)["logits" if head else "last_hidden_state"]


# -- round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "head"), KINDS, ids=NAMES)
def test_saved_adapter_opens_here_and_in_peft(kind: str, head: str | None, tmp_path: Path) -> None:
    base = save_base(tmp_path, kind, head)
    folder, model = random_adapter(base, tmp_path / "adapter")
    found = pellucid.load(folder)
    assert model_output(model, head).sub(model_output(pellucid.load(base), head)).abs().max() > 1e-3
    torch.testing.assert_close(model_output(found, head), model_output(model, head), rtol=0, atol=1e-6)
    theirs = peft_files.model_output(peft_files.open_adapter(base, folder, head), IDS, head)
    torch.testing.assert_close(theirs, model_output(found, head), rtol=0, atol=1e-5)


PATTERNS = {"rank_pattern": {"0.attention.self.query": 2}, "alpha_pattern": {"query": 3, "1.output.dense": 9}}
PEFT_CONFIGS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "bert": ("bert", "sequence-classification", {"target_modules": ["query", "value"]}),
    "every linear layer": ("bert", "sequence-classification", {"target_modules": "all-linear"}),
    "no head": ("bert", None, {"target_modules": ["query", "dense"]}),
    "patterns": ("bert", "question-answering", {"target_modules": ["query", "dense"], **PATTERNS}),
    "by the root": ("bert", "sequence-classification", {"target_modules": ["key"], "use_rslora": True}),
    "dropout": ("bert", "sequence-classification", {"target_modules": ["key"], "lora_dropout": 0.3}),
    "minor components": ("bert", None, {"target_modules": ["key"], "init_lora_weights": "mica"}),
    "token embeddings": ("bert", "sequence-classification", {"target_modules": ["word_embeddings", "key"]}),
    "norms": ("bert", "sequence-classification", {"target_modules": ["key"], "modules_to_save": ["LayerNorm"]}),
    "more labels": ("bert", "sequence-classification", {"target_modules": ["query"], "labels": 5}),
    "gpt2": ("gpt2", "causal-lm", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "gpt2, the flag forgotten": ("gpt2", "causal-lm", {"target_modules": ["c_attn"]}),
    "gpt2, every linear layer": (
        "gpt2",
        "token-classification",
        {"target_modules": "all-linear", "exclude_modules": ["classifier"]},
    ),
    "llama": ("llama", "causal-lm", {"target_modules": ["q_proj", "v_proj", "down_proj"]}),
    "llama, its own head": ("llama", "causal-lm", {"target_modules": ["k_proj"], "modules_to_save": ["lm_head"]}),
    "llama, tables at both ends": ("llama", "causal-lm", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "llama, labels": ("llama", "sequence-classification", {"target_modules": "all-linear"}),
    "t5": ("t5", "sequence-to-sequence-lm", {"target_modules": ["q", "v", "wo"]}),
    "some layers": ("llama", "causal-lm", {"target_modules": ["q_proj"], "layers_to_transform": [1]}),
    "layers of a list": (
        "t5",
        "sequence-to-sequence-lm",
        {"target_modules": ["q", "wo"], "layers_to_transform": 0, "layers_pattern": "block"},
    ),
    "an expression": ("llama", "causal-lm", {"target_modules": r".*\.1\..*(q|v)_proj"}),
}


@pytest.mark.parametrize(("kind", "head", "config"), PEFT_CONFIGS.values(), ids=PEFT_CONFIGS)
def test_peft_adapter_opens_here(kind: str, head: str | None, config: dict[str, Any], tmp_path: Path) -> None:
    base = save_base(tmp_path, kind, head)
    theirs = peft_files.write_adapter(base, tmp_path / "adapter", head, **config)
    found = pellucid.load(tmp_path / "adapter")
    torch.testing.assert_close(model_output(found, head), peft_files.model_output(theirs, IDS, head), rtol=0, atol=1e-5)


def test_adapter_adds_a_head_to_a_base_without_one(tmp_path: Path) -> None:
    """The format does not name labels; their number follows from the shape of the head's weight."""
    base = save_base(tmp_path, "bert", None)
    config = {"target_modules": ["query"], "labels": 3}
    theirs = peft_files.write_adapter(base, tmp_path / "adapter", "sequence-classification", **config)
    found = pellucid.load(tmp_path / "adapter")
    assert found.config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    expected = peft_files.model_output(theirs, IDS, "sequence-classification")
    torch.testing.assert_close(model_output(found, "sequence-classification"), expected, rtol=0, atol=1e-5)


def test_saved_adapter_names_its_labels(tmp_path: Path) -> None:
    base = save_base(tmp_path, "bert", "sequence-classification", labels=("BAD", "GOOD"))
    folder, _ = random_adapter(base, tmp_path / "adapter")
    edit_json(
        base / "config.json", lambda facts: facts.update(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    )
    assert pellucid.load(base).config.labels == ("a", "b")
    assert pellucid.load(folder).config.labels == ("BAD", "GOOD")
    assert read_config(folder).labels == ("BAD", "GOOD")


def test_bfloat16_adapter_takes_half_the_size(tmp_path: Path) -> None:
    base = save_base(tmp_path, "bert", "sequence-classification")
    settings = {"lora": 8, "adapter_only": True}
    wide, model = random_adapter(base, tmp_path / "wide", Settings(**settings))
    half, _ = random_adapter(base, tmp_path / "half", Settings(**settings, adapter_dtype="bfloat16"))
    tensors = load_file(half / ADAPTER_WEIGHTS)
    assert {one.dtype for one in tensors.values()} == {torch.bfloat16}
    assert sum(one.nbytes for one in tensors.values()) * 2 == sum(
        one.nbytes for one in load_file(wide / ADAPTER_WEIGHTS).values()
    )
    head = "sequence-classification"
    torch.testing.assert_close(model_output(pellucid.load(half), head), model_output(model, head), rtol=0, atol=0.02)


def test_fused_projections_are_adapted_separately(tmp_path: Path) -> None:
    """GPT-2 stores query, key and value as one matrix; here query and value have an adapter, and key has none."""
    base = save_base(tmp_path, "gpt2", "causal-lm")
    settings = Settings(lora=2, lora_targets=("query", "value"), adapter_only=True)
    folder, model = random_adapter(base, tmp_path / "adapter", settings)
    key = "layers.1.attention.key.weight"
    assert torch.equal(pellucid.load(folder).module.get_parameter(key), pellucid.load(base).module.get_parameter(key))
    theirs = peft_files.model_output(peft_files.open_adapter(base, folder, "causal-lm"), IDS, "causal-lm")
    torch.testing.assert_close(theirs, model_output(model, "causal-lm"), rtol=0, atol=1e-5)


# -- the merged model --------------------------------------------------------------------------------------------------


SETTINGS = Settings(lora=2, adapter_only=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base with a tokenizer and no head, and an adapter that classifies sequences."""
    root = tmp_path_factory.mktemp("pair")
    base = golden.write("bert-body", root / "base")
    loaded = attach_adapters(open_checkpoint(base, head="sequence-classification"), SETTINGS)
    with torch.no_grad():
        for one in loaded.module.parameters():
            if one.requires_grad:
                one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(4)))
    return base, save(loaded, SETTINGS, root / "adapter")


def test_merged_model_is_an_ordinary_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, folder = pair
    model = pellucid.load(folder)
    source = model.loaded.source
    assert source is not None and source.base is not None
    assert (source.folder, source.base.folder) == (folder, base)
    assert f"{folder} (an adapter on {base}): bert" in repr(model)
    again = pellucid.load(model.save(tmp_path / "whole"))
    for name, numbers in model.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], numbers), name
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None and model.tokenizer is not None
    assert tokenizer.encode(["a text"])[0].ids == model.tokenizer.encode(["a text"])[0].ids
    labels = pellucid.pipeline("text-classification", folder)(["a text", "another"])
    assert [one["label"] for one in labels] == [
        one["label"] for one in pellucid.pipeline("text-classification", again)(["a text", "another"])
    ]


def test_other_dtypes_are_close_to_float64(pair: tuple[Path, Path]) -> None:
    _, folder = pair
    ids = torch.tensor([[2, 9, 17, 3]])
    wide = pellucid.load(folder, dtype="float64")(ids)["logits"].detach()
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.1), ("int8", 0.1)):
        found = pellucid.load(folder, dtype=dtype)(ids)["logits"]
        torch.testing.assert_close(found.detach().double(), wide, rtol=0, atol=tolerance * float(wide.abs().max()))


@pytest.mark.parametrize("dtype", ["float64", torch.float64])
def test_merging_in_float64_is_exact(dtype: str | torch.dtype, pair: tuple[Path, Path]) -> None:
    base, folder = pair
    name, tensors = "layers.0.attention.query.weight", load_file(folder / ADAPTER_WEIGHTS)
    before, after = (pellucid.load(one, dtype=dtype).module.get_parameter(name).detach() for one in (base, folder))
    expected = before + 2.0 * tensors[B].double() @ tensors[A].double()
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-14)


def test_loading_an_adapter_in_4_bits_warns(pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    base, folder = pair
    for quiet in ({"name": folder, "dtype": "int8"}, {"name": base, "dtype": "int4"}):
        pellucid.load(**quiet)
    assert "bits" not in caplog.text
    pellucid.load(folder, dtype="int4")
    assert "round away much of what an adapter adds; 8 bits (int8) keep it" in caplog.text


def test_verify_accepts_an_adapter(pair: tuple[Path, Path]) -> None:
    from pellucid.tasks.verify import verify

    checks = list(verify(pair[1], texts=["a text", "another one"]))
    assert all(check.passed for check in checks), checks
    assert any("with the adapter in the tables of" in check.note for check in checks)


def test_a_checkpoint_with_an_adapter_inside_is_its_own_base(tmp_path: Path) -> None:
    """As in the reference: beside a config.json, the name of the base is ignored."""
    base = save_base(tmp_path, "bert", "sequence-classification")
    folder, model = random_adapter(base, tmp_path / "adapter")
    for path in folder.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    edit_json(base / FILE, lambda facts: facts.update(base_model_name_or_path="no/such"))
    head = "sequence-classification"
    torch.testing.assert_close(model_output(pellucid.load(base), head), model_output(model, head), rtol=0, atol=1e-7)


def test_saving_model_over_adapter_and_back_leaves_no_old_files(tmp_path: Path) -> None:
    base = save_base(tmp_path, "bert", "sequence-classification")
    folder, model = random_adapter(base, tmp_path / "adapter")
    model.save(folder, overwrite=True)
    assert not (folder / FILE).exists() and not (folder / ADAPTER_WEIGHTS).exists()
    head = "sequence-classification"
    assert torch.equal(model_output(pellucid.load(folder), head), model_output(model, head))
    settings = Settings(lora=2, adapter_only=True)
    save(attach_adapters(open_checkpoint(base), settings), settings, folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == [FILE, ADAPTER_WEIGHTS]


def test_pickled_adapter_is_checked(tmp_path: Path) -> None:
    base = save_base(tmp_path, "llama", "causal-lm")
    theirs = peft_files.write_adapter(base, tmp_path / "adapter", "causal-lm", target_modules=["q_proj"])
    numbers = load_file(tmp_path / "adapter" / ADAPTER_WEIGHTS)
    (tmp_path / "adapter" / ADAPTER_WEIGHTS).unlink()
    save_bin(numbers, tmp_path / "adapter" / WEIGHTS_FILES[1])
    found = model_output(pellucid.load(tmp_path / "adapter"), "causal-lm")
    torch.testing.assert_close(found, peft_files.model_output(theirs, IDS, "causal-lm"), rtol=0, atol=1e-5)
    save_bin({"base_model.model.x": print}, tmp_path / "adapter" / WEIGHTS_FILES[1])
    with pytest.raises(UnsafeFileError, match="would do more than load tensors"):
        pellucid.load(tmp_path / "adapter")


# -- what does not fit together ----------------------------------------------------------------------------------------

Damage = Callable[[Path], object]
PREFIX = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"
A, B = f"{PREFIX}A.weight", f"{PREFIX}B.weight"


def with_adapter_config(**values: Any) -> Damage:
    return lambda folder: edit_json(folder / FILE, lambda facts: facts.update(values))


def with_adapter_tensors(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        numbers = load_file(folder / ADAPTER_WEIGHTS)
        change(numbers)
        save_file(numbers, folder / ADAPTER_WEIGHTS)

    return damage


MODULES = ["query", "key", "value", "dense", "classifier"]
MISMATCH, CORRUPT = CheckpointMismatchError, CorruptFileError
DAMAGED: dict[str, tuple[Damage, type[PellucidError], str]] = {
    "another kind": (
        with_adapter_config(peft_type="IA3"),
        MISMATCH,
        "peft_type is 'IA3', and adapters of kind LORA alone are read",
    ),
    "no kind": (with_adapter_config(peft_type=None), MISMATCH, "peft_type is None"),
    "magnitudes": (with_adapter_config(use_dora=True), MISMATCH, "use_dora would change the numbers"),
    "biases": (with_adapter_config(bias="all"), MISMATCH, "bias is 'all', and only 'none' is read"),
    "repeated layers": (
        with_adapter_config(layer_replication=[[0, 2]]),
        MISMATCH,
        "layer_replication would change the numbers",
    ),
    "tokens": (with_adapter_config(trainable_token_indices=[1]), MISMATCH, "trainable_token_indices would change"),
    "a base that was changed": (
        with_adapter_config(init_lora_weights="pissa"),
        MISMATCH,
        "which changes the base as well",
    ),
    "no base": (with_adapter_config(base_model_name_or_path=None), MISMATCH, "base_model_name_or_path is None"),
    "a base that is gone": (
        with_adapter_config(base_model_name_or_path="/no/such"),
        NotFoundError,
        "adapter_config.json as base_model_name_or_path",
    ),
    "a strange task": (
        with_adapter_config(task_type="DREAM"),
        MISMATCH,
        "task_type is 'DREAM', expected one of SEQ_CLS",
    ),
    "a task that is a list": (with_adapter_config(task_type=["SEQ_CLS"]), MISMATCH, "task_type is ['SEQ_CLS']"),
    "no rank": (with_adapter_config(r=0), MISMATCH, "r is 0, expected a whole number"),
    "another rank": (with_adapter_config(r=7), MISMATCH, "has rank 3, and adapter_config.json says 7"),
    "a page": (with_adapter_config(use_rslora="y" * 3_000), MISMATCH, "use_rslora is 'yyy"),
    "endless": (with_adapter_config(lora_alpha=1e400), MISMATCH, "lora_alpha is inf"),
    "an expression": (with_adapter_config(alpha_pattern={"(a+)+$": 2}), MISMATCH, "expressions are not supported here"),
    "patterns of words": (with_adapter_config(rank_pattern={"query": "3"}), MISMATCH, "the rank of query is '3'"),
    "patterns in a list": (with_adapter_config(rank_pattern=[3]), MISMATCH, "rank_pattern is [3]"),
    "other maps are meant": (
        with_adapter_config(target_modules=[*MODULES[1:], "uery"]),
        MISMATCH,
        "query, which target_modules in",
    ),
    "no map is meant": (
        with_adapter_config(target_modules=[]),
        MISMATCH,
        "which target_modules in adapter_config.json leaves out",
    ),
    "a map is left out": (
        with_adapter_config(exclude_modules=["self.query"]),
        MISMATCH,
        "query, which exclude_modules in",
    ),
    "another layer is meant": (
        with_adapter_config(target_modules=MODULES, layers_to_transform=[1, 2]),
        MISMATCH,
        "which layers_to_transform in adapter_config.json leaves out",
    ),
    "targets by number": (
        with_adapter_config(target_modules=[3]),
        MISMATCH,
        "target_modules is [3], expected a list of names",
    ),
    "layers by name": (
        with_adapter_config(layers_to_transform=["0"]),
        MISMATCH,
        "layers_to_transform is ['0'], expected the numbers",
    ),
    "modules as a word": (
        with_adapter_config(modules_to_save="classifier"),
        MISMATCH,
        "modules_to_save is 'classifier'",
    ),
    "half a pair": (with_adapter_tensors(lambda numbers: numbers.pop(B)), MISMATCH, "has lora_A alone"),
    "another prefix": (
        with_adapter_tensors(lambda n: n.update(x=n.pop(A))),
        MISMATCH,
        "does not begin with 'base_model.model.'",
    ),
    "a magnitude": (
        with_adapter_tensors(lambda n: n.update({f"{PREFIX}magnitude_vector": n[A][0].clone()})),
        MISMATCH,
        "not read",
    ),
    "whole numbers": (
        with_adapter_tensors(lambda n: n.update({A: n[A].int()})),
        MISMATCH,
        "holds int32, expected real numbers",
    ),
    "a strange module": (
        with_adapter_tensors(
            lambda n: n.update({A.replace("query", "quory"): n.pop(A), B.replace("query", "quory"): n.pop(B)})
        ),
        MISMATCH,
        "quory is not a module of a BertForSequenceClassification (did you mean",
    ),
    "a strange tensor": (
        with_adapter_tensors(lambda n: n.update({"base_model.model.extra.weight": n[A].clone()})),
        MISMATCH,
        "extra.weight is not a tensor of a BertForSequenceClassification",
    ),
    "another width": (
        with_adapter_tensors(lambda n: n.update({A: n[A][:, :5].clone()})),
        MISMATCH,
        "was made for another base",
    ),
    "another height": (
        with_adapter_tensors(lambda n: n.update({B: n[B][:5].clone()})),
        MISMATCH,
        "was made for another base",
    ),
    "not a number": (with_adapter_tensors(lambda n: n[A].fill_(float("nan"))), CORRUPT, "NaN or infinite numbers"),
    "too large": (
        with_adapter_tensors(lambda n: (n[A].fill_(3e38), n[B].fill_(3e38))),
        CORRUPT,
        "NaN or infinite numbers",
    ),
    "a note that is none": (
        with_header(lambda header: header["__metadata__"].update(config="{"), ADAPTER_WEIGHTS),
        CORRUPT,
        "a damaged note in its header",
    ),
    "a note that is a list": (
        with_header(lambda header: header["__metadata__"].update(config="[1]"), ADAPTER_WEIGHTS),
        CORRUPT,
        "a note that is a list",
    ),
    "cut short": (
        lambda f: (f / ADAPTER_WEIGHTS).write_bytes((f / ADAPTER_WEIGHTS).read_bytes()[:-9]),
        CORRUPT,
        "is cut short",
    ),
    "no numbers": (
        lambda folder: (folder / ADAPTER_WEIGHTS).unlink(),
        NotFoundError,
        "and no weights: expected adapter_model",
    ),
    "not JSON": (lambda folder: (folder / FILE).write_text("{"), CORRUPT, "is not JSON"),
}


@pytest.fixture(scope="module")
def saved_adapter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("whole")
    base = save_base(root, "bert", "sequence-classification")
    return base, random_adapter(base, root / "adapter")[0]


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_adapters_are_refused_in_one_sentence(
    damage: Damage, error: type[PellucidError], message: str, saved_adapter: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in saved_adapter[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    damage(folder)
    with pytest.raises(PellucidError) as caught:
        pellucid.load(folder)
    assert type(caught.value) is error, caught.value
    assert message in str(caught.value)
    assert_one_sentence(str(caught.value).replace(str(saved_adapter[0]), ""), folder)


@pytest.mark.parametrize("linked", [ADAPTER_WEIGHTS, FILE])
def test_link_out_of_the_folder_is_refused(linked: str, saved_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in (ADAPTER_WEIGHTS, FILE):
        (folder / name).write_bytes((saved_adapter[1] / name).read_bytes())
    (folder / linked).unlink()
    (folder / linked).symlink_to(saved_adapter[1] / linked)
    with pytest.raises(UnsafeFileError, match="outside the checkpoint"):
        pellucid.load(folder)


@pytest.mark.parametrize("facts", [{"hidden_size": 32}, {"num_hidden_layers": 1}, {"num_attention_heads": 2}])
def test_base_of_another_shape_is_refused(
    facts: dict[str, Any], saved_adapter: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two heads instead of four change every answer but no shape; our own files record the facts of the base."""
    other = save_base(tmp_path, "bert", "sequence-classification", **facts)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in saved_adapter[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with_adapter_config(base_model_name_or_path=str(other))(folder)
    with pytest.raises(CheckpointMismatchError, match=f"made for another base than {other}: its {next(iter(facts))}"):
        pellucid.load(folder)
    numbers = load_file(folder / ADAPTER_WEIGHTS)
    save_file(numbers, folder / ADAPTER_WEIGHTS)  # as PEFT writes them, without our metadata
    if "num_attention_heads" not in facts:
        with pytest.raises(CheckpointMismatchError):
            pellucid.load(folder)


def test_adapter_as_base_is_refused(saved_adapter: tuple[Path, Path], tmp_path: Path) -> None:
    loaded = open_checkpoint(saved_adapter[1])
    with pytest.raises(InputError, match="is an adapter itself"):
        attach_adapters(loaded, Settings(lora=2, adapter_only=True))
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in saved_adapter[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with_adapter_config(base_model_name_or_path=str(folder))(folder)
    with pytest.raises(CheckpointMismatchError, match="which is an adapter itself"):
        pellucid.load(folder)


def test_adapter_of_a_tied_table_is_refused(tmp_path: Path) -> None:
    """PEFT adapts one of the two uses of the matrix, which a single tied matrix cannot express."""
    base = save_base(tmp_path, "gpt2", "causal-lm")
    peft_files.write_adapter(base, tmp_path / "adapter", "causal-lm", target_modules=["wte", "c_proj"])
    with pytest.raises(CheckpointMismatchError, match="whose table is shared"):
        pellucid.load(tmp_path / "adapter")
    loaded = open_checkpoint(base)
    with pytest.raises(InputError, match="and the adapter format cannot express that"):
        save_adapter(loaded, {}, ["embeddings.token.weight"], tmp_path / "other")


def test_unsaved_model_as_base_is_refused(tiny: pellucid.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save it and load it first"):
        save_adapter(tiny.loaded, {}, [], tmp_path / "adapter")


# -- locating it -------------------------------------------------------------------------------------------------------


def test_base_in_a_package_is_found_by_name(tmp_path: Path) -> None:
    folder, _ = random_adapter(
        Path(MINILM), tmp_path / "adapter", Settings(lora=1, lora_targets=("query",), adapter_only=True)
    )
    assert json.loads((folder / FILE).read_text())["base_model_name_or_path"] == MINILM
    source = pellucid.load(folder).loaded.source
    assert source is not None and source.base is not None
    assert (source.kind, source.base.kind) == ("folder", "package")


def test_the_base_may_be_a_gguf_file(tmp_path: Path) -> None:
    from tests.checkpoints.gguf_files import tiny_llama

    base = save_base(tmp_path, "llama", "causal-lm", head_dim=6)
    file = tiny_llama(tmp_path / "base.gguf", load_file(base / "model.safetensors"))
    folder, model = random_adapter(base, tmp_path / "adapter")
    with_adapter_config(base_model_name_or_path=str(file))(folder)
    found = pellucid.load(folder)
    torch.testing.assert_close(model_output(found, "causal-lm"), model_output(model, "causal-lm"), rtol=0, atol=1e-5)


def test_index_digest_depends_on_the_adapter(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from pellucid.search.encoder import encoder_of

    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in pair[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with_adapter_config(lora_alpha=5)(folder)
    digests = [encoder_of(open_checkpoint(one, head=None)).digest for one in (*pair, folder, pair[1])]
    assert len(set(digests)) == 3
    assert digests[1] == digests[3]


@pytest.mark.slow
@pytest.mark.parametrize("weights_file", [ADAPTER_WEIGHTS, "adapter_model.bin"])
def test_adapter_and_base_are_fetched_from_the_hub(
    weights_file: str, hub: Hub, home: Path, saved_adapter: tuple[Path, Path], tmp_path: Path
) -> None:
    """The adapter names its base by its name on the hub; once both are cached, no request is sent."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for path in saved_adapter[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with_adapter_config(base_model_name_or_path="o/base")(folder)
    (folder / "training_args.bin").touch()
    if weights_file != ADAPTER_WEIGHTS:
        save_bin(load_file(folder / ADAPTER_WEIGHTS), folder / weights_file)
        (folder / ADAPTER_WEIGHTS).unlink()
    hub.add("o/base", saved_adapter[0])
    hub.add(NAME, folder)
    result = run_pellucid(hub.url, tmp_path / "pulled", "pull", NAME)
    assert result.returncode == 0, result.stderr
    assert {one.name for one in (tmp_path / "pulled" / "hub").glob("models--*")} == {
        "models--o--tiny",
        "models--o--base",
    }
    snapshot = find_snapshot(hub, home, program=LOAD)
    assert {path.name for path in snapshot.iterdir()} == {FILE, weights_file}
    assert snapshot.parent.parent.name == "models--o--tiny"
    assert (home / "hub" / "models--o--base").is_dir()
    hub.requests.clear()
    assert find_snapshot(hub, home, program=LOAD) == snapshot
    assert find_snapshot(hub, home, program=LOAD, HF_HUB_OFFLINE="1") == snapshot
    assert hub.requests == []
