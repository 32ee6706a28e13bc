"""Verifying: sound checkpoints pass, and each fault is found by the check meant for it, at the right place."""

import importlib.metadata
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pellucid
from pellucid.blocks import Attention, Cache, Pass
from pellucid.blocks.packed import PackedLinear
from pellucid.models import stack
from pellucid.tasks import consistency, parity, reference
from pellucid.tasks.tolerance import Check, compare_points, relative_difference
from pellucid.tasks.verify import ACCOUNTED, verify
from tests.conftest import MINILM, tiny_config
from tests.parity.reference import tiny

FAMILIES = {
    "BertForSequenceClassification": {},
    "MPNetForMaskedLM": {},
    "GPT2LMHeadModel": {},
    "LlamaForCausalLM": {},
    "BartForConditionalGeneration": {},
    "T5ForConditionalGeneration": {},
}
WRITES = ("GPT2", "Llama", "Bart", "T5")


def checkpoint(folder: Path, architecture: str = "BertModel", **facts: Any) -> Path:
    tiny(folder, architecture, dtype=torch.float32, attention="eager", **facts)
    return folder


def asked(folder: Path | str, **settings: Any) -> dict[str, Check]:
    checks = list(verify(folder, **settings))
    found = {"whole" if check.name.startswith("transformers 5") else check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def test_texts_that_nobody_can_read_are_refused(tmp_path: Path) -> None:
    checks = verify(checkpoint(tmp_path), texts=["a text"])
    with pytest.raises(pellucid.InputError, match="came without a tokenizer"):
        next(checks)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_sound_holds(architecture: str, dtype: str, tmp_path: Path) -> None:
    checks = asked(checkpoint(tmp_path, architecture, **FAMILIES[architecture]), dtype=dtype)
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert {"fused = explicit attention", "padded = alone", "packed = plain", "saved = loaded"} < set(checks)
    assert {"transformers: hidden states", "transformers: attention weights", "transformers: logits"} < set(checks)
    assert ("cached = one full pass" in checks) == architecture.startswith(WRITES)
    assert ("transformers: same tokens" in checks) == architecture.startswith(WRITES)
    most = 1e-12 if dtype == "float64" else 5e-6
    assert max(check.difference or 0.0 for check in checks.values()) < most


@pytest.mark.parametrize("architecture", ["BartForSequenceClassification", "T5ForSequenceClassification"])
def test_a_head_that_looks_for_the_end_of_a_text_is_no_fault(architecture: str, tmp_path: Path) -> None:
    checks = asked(checkpoint(tmp_path, architecture))
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert checks["cached = one full pass"].difference is not None


def test_halves_hold_by_their_own_tolerance(tmp_path: Path) -> None:
    checks = asked(checkpoint(tmp_path, "LlamaForCausalLM"), dtype="bfloat16")
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert checks["whole"].tolerance == 1e-1


def test_a_real_one_holds_and_says_what_was_left_out() -> None:
    checks = asked(MINILM, texts=["Apple Inc.", "a rather longer text about companies"])
    assert all(check.passed for check in checks.values())
    assert checks[ACCOUNTED].note.startswith("103 placed, 0 tied, 1 dropped (embeddings.position_ids: ")
    assert len(checks["whole"].points) == 7 + 6 + 1
    assert checks["whole"].difference < 1e-6


# -- faults against the reference --------------------------------------------------------------------------------------


def tampered(folder: Path, architecture: str, table: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose tensor `table` differs from the one that the reference loads."""
    checkpoint(folder / "theirs", architecture)
    shutil.copytree(folder / "theirs", folder / "ours")
    tables = load_file(folder / "ours" / "model.safetensors")
    tables[table] = tables[table] + 0.01 * torch.randn_like(tables[table])
    save_file(tables, folder / "ours" / "model.safetensors", metadata={"format": "pt"})
    honest = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: honest(loaded, folder / "theirs"))
    return folder / "ours"


TAMPERED = {
    "encoder.layer.1.attention.self.query.weight": ("BertModel", "layers.1.attention.weights"),
    "encoder.layer.1.attention.self.value.weight": ("BertModel", "layers.1.residual.post"),
    "embeddings.LayerNorm.bias": ("BertModel", "embeddings.output"),
    "pooler.dense.bias": ("BertModel", "pooled"),
    "model.layers.2.mlp.down_proj.weight": ("LlamaForCausalLM", "norm.output"),
    "transformer.h.1.attn.c_attn.weight": ("GPT2LMHeadModel", "layers.1.attention.weights"),
    "decoder.block.1.layer.1.EncDecAttention.q.weight": ("T5Model", "decoder.layers.1.cross_attention.weights"),
    "encoder.layers.2.fc1.weight": ("BartModel", "encoder.layers.2.residual.post"),
}


@pytest.mark.parametrize("table", TAMPERED)
def test_the_first_place_that_differs_is_named(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, where = TAMPERED[table]
    checks = asked(tampered(tmp_path, architecture, table, monkeypatch))
    assert (checks["whole"].passed, checks["whole"].where) == (False, where)
    assert checks["whole"].difference > 1e-4
    before = [apart for place, apart in checks["whole"].points[: [p for p, _ in checks["whole"].points].index(where)]]
    assert all(apart < 1e-5 for apart in before)
    inside = [check for name, check in checks.items() if "=" in name]
    assert all(check.passed for check in inside)  # it is consistent with itself


def test_float64_shows_what_float32_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "theirs")
    shutil.copytree(folder, tmp_path / "ours")
    facts = json.loads((folder / "config.json").read_text()) | {"layer_norm_eps": 1e-7}
    (tmp_path / "ours" / "config.json").write_text(json.dumps(facts))
    honest = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: honest(loaded, folder))
    assert asked(tmp_path / "ours")["whole"].passed
    wide = asked(tmp_path / "ours", dtype="float64")["whole"]
    assert (wide.passed, wide.where) == (False, "embeddings.output")


def test_other_words_are_found_and_ties_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path, "GPT2LMHeadModel")
    honest = parity._our_tokens

    def other(*given: Any) -> list[int]:
        tokens = honest(*given)
        return [*tokens[:2], (tokens[2] + 1) % 99, *tokens[3:]]

    monkeypatch.setattr(parity, "_our_tokens", other)
    check = asked(folder)["transformers: same tokens"]
    assert (check.passed, check.where) == (False, "token 3")
    logits = [torch.tensor([3.0, 3.0 - 1e-6, 1.0], dtype=torch.float64)]
    monkeypatch.setattr(parity, "_our_tokens", lambda *_: [1])
    monkeypatch.setattr(parity, "_reference_tokens", lambda *_: ([0], logits))
    assert asked(folder)["transformers: same tokens"].passed


# -- faults inside -----------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def unscaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attention, "_scores", lambda self, query, key, mask, bias: query @ key.transpose(-2, -1))


def late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "next_positions", lambda self: self.positions.amax(dim=1, keepdim=True))


def blind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stack, "padding_mask", lambda mask: None)


def bent(patch: pytest.MonkeyPatch) -> None:
    honest = PackedLinear.__call__
    patch.setattr(PackedLinear, "__call__", lambda self, x: honest(self, x) * 1.01)


def rounded(patch: pytest.MonkeyPatch) -> None:
    honest = consistency.save_checkpoint

    def save(loaded: Any, folder: Path) -> Path:
        honest(loaded, folder)
        tables = load_file(folder / "model.safetensors")
        last = sorted(tables)[-1]
        save_file(tables | {last: tables[last].nextafter(torch.tensor(9.0))}, folder / "model.safetensors")
        return folder

    patch.setattr(consistency, "save_checkpoint", save)


def astray(patch: pytest.MonkeyPatch) -> None:
    """Where only the first position is continued, the last one is used instead."""
    patch.setattr(Pass, "output_positions", lambda run, x, dim=1: x.narrow(dim, -1, 1) if run.first else x)


FAULTS: list[tuple[str, str, Fault]] = [
    ("fused = explicit attention", "BertModel", unscaled),
    ("cached = one full pass", "GPT2LMHeadModel", late),
    ("padded = alone", "BertModel", blind),
    ("packed = plain", "BertModel", bent),
    ("packed = plain", "BertModel", astray),
    ("packed = plain", "BertForSequenceClassification", astray),
    ("saved = loaded", "BertModel", rounded),
]


@pytest.mark.parametrize(("name", "architecture", "fault"), FAULTS)
def test_each_check_finds_its_fault(
    name: str, architecture: str, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path, architecture)
    fault(monkeypatch)
    check = asked(folder)[name]
    assert check.passed is False and check.where and check.difference > check.tolerance


@pytest.mark.parametrize("lost", ["encoder.layer.1.output.dense.bias", "embeddings.LayerNorm.weight"])
def test_a_missing_tensor_is_the_first_answer_and_the_last(lost: str, tmp_path: Path) -> None:
    tables = load_file(checkpoint(tmp_path) / "model.safetensors")
    save_file({name: t for name, t in tables.items() if name != lost}, tmp_path / "model.safetensors")
    (check,) = verify(tmp_path)
    assert (check.name, check.passed) == (ACCOUNTED, False)
    assert lost in check.note


# -- what cannot be checked --------------------------------------------------------------------------------------------


def test_without_the_library_the_rest_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path)

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    checks = list(verify(folder))
    assert [check.passed for check in checks] == [True] * 5 + [None]
    assert "pip install 'transformers>=5'" in checks[-1].note


def test_a_family_that_the_reference_lacks(tmp_path: Path) -> None:
    facts = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = pellucid.Config.of("transformer", **facts, intermediate_size=24, num_decoder_layers=2)
    config = config.replace(decoder_attention_heads=2, decoder_intermediate_size=24)
    checks = asked(pellucid.build(config).save(tmp_path / "own"))
    assert checks.pop("whole").note == "it has no TransformerModel"
    assert all(check.passed for check in checks.values())


def test_numbers_that_the_reference_draws_by_chance_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "theirs", "BertForMaskedLM")
    model = pellucid.build(tiny_config(vocab_size=99)).save(tmp_path / "body")
    honest = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: honest(loaded, model))
    whole = asked(folder)["whole"]
    assert whole.passed is None and "it finds no weights for" in whole.note


def test_texts_without_tokens_are_refused(minilm: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="at least one"):
        list(verify(MINILM, texts=[]))


# -- the measure -------------------------------------------------------------------------------------------------------


def test_one_loud_position_hides_nothing() -> None:
    wanted = torch.tensor([[1e4, 1.0], [1.0, -2.0]])
    found = wanted + torch.tensor([[0.0, 0.0], [0.02, 0.0]])
    assert relative_difference(found, wanted) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    "found", [torch.tensor([[math.nan, 1.0]]), torch.tensor([[math.inf, 1.0]]), torch.ones(1, 3), torch.ones(2, 2)]
)
def test_what_cannot_be_measured_is_infinitely_far(found: Tensor) -> None:
    assert relative_difference(found, torch.ones(1, 2)) == math.inf
    assert compare_points("a", [("place", found, torch.ones(1, 2))], 1.0).where == "place"


def test_small_logits_are_measured_against_one() -> None:
    wanted = torch.tensor([[1e-5]])
    assert compare_points("a", [("logits", wanted + 1e-6, wanted)], 1e-4).passed
    assert not compare_points("a", [("pooled", wanted + 1e-6, wanted)], 1e-4).passed
