"""Converts the checkpoint to the formats of the other libraries, each once and in a separate process.

    python bench/convert.py FORMAT MODEL FOLDER

FORMAT is onnx, fused, int8 or ctranslate2; for a GGUF file as MODEL it is checkpoint, ctranslate2-decoder or
ctranslate2-decoder-int8.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


class ConversionError(Exception):
    """A conversion failed; the message is the last line of the converter's output."""


def bert_with_pooling(model: Path):
    """The encoder, mean pooling and normalisation as one module of ids and mask."""
    import torch
    from transformers import BertModel

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # ONNX Runtime and OpenVINO fuse the pattern of eager attention.
            options = {"attn_implementation": "eager", "add_pooling_layer": False}
            self.bert = BertModel.from_pretrained(model, **options).eval()

        def forward(self, input_ids, attention_mask):
            states = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(states.dtype)
            return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)

    return Pooled()


def example() -> dict:
    """Ids and mask for tracing; one row has padding, so that the mask is not folded into a constant."""
    import torch

    ids = torch.randint(1000, 20000, (3, 17), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def to_onnx(model: Path, file: Path) -> None:
    """One graph with pooling and dynamic batch and length, by the tracing exporter, whose graph fuses best."""
    import torch

    names = list(example())
    axes = {name: {0: "batch", 1: "tokens"} for name in names} | {"vectors": {0: "batch"}}
    options = {"input_names": names, "output_names": ["vectors"], "dynamic_axes": axes, "opset_version": 17}
    inputs = tuple(example().values())
    with torch.no_grad():
        torch.onnx.export(bert_with_pooling(model), inputs, str(file), dynamo=False, **options)


def to_fused(model: Path, file: Path) -> None:
    """The graph with ONNX Runtime's own BERT operators (Attention, SkipLayerNormalization, BiasGelu)."""
    from onnxruntime.transformers import optimizer

    source = str(converted("onnx", model, file.parent))
    graph = optimizer.optimize_model(source, model_type="bert", num_heads=12, hidden_size=384, opt_level=0)
    if not graph.get_fused_operator_statistics().get("Attention"):
        raise ConversionError("the optimizer fused no attention")
    graph.save_model_to_file(str(file))


def to_int8(model: Path, file: Path) -> None:
    """Dynamic 8-bit quantization with one scale per output channel and signed weights (which have the fast kernels)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source = converted("onnx", model, file.parent)
    options = {"MatMulConstBOnly": True}
    quantize_dynamic(source, file, per_channel=True, weight_type=QuantType.QInt8, extra_options=options)


def to_ctranslate2(model: Path, folder: Path, quantization: str | None = None) -> None:
    """A CTranslate2 folder in float32; the compute type is chosen when it is loaded."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(model)).convert(str(folder), quantization=quantization, force=True)


def to_checkpoint(file: Path, folder: Path) -> None:
    """The weights of a GGUF file in float32, in a folder that transformers and compatible libraries load."""
    import pellucid

    pellucid.load(file).save(folder)


def to_ctranslate2_decoder(file: Path, folder: Path, quantization: str | None = None) -> None:
    """A GGUF file converted to CTranslate2, in float32."""
    to_ctranslate2(converted("checkpoint", file, folder.parent), folder, quantization)


def to_ctranslate2_decoder_int8(file: Path, folder: Path) -> None:
    """A GGUF file converted to CTranslate2 in 8 bits, which never takes the memory of the float32 weights."""
    to_ctranslate2_decoder(file, folder, "int8")


FORMATS: dict[str, tuple[str, Callable[[Path, Path], None]]] = {
    "onnx": ("model.onnx", to_onnx),
    "fused": ("fused.onnx", to_fused),
    "int8": ("int8.onnx", to_int8),
    "ctranslate2": ("ctranslate2", to_ctranslate2),
    "checkpoint": ("checkpoint", to_checkpoint),
    "ctranslate2-decoder": ("ctranslate2-decoder", to_ctranslate2_decoder),
    "ctranslate2-decoder-int8": ("ctranslate2-decoder-int8", to_ctranslate2_decoder_int8),
}


def converted(name: str, model: Path, folder: Path) -> Path:
    """The path of the checkpoint in a format under ``folder``; a child process converts it if it is missing."""
    target = folder / FORMATS[name][0]
    if target.exists():
        return target
    command = [sys.executable, __file__, name, str(model), str(folder)]
    one_thread = {"OMP_NUM_THREADS": "1", "PELLUCID_THREADS": "1"}  # more would wait for each other
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | one_thread)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ConversionError(f"{name}: {lines[-1][:300]}")
    return target


def main() -> None:
    logging.disable(logging.WARNING)
    model, folder = Path(sys.argv[2]), Path(sys.argv[3])
    file, convert = FORMATS[sys.argv[1]]
    part = folder / f"part-{file}"
    convert(model, part)
    part.rename(folder / file)


if __name__ == "__main__":
    main()
