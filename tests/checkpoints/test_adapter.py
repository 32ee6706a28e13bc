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
from tests.checkpoints.builders import edit_json, one_sentence, save_bin, with_header
from tests.checkpoints.families import TINY
from tests.checkpoints.hub import LOAD, NAME, Hub, ask, found
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
NUMBERS_OF = WEIGHTS_FILES[0]


def base_of(folder: Path, kind: str, head: str | None, **facts: Any) -> Path:
    """A tiny base with random weights, biases included."""
    own = family_of(kind, "a test").head_named(head) if head else None
    model = pellucid.build(pellucid.Config.of(kind, **(TINY[kind] | facts), head=own), seed=1)
    chance = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.05 * torch.randn(one.shape, generator=chance))
    return model.save(folder / f"base-{kind}-{head}")


def adapted(base: Path, folder: Path, settings: Settings | None = None, **said: Any) -> "tuple[Path, pellucid.Model]":
    """An adapter with random weights on a base, and the merged model."""
    settings = settings or Settings(lora=3, lora_alpha=5, adapter_only=True)
    loaded = attach_adapters(open_checkpoint(base, **said), settings)
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for one in loaded.module.parameters():
            if one.requires_grad:
                one.add_(0.2 * torch.randn(one.shape, generator=chance))
    return save(loaded, settings, folder), pellucid.Model(merge_adapters(loaded))


@torch.no_grad()
def answer(model: pellucid.Model, head: str | None) -> Tensor:
    given = {"decoder_input_ids": IDS} if head == "sequence-to-sequence-lm" else {}
    return model(IDS, **given)["logits" if head else "last_hidden_state"]


# -- round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "head"), KINDS, ids=NAMES)
def test_what_is_written_opens_here_and_in_peft(kind: str, head: str | None, tmp_path: Path) -> None:
    base = base_of(tmp_path, kind, head)
    folder, model = adapted(base, tmp_path / "adapter")
    found = pellucid.load(folder)
    assert answer(model, head).sub(answer(pellucid.load(base), head)).abs().max() > 1e-3
    torch.testing.assert_close(answer(found, head), answer(model, head), rtol=0, atol=1e-6)
    theirs = peft_files.answer(peft_files.opened(base, folder, head), IDS, head)
    torch.testing.assert_close(theirs, answer(found, head), rtol=0, atol=1e-5)


