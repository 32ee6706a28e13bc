"""Tiny random BERTs, exported by both of PyTorch's ONNX exporters."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
)

HEADS: dict[str, type[PreTrainedModel]] = {
    "base": BertModel,
    "words": BertForMaskedLM,
    "sequence": BertForSequenceClassification,
    "tokens": BertForTokenClassification,
    "answers": BertForQuestionAnswering,
}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(26))]


class NamedInputs(torch.nn.Module):
    """Passes its inputs by name, as tracing a bare BertModel requires; its parameter names begin with `inner.`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.inner = model

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.inner(**dict(zip(INPUTS, inputs)), return_dict=False)


def tiny_bert(head: str, **changes: Any) -> PreTrainedModel:
    """A BERT of two layers with random weights, biases and norms included, so that no two parameters are equal."""
    facts = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    facts |= {"intermediate_size": 40, "max_position_embeddings": 37, "num_labels": 3}
    torch.manual_seed(5)
    model = HEADS[head](BertConfig(**facts | ({"num_labels": 2} if head == "answers" else {}) | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def fused(folder: Path, *, multi_head: bool = False) -> Any:
    """A folder's model with ONNX Runtime's fused operations, as its `OnnxModel`.

    multi_head: MultiHeadAttention instead of Attention, which contains the products of its input.
    """
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model

    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    options = FusionOptions("bert")
    options.use_multi_head_attention = multi_head
    path = str(folder / "model.onnx")
    return optimize_model(path, "bert", num_heads=4, hidden_size=32, opt_level=0, optimization_options=options)


def example_inputs(rows: int = 2, length: int = 7) -> tuple[torch.Tensor, ...]:
    """Input ids, attention mask and token types, `[rows, length]` each; every row but the first is padded."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1:, -2:] = 0
    return torch.randint(5, 60, (rows, length), generator=generator), mask, torch.arange(length).expand(rows, -1) // 4


def export_traced(
    module: torch.nn.Module, path: Path, opset: int = 14, *, dynamic: bool = True, names: Sequence[str] = INPUTS
) -> None:
    """Exports a module of these inputs, in their order, with the older exporter, which traces it.

    dynamic: whether the batch and sequence axes are dynamic.
    """
    axes = {name: {0: "batch", 1: "seq"} for name in names} if dynamic else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(value for name, value in zip(INPUTS, example_inputs()) if name in names),
            path,
            input_names=list(names),
            dynamic_axes=axes,
            dynamo=False,
            opset_version=opset,
        )


def export(
    model: PreTrainedModel, folder: Path, exporter: str, opset: int | None = None, name: str = "model.onnx"
) -> Path:
    """A folder with config.json, vocab.txt and the model as ONNX."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    model.config.save_pretrained(folder)
    model.config.return_dict = False
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        if exporter == "traced":
            export_traced(NamedInputs(model), path, opset or 14)
        else:
            batch, seq = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("seq", min=2, max=30)
            shapes = {name: {0: batch, 1: seq} for name in INPUTS}
            torch.onnx.export(
                model,
                example_inputs(),
                path,
                input_names=list(INPUTS),
                dynamo=True,
                dynamic_shapes=shapes,
                external_data=False,
                opset_version=opset,
                verbose=False,
            )
    return folder


def runtime_logits(path: Path) -> Any:
    """The first output in ONNX Runtime, `[batch, ...]`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()  # optimised, it would also round the inputs of 8-bit products
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {name: value.numpy() for name, value in zip(INPUTS, example_inputs())})[0]
