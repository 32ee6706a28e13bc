"""Tiny Shakespeare from random weights, character by character: a decoder of 6 layers and 4.8 million parameters.

    python bench/training.py shakespeare --seeds 0 --out my-shakespeare
    pellucid generate "ROMEO:" --model my-shakespeare

The last tenth of the text is held out and scored in rows of 256 characters that do not overlap: the first character of
a row has no context. A plain loop over GPT-2's blocks (learned positions, GELU) reached 1.478 in twenty minutes.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import Options, ResultRow

import pellucid

CONFIG: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 688,
    "max_position_embeddings": 256,
    "rope_theta": 500.0,
    "initializer_range": 0.04,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Llama's blocks: after 300 steps a small decoder's loss was 1.89 with rotary positions, and 2.4 with learned ones.
The rotary base suits rows of 256, and initial weights are larger than in wide models; each gained some hundredths.
"""

RECIPE: dict[str, Any] = {
    "packing": "stream",
    "max_length": 256,
    "batch_size": 16,
    "max_steps": 2_500,
    "learning_rate": 2e-3,
    "schedule": "cosine",
    "floor": 0.05,
    "warmup": 100,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.99,
    "dropout": 0.15,
    "attention_dropout": 0.0,
    "evaluate_every": 500,
}
WANTED, MOST_MINUTES = 1.47, 20.0


def split(data: Path) -> tuple[str, str]:
    """The training text, nine tenths, and the validation text, the last tenth."""
    text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def untrained(text: str, seed: int) -> pellucid.Model:
    """A decoder with random weights whose vocabulary is the characters of a text."""
    tokenizer = pellucid.train_tokenizer(texts=[text], kind="characters")
    config = pellucid.Config.of("llama", vocab_size=len(tokenizer), **CONFIG)
    return pellucid.build(config, seed=seed, tokenizer=tokenizer)


def train(options: Options, seed: int, out: Path) -> tuple[float, float]:
    """Trains with one seed; returns the validation loss of the model saved in ``out``, and minutes."""
    train_text, validation_text = split(options.data)
    validation_text = validation_text[:20_000] if options.quick else validation_text
    changes: dict[str, Any] = {"max_steps": 12, "evaluate_every": 12, "warmup": 4} if options.quick else {}
    started = time.perf_counter()
    model = pellucid.train(
        untrained(train_text + validation_text, seed),
        {"text": [train_text]},
        "text-generation",
        validation={"text": [validation_text]},
        out=out,
        overwrite=True,
        seed=seed,
        **(RECIPE | changes),
    )
    return model.report.scores["loss"], (time.perf_counter() - started) / 60


def run(options: Options) -> Iterator[ResultRow]:
    folders = [options.scratch / f"shakespeare-{seed}" for seed in options.seeds]
    folders[-1] = options.out or folders[-1]
    found = [train(options, seed, folder) for seed, folder in zip(options.seeds, folders)]
    losses, minutes = zip(*found)
    yield ResultRow(
        f"from scratch, 6 x 256, {RECIPE['batch_size']} x 256 characters, {RECIPE['max_steps']:,} steps",
        "validation loss (lower is better)",
        losses,
        minutes,
        wanted=WANTED,
        most_minutes=MOST_MINUTES,
    )
