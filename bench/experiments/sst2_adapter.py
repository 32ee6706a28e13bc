"""Sentiment of sentences (SST-2) by an adapter and a head on MiniLM: the packaged default `pellucid/sentiment-minilm`.

    python bench/training.py sst2-adapter --seeds 0,1,2 --out sentiment-minilm

Of several seeds, the one with the best development score is saved under `--out`. The treebank separates clitics ("do
n't"); the model is trained on normal spelling, and tested on both.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import MINILM, Options, ResultRow, Rows, sst2

import pellucid

RECIPE: dict[str, Any] = {
    "lora": 16,
    "lora_alpha": 16,
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "adapter_only": True,
    "adapter_dtype": "bfloat16",
}
FILES = ("adapter_config.json", "adapter_model.safetensors")


def run(options: Options) -> Iterator[ResultRow]:
    parts = (upper_case_labels(sst2(options.data, part)) for part in ("train", "dev", "test"))
    train, dev, test = (options.subset(part, 200) for part in parts)
    normal, as_tokenized, minutes, file_bytes, best = list[float](), list[float](), list[float](), 0, 0.0
    for seed in options.seeds:
        started, out = time.perf_counter(), options.scratch / f"sst2-adapter-{seed}"
        data: dict[str, Any] = {"data": detokenized(train), "validation": detokenized(dev)}
        model = pellucid.train(MINILM, task="classify", out=out, overwrite=True, seed=seed, **data, **RECIPE)
        minutes.append((time.perf_counter() - started) / 60)
        normal.append(pellucid.evaluate(out, detokenized(test), "classify")["accuracy"])
        as_tokenized.append(pellucid.evaluate(out, test, "classify")["accuracy"])
        file_bytes = (out / FILES[1]).stat().st_size
        if options.out is not None and model.report.scores["accuracy"] > best:
            best = model.report.scores["accuracy"]
            copy_adapter(out, options.out)
    setting = f"SST-2, {len(train):,} sentences, MiniLM, adapter of rank {RECIPE['lora']} and head in bfloat16"
    yield ResultRow(f"{setting}, as people write", "test accuracy", normal, minutes, wanted=0.88)
    yield ResultRow(f"{setting}, words apart", "test accuracy", as_tokenized, minutes, wanted=0.88)
    yield ResultRow(setting, "MB, lower", [file_bytes / 1e6], [sum(minutes)], wanted=1.4)


def upper_case_labels(rows: Rows) -> Rows:
    """The rows with the labels of the packaged model."""
    return [row | {"label": row["label"].upper()} for row in rows]


def detokenized(rows: Rows) -> Rows:
    """The rows with the texts of the treebank in normal spelling."""
    return [row | {"text": detokenize(row["text"])} for row in rows]


def detokenize(text: str) -> str:
    """ "it 's fun , is n't it ?" as "it's fun, isn't it?"."""
    text = text.replace("-lrb-", "(").replace("-rrb-", ")").replace("``", '"').replace("''", '"')
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    return re.sub(r"\( ", "(", re.sub(r" ([.,;:!?)])", r"\1", text)).strip()


def copy_adapter(folder: Path, target: Path) -> None:
    """Copies the adapter alone, without the report of its training."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(folder / name, target / name)
