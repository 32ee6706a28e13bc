"""A bias that a file holds under two names: the one that the reference uses counts."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pellucid
from pellucid.checkpoints.load import read_plan
from tests.checkpoints.builders import MISMATCH, WEIGHTS

FACTS: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
}
KINDS = {
    "Bert": "cls.predictions.",
    "Roberta": "lm_head.",
    "XLMRoberta": "lm_head.",
    "Camembert": "lm_head.",
    "Albert": "predictions.",
    "MPNet": "lm_head.",
}
IDS = torch.tensor([[5, 9, 17, 2]])

pytestmark = [pytest.mark.parametrize("tied", [True, False]), pytest.mark.parametrize("kind", KINDS)]


def reference(kind: str, tied: bool) -> Any:
    config = getattr(transformers, f"{kind}Config")(**FACTS, tie_word_embeddings=tied)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForMaskedLM")(config).eval()


@torch.no_grad()
def checked_model(kind: str, folder: Path) -> "pellucid.Model":
    """The model of a folder, which the reference also loads, with the same logits and no missing or unexpected key."""
    model_class = getattr(transformers, f"{kind}ForMaskedLM")
    theirs, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    ours = pellucid.load(folder)
    torch.testing.assert_close(ours(IDS)["logits"], theirs.eval()(IDS).logits, rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize("first", ["bias", "decoder.bias"])
def test_bias_used_by_the_reference_wins(
    kind: str, tied: bool, first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, prefix = tmp_path / "theirs", KINDS[kind]
    reference(kind, tied).save_pretrained(folder)
    bias, other = torch.arange(30.0), -torch.arange(30.0) - 1
    biases = {f"{prefix}bias": bias, f"{prefix}decoder.bias": other}
    order = sorted(biases, key=lambda name: name != prefix + first)
    tensors = {name: biases[name] for name in order}
    save_file(load_file(folder / WEIGHTS) | tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING, logger="pellucid"):
        model = checked_model(kind, folder)
    assert torch.equal(model.module.head.decoder.bias, other)
    messages = [record.getMessage() for record in caplog.records if record.name == "pellucid"]
    assert [one.location.tensor_name for one in read_plan(folder).duplicates if one.may_differ] == [f"{prefix}bias"]
    assert messages == [f"{prefix}bias and {prefix}decoder.bias differ: the second is used, as in the reference"]
    for dtype in ("int8", "int4"):
        packed = pellucid.load(folder, dtype=dtype)
        assert torch.equal(packed.module.head.decoder.bias, other)
    caplog.clear()
    checked_model(kind, model.save(tmp_path / "ours"))
    assert not [record for record in caplog.records if record.name == "pellucid"]


def test_one_of_the_two_biases_is_required(kind: str, tied: bool, tmp_path: Path) -> None:
    folder, prefix = tmp_path / "theirs", KINDS[kind]
    reference(kind, tied).save_pretrained(folder)
    names = [f"{prefix}bias", f"{prefix}decoder.bias"]
    tensors = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if name not in names}
    bias = torch.arange(30.0)
    for name in names:
        save_file(tensors | {name: bias}, folder / WEIGHTS, metadata={"format": "pt"})
        assert torch.equal(pellucid.load(folder).module.head.decoder.bias, bias)
        assert not any(one.may_differ for one in read_plan(folder).duplicates)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(MISMATCH, match="1 missing"):
        pellucid.load(folder)


@pytest.mark.parametrize("name", ["bias", "decoder.bias"])
def test_unused_bias_is_still_checked(kind: str, tied: bool, name: str, tmp_path: Path) -> None:
    folder, prefix = tmp_path / "theirs", KINDS[kind]
    reference(kind, tied).save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    both = {f"{prefix}bias": torch.ones(30), f"{prefix}decoder.bias": torch.ones(30)}
    save_file(tensors | both | {prefix + name: torch.ones(29)}, folder / WEIGHTS)
    with pytest.raises(MISMATCH, match=r"bias has shape \[29\], expected \[30\]"):
        pellucid.load(folder)
    save_file(tensors | both | {prefix + name: torch.full((30,), torch.nan)}, folder / WEIGHTS)
    with pytest.raises(pellucid.CorruptFileError, match="NaN"):
        pellucid.load(folder)
