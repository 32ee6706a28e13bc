"""Makes the golden answers with the reference, in an environment of its own.

    python3 -m venv ../reference
    ../reference/bin/pip install torch==2.13.0 transformers==4.57.6 sentencepiece gguf accelerate
    ../reference/bin/python tests/parity/golden.py [TASK ...]

Each task of `cases.py` becomes `golden/<task>.json`. Each case runs twice, in float32 and in float64: a difference
beyond rounding is a near tie, unsuitable for comparisons, and an error here. `golden_real.py` uses the real
checkpoints.
"""

import copy
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
import transformers

from tests.parity import tiny
from tests.parity.case import Case
from tests.parity.cases import CASES
from tests.parity.comparison import difference
from tests.parity.recipes import RECIPES

VERSION = "4.57.6"
ROUNDING = 4e-6


def reference_answer(task: str, case: Case, folder: Path, dtype: torch.dtype) -> Any:
    """The reference's answer as plain JSON."""
    torch.manual_seed(0)
    pipe = transformers.pipeline(task, model=str(folder), device=-1, **copy.deepcopy(case.options))
    pipe.model.to(dtype)
    extra = {"tokenizer": pipe.tokenizer} if "stop_strings" in case.call else {}
    return as_json(pipe(*copy.deepcopy(case.inputs), **copy.deepcopy(case.call), **extra))


def as_json(value: Any) -> Any:
    """Floats rounded to nine digits, tensors as lists, everything else unchanged."""
    if isinstance(value, torch.Tensor):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return float(f"{value:.9g}") if isinstance(value, float) else value


def golden_row(task: str, case: Case, folder: Path) -> dict[str, Any]:
    """The case and its answer."""
    actual = reference_answer(task, case, folder, torch.float32)
    if message := difference(actual, reference_answer(task, case, folder, torch.float64), ROUNDING):
        raise SystemExit(f"{task}, {case}: a near tie, in float32 and float64: {message}")
    fields = {
        "task": task,
        "model": case.model,
        "options": case.options,
        "inputs": list(case.inputs),
        "call": case.call,
    }
    return fields | {"answer": actual}


def write_shapes(names: Iterable[str]) -> None:
    """Writes the tensors of each checkpoint: those of the reference, each once if several names share it."""
    rows = []
    for name in sorted(names):
        with tempfile.TemporaryDirectory() as folder:
            tiny.write_facts(name, Path(folder))
            config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, RECIPES[name].config["architectures"][0])(config)
        model.tie_weights()
        tensors = {tensor.data_ptr(): (key, list(tensor.shape)) for key, tensor in reversed(model.state_dict().items())}
        rows.append(json.dumps(name) + ": " + json.dumps(dict(reversed(tensors.values()))))
    write(tiny.GOLDEN / "shapes.json", rows, "{}")


def write(path: Path, rows: list[str], ends: str) -> None:
    """Writes one row per line, so that changes show up in diffs row by row."""
    path.write_text(ends[0] + "\n" + ",\n".join(rows) + "\n" + ends[1] + "\n", encoding="utf-8")


def save(name: str, rows: list[dict[str, Any]]) -> None:
    """Writes the golden answers to a file, one case per line."""
    write(tiny.GOLDEN / f"{name}.json", [json.dumps(row, ensure_ascii=False) for row in rows], "[]")


def main(tasks: list[str]) -> None:
    if transformers.__version__ != VERSION:
        raise SystemExit(f"this is transformers {transformers.__version__}; {inspect.getdoc(sys.modules[__name__])}")
    write_shapes(RECIPES)
    with tempfile.TemporaryDirectory() as folder:
        for name in RECIPES:
            tiny.write(name, Path(folder) / name)
        for task in tasks or CASES:
            save(task, [golden_row(task, case, Path(folder) / case.model) for case in CASES[task]])
            print(task, len(CASES[task]))


if __name__ == "__main__":
    main(sys.argv[1:])