PATTERNS = {"rank_pattern": {"0.attention.self.query": 2}, "alpha_pattern": {"query": 3, "1.output.dense": 9}}
WRITTEN: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "bert": ("bert", "sequence-classification", {"target_modules": ["query", "value"]}),
    "every map": ("bert", "sequence-classification", {"target_modules": "all-linear"}),
    "no head": ("bert", None, {"target_modules": ["query", "dense"]}),
    "patterns": ("bert", "question-answering", {"target_modules": ["query", "dense"], **PATTERNS}),
    "by the root": ("bert", "sequence-classification", {"target_modules": ["key"], "use_rslora": True}),
    "dropout": ("bert", "sequence-classification", {"target_modules": ["key"], "lora_dropout": 0.3}),
    "minor components": ("bert", None, {"target_modules": ["key"], "init_lora_weights": "mica"}),
    "words": ("bert", "sequence-classification", {"target_modules": ["word_embeddings", "key"]}),
    "norms": ("bert", "sequence-classification", {"target_modules": ["key"], "modules_to_save": ["LayerNorm"]}),
    "more labels": ("bert", "sequence-classification", {"target_modules": ["query"], "labels": 5}),
    "gpt2": ("gpt2", "causal-lm", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "gpt2, the flag forgotten": ("gpt2", "causal-lm", {"target_modules": ["c_attn"]}),
    "gpt2, every map": (
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


@pytest.mark.parametrize(("kind", "head", "config"), WRITTEN.values(), ids=WRITTEN)
def test_what_peft_writes_opens_here(kind: str, head: str | None, config: dict[str, Any], tmp_path: Path) -> None:
    base = base_of(tmp_path, kind, head)
    theirs = peft_files.written(base, tmp_path / "adapter", head, **config)
    found = pellucid.load(tmp_path / "adapter")
    torch.testing.assert_close(answer(found, head), peft_files.answer(theirs, IDS, head), rtol=0, atol=1e-5)


def test_a_head_comes_to_a_base_that_has_none(tmp_path: Path) -> None:
    """The format does not name labels; their number follows from the shape of the head's weight."""
    base = base_of(tmp_path, "bert", None)
    config = {"target_modules": ["query"], "labels": 3}
    theirs = peft_files.written(base, tmp_path / "adapter", "sequence-classification", **config)
    found = pellucid.load(tmp_path / "adapter")
    assert found.config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    said = peft_files.answer(theirs, IDS, "sequence-classification")
    torch.testing.assert_close(answer(found, "sequence-classification"), said, rtol=0, atol=1e-5)


def test_our_own_files_name_the_labels(tmp_path: Path) -> None:
    base = base_of(tmp_path, "bert", "sequence-classification", labels=("BAD", "GOOD"))
    folder, _ = adapted(base, tmp_path / "adapter")
    edit_json(
        base / "config.json", lambda facts: facts.update(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1})
    )
    assert pellucid.load(base).config.labels == ("a", "b")
    assert pellucid.load(folder).config.labels == ("BAD", "GOOD")
    assert read_config(folder).labels == ("BAD", "GOOD")


def test_an_adapter_in_bfloat16_takes_half(tmp_path: Path) -> None:
    base = base_of(tmp_path, "bert", "sequence-classification")
    settings = {"lora": 8, "adapter_only": True}
    wide, model = adapted(base, tmp_path / "wide", Settings(**settings))
    half, _ = adapted(base, tmp_path / "half", Settings(**settings, adapter_dtype="bfloat16"))
    tensors = load_file(half / NUMBERS_OF)
    assert {one.dtype for one in tensors.values()} == {torch.bfloat16}
    assert sum(one.nbytes for one in tensors.values()) * 2 == sum(
        one.nbytes for one in load_file(wide / NUMBERS_OF).values()
    )
    head = "sequence-classification"
    torch.testing.assert_close(answer(pellucid.load(half), head), answer(model, head), rtol=0, atol=0.02)


def test_maps_that_the_file_joins_may_be_changed_one_by_one(tmp_path: Path) -> None:
    """GPT-2 stores query, key and value as one matrix; here query and value have an adapter, and key has none."""
    base = base_of(tmp_path, "gpt2", "causal-lm")
    settings = Settings(lora=2, lora_targets=("query", "value"), adapter_only=True)
    folder, model = adapted(base, tmp_path / "adapter", settings)
    key = "layers.1.attention.key.weight"
    assert torch.equal(pellucid.load(folder).module.get_parameter(key), pellucid.load(base).module.get_parameter(key))
    theirs = peft_files.answer(peft_files.opened(base, folder, "causal-lm"), IDS, "causal-lm")
    torch.testing.assert_close(theirs, answer(model, "causal-lm"), rtol=0, atol=1e-5)


# -- the merged model --------------------------------------------------------------------------------------------------


SETTINGS = Settings(lora=2, adapter_only=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base with a tokenizer and no head, and an adapter that classifies sequences."""
    root = tmp_path_factory.mktemp("pair")
    base = golden.write("bert-body", root / "base")
    learns = attach_adapters(open_checkpoint(base, head="sequence-classification"), SETTINGS)
    with torch.no_grad():
        for one in learns.module.parameters():
            if one.requires_grad:
                one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(4)))
    return base, save(learns, SETTINGS, root / "adapter")


def test_it_is_an_ordinary_model(pair: tuple[Path, Path], tmp_path: Path) -> None:
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


def test_other_kinds_of_number(pair: tuple[Path, Path]) -> None:
    _, folder = pair
    ids = torch.tensor([[2, 9, 17, 3]])
    wide = pellucid.load(folder, dtype="float64")(ids)["logits"].detach()
    for dtype, share in (("float32", 1e-5), ("bfloat16", 0.1), ("int8", 0.1)):
        found = pellucid.load(folder, dtype=dtype)(ids)["logits"]
        torch.testing.assert_close(found.detach().double(), wide, rtol=0, atol=share * float(wide.abs().max()))


@pytest.mark.parametrize("dtype", ["float64", torch.float64])
def test_the_sum_is_as_exact_as_the_numbers_that_were_asked_for(
    dtype: str | torch.dtype, pair: tuple[Path, Path]
) -> None:
    base, folder = pair
    name, held = "layers.0.attention.query.weight", load_file(folder / NUMBERS_OF)
    before, after = (pellucid.load(one, dtype=dtype).module.get_parameter(name).detach() for one in (base, folder))
    wanted = before + 2.0 * held[B].double() @ held[A].double()
    torch.testing.assert_close(after, wanted, rtol=0, atol=1e-14)


def test_what_4_bits_leave_of_an_adapter_is_said(pair: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    base, folder = pair
    for quiet in ({"name": folder, "dtype": "int8"}, {"name": base, "dtype": "int4"}):
        pellucid.load(**quiet)
    assert "bits" not in caplog.text
    pellucid.load(folder, dtype="int4")
    assert "round away much of what an adapter adds; 8 bits (int8) keep it" in caplog.text


def test_verify_trusts_it(pair: tuple[Path, Path]) -> None:
    from pellucid.tasks.verify import verify

    checks = list(verify(pair[1], texts=["a text", "another one"]))
    assert all(check.passed for check in checks), checks
    assert any("with the adapter in the tables of" in check.note for check in checks)


def test_a_checkpoint_with_an_adapter_inside_is_its_own_base(tmp_path: Path) -> None:
    """As in the reference: beside a config.json, the name of the base is ignored."""
    base = base_of(tmp_path, "bert", "sequence-classification")
    folder, model = adapted(base, tmp_path / "adapter")
    for path in folder.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    edit_json(base / FILE, lambda facts: facts.update(base_model_name_or_path="no/such"))
    head = "sequence-classification"
    torch.testing.assert_close(answer(pellucid.load(base), head), answer(model, head), rtol=0, atol=1e-7)


def test_one_saved_over_the_other_leaves_nothing_behind(tmp_path: Path) -> None:
    base = base_of(tmp_path, "bert", "sequence-classification")
    folder, model = adapted(base, tmp_path / "adapter")
    model.save(folder, overwrite=True)
    assert not (folder / FILE).exists() and not (folder / NUMBERS_OF).exists()
    head = "sequence-classification"
    assert torch.equal(answer(pellucid.load(folder), head), answer(model, head))
    settings = Settings(lora=2, adapter_only=True)
    save(attach_adapters(open_checkpoint(base), settings), settings, folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == [FILE, NUMBERS_OF]


def test_a_pickle_is_read_as_carefully_as_any(tmp_path: Path) -> None:
    base = base_of(tmp_path, "llama", "causal-lm")
    theirs = peft_files.written(base, tmp_path / "adapter", "causal-lm", target_modules=["q_proj"])
    numbers = load_file(tmp_path / "adapter" / NUMBERS_OF)
    (tmp_path / "adapter" / NUMBERS_OF).unlink()
    save_bin(numbers, tmp_path / "adapter" / WEIGHTS_FILES[1])
    found = answer(pellucid.load(tmp_path / "adapter"), "causal-lm")
    torch.testing.assert_close(found, peft_files.answer(theirs, IDS, "causal-lm"), rtol=0, atol=1e-5)
    save_bin({"base_model.model.x": print}, tmp_path / "adapter" / WEIGHTS_FILES[1])
    with pytest.raises(UnsafeFileError, match="would do more than load tensors"):
        pellucid.load(tmp_path / "adapter")


# -- what does not fit together ----------------------------------------------------------------------------------------

Damage = Callable[[Path], object]
LOW = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"
A, B = f"{LOW}A.weight", f"{LOW}B.weight"


def said(**values: Any) -> Damage:
    return lambda folder: edit_json(folder / FILE, lambda facts: facts.update(values))


def held(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        numbers = load_file(folder / NUMBERS_OF)
        change(numbers)
        save_file(numbers, folder / NUMBERS_OF)

    return damage


MAPS = ["query", "key", "value", "dense", "classifier"]
MISMATCH, CORRUPT = CheckpointMismatchError, CorruptFileError
DAMAGED: dict[str, tuple[Damage, type[PellucidError], str]] = {
    "another kind": (said(peft_type="IA3"), MISMATCH, "peft_type is 'IA3', and adapters of kind LORA alone are read"),
    "no kind": (said(peft_type=None), MISMATCH, "peft_type is None"),
    "magnitudes": (said(use_dora=True), MISMATCH, "use_dora would change the numbers"),
    "biases": (said(bias="all"), MISMATCH, "bias is 'all', and only 'none' is read"),
    "repeated layers": (said(layer_replication=[[0, 2]]), MISMATCH, "layer_replication would change the numbers"),
    "tokens": (said(trainable_token_indices=[1]), MISMATCH, "trainable_token_indices would change"),
    "a base that was changed": (said(init_lora_weights="pissa"), MISMATCH, "which changes the base as well"),
    "no base": (said(base_model_name_or_path=None), MISMATCH, "base_model_name_or_path is None"),
    "a base that is gone": (
        said(base_model_name_or_path="/no/such"),
        NotFoundError,
        "adapter_config.json as base_model_name_or_path",
    ),
    "a strange task": (said(task_type="DREAM"), MISMATCH, "task_type is 'DREAM', expected one of SEQ_CLS"),
    "a task that is a list": (said(task_type=["SEQ_CLS"]), MISMATCH, "task_type is ['SEQ_CLS']"),
    "no rank": (said(r=0), MISMATCH, "r is 0, expected a whole number"),
    "another rank": (said(r=7), MISMATCH, "has rank 3, and adapter_config.json says 7"),
    "a page": (said(use_rslora="y" * 3_000), MISMATCH, "use_rslora is 'yyy"),
    "endless": (said(lora_alpha=1e400), MISMATCH, "lora_alpha is inf"),
    "an expression": (said(alpha_pattern={"(a+)+$": 2}), MISMATCH, "expressions are not supported here"),
    "patterns of words": (said(rank_pattern={"query": "3"}), MISMATCH, "the rank of query is '3'"),
    "patterns in a list": (said(rank_pattern=[3]), MISMATCH, "rank_pattern is [3]"),
    "other maps are meant": (said(target_modules=[*MAPS[1:], "uery"]), MISMATCH, "query, which target_modules in"),
    "no map is meant": (said(target_modules=[]), MISMATCH, "which target_modules in adapter_config.json leaves out"),
    "a map is left out": (said(exclude_modules=["self.query"]), MISMATCH, "query, which exclude_modules in"),
    "another layer is meant": (
        said(target_modules=MAPS, layers_to_transform=[1, 2]),
        MISMATCH,
        "which layers_to_transform in adapter_config.json leaves out",
    ),
    "targets by number": (said(target_modules=[3]), MISMATCH, "target_modules is [3], expected a list of names"),
    "layers by name": (said(layers_to_transform=["0"]), MISMATCH, "layers_to_transform is ['0'], expected the numbers"),
    "modules as a word": (said(modules_to_save="classifier"), MISMATCH, "modules_to_save is 'classifier'"),
    "half a pair": (held(lambda numbers: numbers.pop(B)), MISMATCH, "has lora_A alone"),
    "another prefix": (held(lambda n: n.update(x=n.pop(A))), MISMATCH, "does not begin with 'base_model.model.'"),
    "a magnitude": (held(lambda n: n.update({f"{LOW}magnitude_vector": n[A][0].clone()})), MISMATCH, "not read"),
    "whole numbers": (held(lambda n: n.update({A: n[A].int()})), MISMATCH, "holds int32, expected real numbers"),
    "a strange module": (
        held(lambda n: n.update({A.replace("query", "quory"): n.pop(A), B.replace("query", "quory"): n.pop(B)})),
        MISMATCH,
        "quory is not a module of a BertForSequenceClassification (did you mean",
    ),
    "a strange tensor": (
        held(lambda n: n.update({"base_model.model.extra.weight": n[A].clone()})),
        MISMATCH,
        "extra.weight is not a tensor of a BertForSequenceClassification",
    ),
    "another width": (held(lambda n: n.update({A: n[A][:, :5].clone()})), MISMATCH, "was made for another base"),
    "another height": (held(lambda n: n.update({B: n[B][:5].clone()})), MISMATCH, "was made for another base"),
    "not a number": (held(lambda n: n[A].fill_(float("nan"))), CORRUPT, "NaN or infinite numbers"),
    "too large": (held(lambda n: (n[A].fill_(3e38), n[B].fill_(3e38))), CORRUPT, "NaN or infinite numbers"),
    "a note that is none": (
        with_header(lambda header: header["__metadata__"].update(config="{"), NUMBERS_OF),
        CORRUPT,
        "a damaged note in its header",
    ),
    "a note that is a list": (
        with_header(lambda header: header["__metadata__"].update(config="[1]"), NUMBERS_OF),
        CORRUPT,
        "a note that is a list",
    ),
    "cut short": (lambda f: (f / NUMBERS_OF).write_bytes((f / NUMBERS_OF).read_bytes()[:-9]), CORRUPT, "is cut short"),
    "no numbers": (
        lambda folder: (folder / NUMBERS_OF).unlink(),
        NotFoundError,
        "and no weights: expected adapter_model",
    ),
    "not JSON": (lambda folder: (folder / FILE).write_text("{"), CORRUPT, "is not JSON"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("whole")
    base = base_of(root, "bert", "sequence-classification")
    return base, adapted(base, root / "adapter")[0]


@pytest.mark.parametrize(("damage", "error", "says"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_wrong_is_said_in_a_sentence(
    damage: Damage, error: type[PellucidError], says: str, whole: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in whole[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    damage(folder)
    with pytest.raises(PellucidError) as caught:
        pellucid.load(folder)
    assert type(caught.value) is error, caught.value
    assert says in str(caught.value)
    one_sentence(str(caught.value).replace(str(whole[0]), ""), folder)


@pytest.mark.parametrize("linked", [NUMBERS_OF, FILE])
def test_a_link_elsewhere_is_not_followed(linked: str, whole: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in (NUMBERS_OF, FILE):
        (folder / name).write_bytes((whole[1] / name).read_bytes())
    (folder / linked).unlink()
    (folder / linked).symlink_to(whole[1] / linked)
    with pytest.raises(UnsafeFileError, match="outside the checkpoint"):
        pellucid.load(folder)


@pytest.mark.parametrize("facts", [{"hidden_size": 32}, {"num_hidden_layers": 1}, {"num_attention_heads": 2}])
def test_a_base_of_another_shape(facts: dict[str, Any], whole: tuple[Path, Path], tmp_path: Path) -> None:
    """Two heads instead of four change every answer but no shape; our own files record the facts of the base."""
    other = base_of(tmp_path, "bert", "sequence-classification", **facts)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in whole[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    said(base_model_name_or_path=str(other))(folder)
    with pytest.raises(CheckpointMismatchError, match=f"made for another base than {other}: its {next(iter(facts))}"):
        pellucid.load(folder)
    numbers = load_file(folder / NUMBERS_OF)
    save_file(numbers, folder / NUMBERS_OF)  # as PEFT writes them, without our metadata
    if "num_attention_heads" not in facts:
        with pytest.raises(CheckpointMismatchError):
            pellucid.load(folder)


def test_an_adapter_is_no_base(whole: tuple[Path, Path], tmp_path: Path) -> None:
    loaded = open_checkpoint(whole[1])
    with pytest.raises(InputError, match="is an adapter itself"):
        attach_adapters(loaded, Settings(lora=2, adapter_only=True))
    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in whole[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    said(base_model_name_or_path=str(folder))(folder)
    with pytest.raises(CheckpointMismatchError, match="which is an adapter itself"):
        pellucid.load(folder)


def test_a_table_that_serves_twice(tmp_path: Path) -> None:
    """PEFT adapts one of the two uses of the matrix, which a single tied matrix cannot express."""
    base = base_of(tmp_path, "gpt2", "causal-lm")
    peft_files.written(base, tmp_path / "adapter", "causal-lm", target_modules=["wte", "c_proj"])
    with pytest.raises(CheckpointMismatchError, match="whose table is shared"):
        pellucid.load(tmp_path / "adapter")
    loaded = open_checkpoint(base)
    with pytest.raises(InputError, match="and the adapter format cannot express that"):
        save_adapter(loaded, {}, ["embeddings.token.weight"], tmp_path / "other")


def test_a_model_that_was_built_is_no_base(tiny: pellucid.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="save it and load it first"):
        save_adapter(tiny.loaded, {}, [], tmp_path / "adapter")


# -- locating it -------------------------------------------------------------------------------------------------------


def test_the_base_is_found_by_the_name_of_a_package(tmp_path: Path) -> None:
    folder, _ = adapted(
        Path(MINILM), tmp_path / "adapter", Settings(lora=1, lora_targets=("query",), adapter_only=True)
    )
    assert json.loads((folder / FILE).read_text())["base_model_name_or_path"] == MINILM
    source = pellucid.load(folder).loaded.source
    assert source is not None and source.base is not None
    assert (source.kind, source.base.kind) == ("folder", "package")


def test_the_base_may_be_a_gguf_file(tmp_path: Path) -> None:
    from tests.checkpoints.gguf_files import tiny_llama

    base = base_of(tmp_path, "llama", "causal-lm", head_dim=6)
    file = tiny_llama(tmp_path / "base.gguf", load_file(base / "model.safetensors"))
    folder, model = adapted(base, tmp_path / "adapter")
    said(base_model_name_or_path=str(file))(folder)
    found = pellucid.load(folder)
    torch.testing.assert_close(answer(found, "causal-lm"), answer(model, "causal-lm"), rtol=0, atol=1e-5)


def test_an_index_knows_which_adapter_made_its_vectors(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from pellucid.search.encoder import encoder_of

    folder = tmp_path / "adapter"
    folder.mkdir()
    for path in pair[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    said(lora_alpha=5)(folder)
    digests = [encoder_of(open_checkpoint(one, head=None)).digest for one in (*pair, folder, pair[1])]
    assert len(set(digests)) == 3
    assert digests[1] == digests[3]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [NUMBERS_OF, "adapter_model.bin"])
def test_both_come_from_the_hub(numbers: str, hub: Hub, home: Path, whole: tuple[Path, Path], tmp_path: Path) -> None:
    """The adapter names its base by its name on the hub; once both are cached, no request is sent."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for path in whole[1].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    said(base_model_name_or_path="o/base")(folder)
    (folder / "training_args.bin").touch()
    if numbers != NUMBERS_OF:
        save_bin(load_file(folder / NUMBERS_OF), folder / numbers)
        (folder / NUMBERS_OF).unlink()
    hub.add("o/base", whole[0])
    hub.add(NAME, folder)
    done = ask(hub.url, tmp_path / "pulled", "pull", NAME)
    assert done.returncode == 0, done.stderr
    assert {one.name for one in (tmp_path / "pulled" / "hub").glob("models--*")} == {
        "models--o--tiny",
        "models--o--base",
    }
    snapshot = found(hub, home, program=LOAD)
    assert {path.name for path in snapshot.iterdir()} == {FILE, numbers}
    assert snapshot.parent.parent.name == "models--o--tiny"
    assert (home / "hub" / "models--o--base").is_dir()
    hub.asked.clear()
    assert found(hub, home, program=LOAD) == snapshot
    assert found(hub, home, program=LOAD, HF_HUB_OFFLINE="1") == snapshot
    assert hub.asked == []
