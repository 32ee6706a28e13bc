"""Multi30k, English to German, from random numbers: 3 + 3 layers, 256 wide, one table of 8,000 pairs of bytes.

    python bench/training.py multi30k --seeds 0 --scratch FOLDER
    pellucid run translation "A dog runs through the snow." --model FOLDER/multi30k-0

Norms stand inside the branches (`residual="pre"`), one table reads both languages and writes one. A plain loop with the
same recipe reached 36.51 (greedy) and 37.51 (5 beams) in 12.5 minutes, 6,850 tokens of the target a second.
"""

import gzip
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import Asked, Line, Rows

import pellucid
from pellucid.config import SequenceToSequenceLM

SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
FACTS: dict[str, Any] = {
    "residual": "pre",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_decoder_layers": 3,
    "num_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 1024,
    "decoder_intermediate_size": 1024,
    "max_position_embeddings": 256,
    "initializer_range": 0.04,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}
RECIPE: dict[str, Any] = {
    "epochs": 10,
    "tokens_per_batch": 2_048,
    "learning_rate": 1.5e-3,
    "schedule": "cosine",
    "floor": 0.02,
    "warmup": 400,
    "beta1": 0.9,
    "beta2": 0.98,
    "dropout": 0.15,
    "attention_dropout": 0.0,
    "label_smoothing": 0.1,
    "keep_best": False,
    "generate": False,
}
WANTED, MOST_MINUTES = 37.0, 12.0


def rows(data: Path, part: str) -> Rows:
    """Captions with their translations: "train", "val" or "test_2016_flickr"."""
    found = []
    for language in ("en", "de"):
        with gzip.open(data / "multi30k" / f"{part}.{language}.gz", "rt", encoding="utf-8") as file:
            found.append(file.read().splitlines())
    return [{"text": text, "target": target} for text, target in zip(*found, strict=True)]


def untrained(learned: Rows, seed: int) -> pellucid.Model:
    """A pair of random numbers that reads and writes both languages by one table."""
    texts = [row[side] for row in learned for side in ("text", "target")]
    words = pellucid.train_tokenizer(None, "bpe", 8_000, texts=texts, special_tokens=SPECIAL, add_eos=True)
    config = pellucid.Config.of("transformer", vocab_size=len(words), head=SequenceToSequenceLM(), **FACTS)
    return pellucid.build(config, seed=seed, tokenizer=words)


def lesson(asked: Asked, seed: int) -> tuple[list[float], float]:
    """Learns it once. ->  BLEU of the 2016 test, greedy and by 5 beams, and minutes of training"""
    learned = asked.some(rows(asked.data, "train"), 1_000)
    model = pellucid.train(
        untrained(learned, seed),
        learned,
        "translation",
        validation=asked.some(rows(asked.data, "val"), 100),
        out=asked.scratch / f"multi30k-{seed}",
        overwrite=True,
        seed=seed,
        **(RECIPE | ({"epochs": 2, "warmup": 10} if asked.quick else {})),
    )
    report = model.report
    tokens = sum(line["tokens"] for line in report.log if "tokens" in line)
    spent = sum(line["seconds"] for line in report.log if "tokens" in line)
    print(f"{report.steps:,} steps, {tokens / spent:,.0f} tokens of the target a second,", end=" ", file=sys.stderr)
    print(f"validation {dict(report.scores)}", file=sys.stderr)
    held = asked.some(rows(asked.data, "test_2016_flickr"), 50)
    found = []
    for beams in (1, 5):
        started = time.perf_counter()
        more = {} if beams == 1 else {"num_beams": beams, "length_penalty": 1.0}
        scores = pellucid.evaluate(model, held, "translation", **more)
        print(f"{beams} beams: {scores}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
        found.append(scores["bleu"])
    return found, report.seconds / 60


def run(asked: Asked) -> Iterator[Line]:
    found = [lesson(asked, seed) for seed in asked.seeds]
    minutes = [spent for _, spent in found]
    setting = f"from scratch, 3 + 3 x 256, 2,048 tokens a batch, {RECIPE['epochs']} epochs"
    yield Line(setting, "BLEU, test 2016, greedy", [bleu[0] for bleu, _ in found], minutes)
    last = [bleu[1] for bleu, _ in found]
    yield Line(setting, "BLEU, test 2016, 5 beams", last, minutes, wanted=WANTED, most_minutes=MOST_MINUTES)
