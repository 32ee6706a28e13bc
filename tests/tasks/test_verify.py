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
GENERATING = ("GPT2", "Llama", "Bart", "T5")


def checkpoint(folder: Path, architecture: str = "BertModel", **facts: Any) -> Path:
    tiny(folder, architecture, dtype=torch.float32, attention="eager", **facts)
    return folder


def checks_by_name(folder: Path | str, **settings: Any) -> dict[str, Check]:
    checks = list(verify(folder, **settings))
    found = {"whole" if check.name.startswith("transformers 5") else check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def test_texts_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    checks = verify(checkpoint(tmp_path), texts=["a text"])
    with pytest.raises(pellucid.InputError, match="came without a tokenizer"):
        next(checks)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sound_checkpoints_pass_all_checks(architecture: str, dtype: str, tmp_path: Path) -> None:
    checks = checks_by_name(checkpoint(tmp_path, architecture, **FAMILIES[architecture]), dtype=dtype)
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert {"fused = explicit attention", "padded = alone", "packed = plain", "saved = loaded"} < set(checks)
    assert {"transformers: hidden states", "transformers: attention weights", "transformers: logits"} < set(checks)
    assert ("cached = one full pass" in checks) == architecture.startswith(GENERATING)
    assert ("transformers: same tokens" in checks) == architecture.startswith(GENERATING)
    tolerance = 1e-12 if dtype == "float64" else 5e-6
    assert max(check.difference or 0.0 for check in checks.values()) < tolerance


@pytest.mark.parametrize("architecture", ["BartForSequenceClassification", "T5ForSequenceClassification"])
def test_classification_at_the_end_token_passes(architecture: str, tmp_path: Path) -> None:
    checks = checks_by_name(checkpoint(tmp_path, architecture))
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert checks["cached = one full pass"].difference is not None


def test_bfloat16_passes_with_its_own_tolerance(tmp_path: Path) -> None:
    checks = checks_by_name(checkpoint(tmp_path, "LlamaForCausalLM"), dtype="bfloat16")
    assert all(check.passed for check in checks.values()), [c for c in checks.values() if not c.passed]
    assert checks["whole"].tolerance == 1e-1


def test_real_checkpoint_passes_and_reports_dropped_tensors() -> None:
    checks = checks_by_name(MINILM, texts=["Apple Inc.", "a rather longer text about companies"])
    assert all(check.passed for check in checks.values())
    assert checks[ACCOUNTED].note.startswith("103 placed, 0 tied, 1 dropped (embeddings.position_ids: ")
    assert len(checks["whole"].points) == 7 + 6 + 1
    assert checks["whole"].difference < 1e-6


# -- faults against the reference --------------------------------------------------------------------------------------


def tampered_checkpoint(folder: Path, architecture: str, tensor_name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose tensor `tensor_name` differs from the one that the reference loads."""
    checkpoint(folder / "theirs", architecture)
    shutil.copytree(folder / "theirs", folder / "ours")
    tensors = load_file(folder / "ours" / "model.safetensors")
    tensors[tensor_name] = tensors[tensor_name] + 0.01 * torch.randn_like(tensors[tensor_name])
    save_file(tensors, folder / "ours" / "model.safetensors", metadata={"format": "pt"})
    original = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: original(loaded, folder / "theirs"))
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


@pytest.mark.parametrize("tensor_name", TAMPERED)
def test_first_differing_point_is_reported(tensor_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture, where = TAMPERED[tensor_name]
    checks = checks_by_name(tampered_checkpoint(tmp_path, architecture, tensor_name, monkeypatch))
    assert (checks["whole"].passed, checks["whole"].where) == (False, where)
    assert checks["whole"].difference > 1e-4
    before = [
        difference
        for point, difference in checks["whole"].points[: [name for name, _ in checks["whole"].points].index(where)]
    ]
    assert all(difference < 1e-5 for difference in before)
    consistency_checks = [check for name, check in checks.items() if "=" in name]
    assert all(check.passed for check in consistency_checks)  # it is consistent with itself


def test_float64_finds_differences_below_float32_tolerance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "theirs")
    shutil.copytree(folder, tmp_path / "ours")
    facts = json.loads((folder / "config.json").read_text()) | {"layer_norm_eps": 1e-7}
    (tmp_path / "ours" / "config.json").write_text(json.dumps(facts))
    original = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: original(loaded, folder))
    assert checks_by_name(tmp_path / "ours")["whole"].passed
    in_float64 = checks_by_name(tmp_path / "ours", dtype="float64")["whole"]
    assert (in_float64.passed, in_float64.where) == (False, "embeddings.output")


def test_different_tokens_fail_and_near_ties_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path, "GPT2LMHeadModel")
    original = parity._our_tokens

    def changed_tokens(*args: Any) -> list[int]:
        tokens = original(*args)
        return [*tokens[:2], (tokens[2] + 1) % 99, *tokens[3:]]

    monkeypatch.setattr(parity, "_our_tokens", changed_tokens)
    check = checks_by_name(folder)["transformers: same tokens"]
    assert (check.passed, check.where) == (False, "token 3")
    logits = [torch.tensor([3.0, 3.0 - 1e-6, 1.0], dtype=torch.float64)]
    monkeypatch.setattr(parity, "_our_tokens", lambda *_: [1])
    monkeypatch.setattr(parity, "_reference_tokens", lambda *_: ([0], logits))
    assert checks_by_name(folder)["transformers: same tokens"].passed


# -- faults inside -----------------------------------------------------------------------------------------------------

Fault = Callable[[pytest.MonkeyPatch], None]


def omit_attention_scale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attention, "_scores", lambda self, query, key, mask, bias: query @ key.transpose(-2, -1))


def repeat_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "next_positions", lambda self: self.positions.amax(dim=1, keepdim=True))


def ignore_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stack, "padding_mask", lambda mask: None)


def scale_packed_products(patch: pytest.MonkeyPatch) -> None:
    original = PackedLinear.__call__
    patch.setattr(PackedLinear, "__call__", lambda self, x: original(self, x) * 1.01)


def round_saved_weights(patch: pytest.MonkeyPatch) -> None:
    original = consistency.save_checkpoint

    def save(loaded: Any, folder: Path) -> Path:
        original(loaded, folder)
        tensors = load_file(folder / "model.safetensors")
        last = sorted(tensors)[-1]
        save_file(tensors | {last: tensors[last].nextafter(torch.tensor(9.0))}, folder / "model.safetensors")
        return folder

    patch.setattr(consistency, "save_checkpoint", save)


def use_last_position(patch: pytest.MonkeyPatch) -> None:
    """Where only the first position is continued, the last one is used instead."""
    patch.setattr(Pass, "output_positions", lambda run, x, dim=1: x.narrow(dim, -1, 1) if run.first else x)


FAULTS: list[tuple[str, str, Fault]] = [
    ("fused = explicit attention", "BertModel", omit_attention_scale),
    ("cached = one full pass", "GPT2LMHeadModel", repeat_positions),
    ("padded = alone", "BertModel", ignore_padding),
    ("packed = plain", "BertModel", scale_packed_products),
    ("packed = plain", "BertModel", use_last_position),
    ("packed = plain", "BertForSequenceClassification", use_last_position),
    ("saved = loaded", "BertModel", round_saved_weights),
]


@pytest.mark.parametrize(("name", "architecture", "fault"), FAULTS)
def test_each_check_finds_its_fault(
    name: str, architecture: str, fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path, architecture)
    fault(monkeypatch)
    check = checks_by_name(folder)[name]
    assert check.passed is False and check.where and check.difference > check.tolerance


@pytest.mark.parametrize("missing", ["encoder.layer.1.output.dense.bias", "embeddings.LayerNorm.weight"])
def test_missing_tensor_ends_the_checks(missing: str, tmp_path: Path) -> None:
    tensors = load_file(checkpoint(tmp_path) / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if name != missing}, tmp_path / "model.safetensors")
    (check,) = verify(tmp_path)
    assert (check.name, check.passed) == (ACCOUNTED, False)
    assert missing in check.note


# -- what cannot be checked --------------------------------------------------------------------------------------------


def test_without_transformers_the_other_checks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path)

    def raise_not_found(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", raise_not_found)
    checks = list(verify(folder))
    assert [check.passed for check in checks] == [True] * 5 + [None]
    assert "pip install 'transformers>=5'" in checks[-1].note


def test_family_unknown_to_the_reference_is_noted(tmp_path: Path) -> None:
    facts = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = pellucid.Config.of("transformer", **facts, intermediate_size=24, num_decoder_layers=2)
    config = config.replace(decoder_attention_heads=2, decoder_intermediate_size=24)
    checks = checks_by_name(pellucid.build(config).save(tmp_path / "own"))
    assert checks.pop("whole").note == "it has no TransformerModel"
    assert all(check.passed for check in checks.values())


def test_weights_missing_in_the_reference_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "theirs", "BertForMaskedLM")
    model = pellucid.build(tiny_config(vocab_size=99)).save(tmp_path / "body")
    original = reference._open
    monkeypatch.setattr(reference, "_open", lambda loaded, _: original(loaded, model))
    whole = checks_by_name(folder)["whole"]
    assert whole.passed is None and "it finds no weights for" in whole.note


def test_empty_list_of_texts_is_refused(minilm: "pellucid.Model") -> None:
    with pytest.raises(pellucid.InputError, match="at least one"):
        list(verify(MINILM, texts=[]))


# -- the measure -------------------------------------------------------------------------------------------------------


def test_large_position_does_not_hide_differences_of_others() -> None:
    expected = torch.tensor([[1e4, 1.0], [1.0, -2.0]])
    found = expected + torch.tensor([[0.0, 0.0], [0.02, 0.0]])
    assert relative_difference(found, expected) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    "found", [torch.tensor([[math.nan, 1.0]]), torch.tensor([[math.inf, 1.0]]), torch.ones(1, 3), torch.ones(2, 2)]
)
def test_difference_of_nan_and_unequal_shapes_is_infinite(found: Tensor) -> None:
    assert relative_difference(found, torch.ones(1, 2)) == math.inf
    assert compare_points("a", [("place", found, torch.ones(1, 2))], 1.0).where == "place"


def test_small_logits_are_compared_with_an_absolute_tolerance() -> None:
    expected = torch.tensor([[1e-5]])
    assert compare_points("a", [("logits", expected + 1e-6, expected)], 1e-4).passed
    assert not compare_points("a", [("pooled", expected + 1e-6, expected)], 1e-4).passed
