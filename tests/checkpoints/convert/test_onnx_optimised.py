"""Operations that optimisers fuse are taken apart: attention, sums with norms, biases with activations, embeddings."""

from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from tests.checkpoints.convert.onnx_exports import export, fused, tiny_bert


@pytest.mark.parametrize("head", ["tokens", "words", "sequence"])
def test_fused_operations_are_converted(tmp_path: Path, head: str) -> None:
    model = tiny_bert(head, attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    fused(folder).save_model_to_file(str(folder / "model.onnx"))
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"Attention", "SkipLayerNormalization", "BiasGelu", "EmbedLayerNormalization"} <= kinds, kinds
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name
