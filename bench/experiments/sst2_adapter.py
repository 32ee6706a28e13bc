"""Sentiment of sentences (SST-2) by an adapter and a head on MiniLM: the packaged default `pellucid/sentiment-minilm`.

    python bench/training.py sst2-adapter --seeds 0,1,2 --out sentiment-minilm

Of several seeds, `--out` gets the one that is best on the development sentences. The words of the treebank stand apart
("do n't"); the model learns them as people write them, and is tested both ways.
"""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import MINILM, Asked, Line, Rows, sst2

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


def run(asked: Asked) -> Iterator[Line]:
    train, dev, test = (asked.some(named(sst2(asked.data, part)), 200) for part in ("train", "dev", "test"))
    written, apart, minutes, bytes_, best = list[float](), list[float](), list[float](), 0, 0.0
    for seed in asked.seeds:
        started, out = time.perf_counter(), asked.scratch / f"sst2-adapter-{seed}"
        model = pellucid.train(
            MINILM, joined(train), "classify", validation=joined(dev), out=out, overwrite=True, seed=seed, **RECIPE
        )
        minutes.append((time.perf_counter() - started) / 60)
        written.append(pellucid.evaluate(out, joined(test), "classify")["accuracy"])
        apart.append(pellucid.evaluate(out, test, "classify")["accuracy"])
        bytes_ = (out / FILES[1]).stat().st_size
        if asked.out is not None and model.report.scores["accuracy"] > best:
            best = model.report.scores["accuracy"]
            keep(out, asked.out)
    said = f"SST-2, {len(train):,} sentences, MiniLM, adapter of rank {RECIPE['lora']} and head in bfloat16"
    yield Line(f"{said}, as people write", "test accuracy", written, minutes, wanted=0.88)
    yield Line(f"{said}, words apart", "test accuracy", apart, minutes, wanted=0.88)
    yield Line(said, "MB, lower", [bytes_ / 1e6], [sum(minutes)], wanted=1.4)


def named(rows: Rows) -> Rows:
    """The labels as the packaged model calls them."""
    return [row | {"label": row["label"].upper()} for row in rows]


def joined(rows: Rows) -> Rows:
    """The words of a treebank put together again, as people write them."""
    return [row | {"text": as_written(row["text"])} for row in rows]


def as_written(text: str) -> str:
    """ "it 's fun , is n't it ?" as "it's fun, isn't it?"."""
    text = text.replace("-lrb-", "(").replace("-rrb-", ")").replace("``", '"').replace("''", '"')
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    return re.sub(r"\( ", "(", re.sub(r" ([.,;:!?)])", r"\1", text)).strip()


def keep(folder: Path, target: Path) -> None:
    """The adapter alone, without the account of its training."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(folder / name, target / name)
