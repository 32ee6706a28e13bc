"""ONNX and back: the parameters that were exported are recovered, bit for bit, under the reference's names."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from tests.checkpoints.convert.onnx_exports import HEADS, example_inputs, export, tiny_bert
from tests.quick import few

CASES = [(head, exporter) for exporter in ("traced", "captured") for head in HEADS]


@pytest.mark.parametrize(("head", "exporter"), few(CASES, [("base", "traced")]))
def test_every_head_is_recovered_bit_for_bit(tmp_path: Path, head: str, exporter: str) -> None:
    model = tiny_bert(head)
    result = convert(export(model, tmp_path / "foreign", exporter), tmp_path / "ours")
    found = load_file(result.folder / "model.safetensors")
    expected = dict(model.named_parameters())  # a tied parameter is listed once
    if head == "answers":
        expected = {name: value for name, value in expected.items() if "pooler" not in name}
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def test_reference_gives_the_same_logits_from_the_converted_folder(tmp_path: Path) -> None:
    model = tiny_bert("words")
    result = convert(export(model, tmp_path / "foreign", "traced"), tmp_path / "ours")
    opened, report = HEADS["words"].from_pretrained(result.folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    model.config.return_dict = True
    with torch.no_grad():
        assert torch.equal(opened(*example_inputs()).logits, model(*example_inputs()).logits)
    assert (result.folder / "vocab.txt").read_bytes() == (tmp_path / "foreign" / "vocab.txt").read_bytes()


def test_older_and_newer_opsets_give_the_same_parameters(tmp_path: Path) -> None:
    model = tiny_bert("sequence")
    for opset in (14, 17, 20):  # norms and GELU decomposed, norms as one operation, both as one operation
        result = convert(export(model, tmp_path / f"foreign{opset}", "traced", opset), tmp_path / f"ours{opset}")
        found = load_file(result.folder / "model.safetensors")
        assert all(torch.equal(found[name], value) for name, value in model.named_parameters())


@pytest.mark.slow
def test_tensors_deduplicated_by_the_exporter_are_restored(tmp_path: Path) -> None:
    model = tiny_bert("base")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    result = convert(export(model, tmp_path / "foreign", "captured"), tmp_path / "ours")
    found = load_file(result.folder / "model.safetensors")
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())


def test_half_precision_stays_half(tmp_path: Path) -> None:
    model = tiny_bert("tokens").half()
    result = convert(export(model, tmp_path / "foreign", "traced"), tmp_path / "ours")
    found = load_file(result.folder / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())
    assert json.loads((result.folder / "config.json").read_text())["dtype"] == "float16"


def test_config_follows_the_graph(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced")
    raw = json.loads((folder / "config.json").read_text())
    labels = {key: raw.pop(key, None) for key in ("id2label", "label2id")}
    raw |= {"architectures": ["BertForMaskedLM"], "auto_map": {"AutoModel": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(raw))
    config = json.loads((convert(folder, tmp_path / "ours").folder / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert "auto_map" not in config and len(config["id2label"]) == 3 and labels
    assert "BertForMaskedLM" in caplog.text
