"""Operations that optimisers fuse are taken apart: attention, sums with norms, biases with activations, embeddings."""

import logging
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from tests.checkpoints.convert.onnx_exports import export, tiny_bert


@pytest.mark.parametrize("head", ["tokens", "words", "sequence"])
def test_fused_operations_are_converted(tmp_path: Path, head: str) -> None:
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    model = tiny_bert(head, attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    options = FusionOptions("bert")
    fused = optimize_model(
        str(folder / "model.onnx"), "bert", num_heads=4, hidden_size=32, opt_level=0, optimization_options=options
    )
    fused.save_model_to_file(str(folder / "model.onnx"))
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"Attention", "SkipLayerNormalization", "BiasGelu", "EmbedLayerNormalization"} <= kinds, kinds
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name
