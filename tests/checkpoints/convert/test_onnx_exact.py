"""The smallest additions are noticed, inputs are identified by what they do, and sizes too large to try are refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file

from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.convert.onnx_exports import NamedInputs, export, export_traced, tiny_bert
from tests.checkpoints.convert.test_onnx_rare_differences import CustomMask, OrderedInputs, find, insert


@pytest.mark.parametrize("kind", ["LayerNormalization", "Gemm"])
def test_computed_bias_is_refused(tmp_path: Path, kind: str) -> None:
    """It was once treated as no bias."""
    folder = export(tiny_bert("sequence"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    node = find(model, kind)
    width = 32
    model.graph.initializer.append(numpy_helper.from_array(np.array([width], "int64"), "width"))
    value = helper.make_tensor("value", 1, [1], [0.7])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["width"], ["computed"], value=value))
    node.input[2] = "computed"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=r"adds something other than a vector of the file \(computed\)"):
        convert(folder, tmp_path / "ours")


def test_tiny_addition_is_refused(tmp_path: Path) -> None:
    """Embeddings of real models are about 0.02."""
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.0005, "float32"), "little"))
    insert(model, find(model, "LayerNormalization"), 0, ("Add", ["x", "little"], {}))
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match=r"embeddings\.LayerNorm reads the result of Add new0"):
        convert(folder, tmp_path / "ours")


def test_mask_by_the_last_token_id_is_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens", vocab_size=3000, attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(
        CustomMask(model, lambda ids, positions: (ids != 2999).long()[:, None, None]), folder / "model.onnx", 17
    )
    with pytest.raises(CheckpointMismatchError, match="not those of all tokens but padding"):
        convert(folder, tmp_path / "ours")


class PaddingById(torch.nn.Module):
    """A BERT without a mask as input, which recognises padding by its id."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(ids[:, :37], attention_mask=(ids != 0).long(), return_dict=False)[0]


def test_padding_recognised_by_its_id_is_converted(tmp_path: Path) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(PaddingById(model), folder / "model.onnx", 17, names=["input_ids"])
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())


def test_swapped_mask_and_token_types_are_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens", attn_implementation="eager")
    folder = export(model, tmp_path / "foreign", "traced", 17)
    names = ["input_ids", "token_type_ids", "attention_mask"]  # the second and third are swapped
    export_traced(OrderedInputs(model, names), folder / "model.onnx", 17)
    with pytest.raises(CheckpointMismatchError, match="its input attention_mask says which rows of a table are"):
        convert(folder, tmp_path / "ours")


@pytest.mark.parametrize("texts", [8, 32])
def test_fixed_large_batch_is_converted(tmp_path: Path, texts: int) -> None:
    """It is tried with shorter texts."""
    model = tiny_bert("tokens", max_position_embeddings=512, num_attention_heads=16)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    fixed = onnx.load(folder / "model.onnx")
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = texts
    onnx.save(fixed, folder / "model.onnx")
    found = load_file(convert(folder, tmp_path / "ours").folder / "model.safetensors")
    assert torch.equal(found["classifier.weight"], model.classifier.weight)


@pytest.mark.parametrize("head", ["tokens", "answers"])
def test_graph_with_attention_weights_as_outputs_is_converted(tmp_path: Path, head: str) -> None:
    model = tiny_bert(head, attn_implementation="eager", output_attentions=True)
    result = convert(export(model, tmp_path / "foreign", "traced", 17), tmp_path / "ours")
    name = {"tokens": "classifier.weight", "answers": "qa_outputs.weight"}[head]
    assert torch.equal(load_file(result.folder / "model.safetensors")[name], model.get_parameter(name))


def test_fixed_sizes_too_large_to_run_are_refused(tmp_path: Path) -> None:
    model = tiny_bert("tokens", max_position_embeddings=3000, num_attention_heads=4)
    folder = export(model, tmp_path / "foreign", "traced", 17)
    export_traced(NamedInputs(model), folder / "model.onnx", 17)
    large = onnx.load(folder / "model.onnx")
    for value in large.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, (1, 3000)):
            axis.dim_value = size
    onnx.save(large, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError, match="takes 1 texts of 3000 tokens and no others, which are too many"):
        convert(folder, tmp_path / "ours")


def test_missing_operation_input_is_refused(tmp_path: Path) -> None:
    folder = export(tiny_bert("tokens"), tmp_path / "foreign", "traced", 17)
    model = onnx.load(folder / "model.onnx")
    find(model, "Cast").input[0] = ""
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(CheckpointMismatchError):
        convert(folder, tmp_path / "ours")
