"""Tiny Shakespeare from random numbers, character by character: a decoder of 6 layers and 4.8 million parameters.

    python bench/training.py shakespeare --seeds 0 --out my-shakespeare
    pellucid generate "ROMEO:" --model my-shakespeare

The last tenth of the text is held out, all of it is scored, in rows of 256 characters that do not overlap: the first of
a row has nothing before it. A plain loop over GPT-2's blocks (learned places, GELU) reached 1.478 in twenty minutes.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiment import Asked, Line

import pellucid

FACTS: dict[str, Any] = {
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
"""Llama's blocks: after 300 steps a small decoder was at 1.89 with turned queries and keys, with learned places at 2.4.
Places turn at speeds for rows of 256, and numbers begin larger than in wide models; each won some hundredths.
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


def parts(data: Path) -> tuple[str, str]:
    """The text to learn from, nine tenths, and the last one."""
    text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def untrained(text: str, seed: int) -> pellucid.Model:
    """A decoder of random numbers that reads the characters of a text."""
    words = pellucid.train_tokenizer(texts=[text], kind="characters")
    return pellucid.build(pellucid.Config.of("llama", vocab_size=len(words), **FACTS), seed=seed, tokenizer=words)


def lesson(asked: Asked, seed: int, out: Path) -> tuple[float, float]:
    """Learns it once. ->  the validation loss of what then stands in `out`, and minutes"""
    learned, held = parts(asked.data)
    held = held[:20_000] if asked.quick else held
    changes: dict[str, Any] = {"max_steps": 12, "evaluate_every": 12, "warmup": 4} if asked.quick else {}
    started = time.perf_counter()
    model = pellucid.train(
        untrained(learned + held, seed),
        {"text": [learned]},
        "text-generation",
        validation={"text": [held]},
        out=out,
        overwrite=True,
        seed=seed,
        **(RECIPE | changes),
    )
    return model.report.scores["loss"], (time.perf_counter() - started) / 60


def run(asked: Asked) -> Iterator[Line]:
    folders = [asked.scratch / f"shakespeare-{seed}" for seed in asked.seeds]
    folders[-1] = asked.out or folders[-1]
    found = [lesson(asked, seed, folder) for seed, folder in zip(asked.seeds, folders)]
    losses, minutes = zip(*found)
    yield Line(
        f"from scratch, 6 x 256, {RECIPE['batch_size']} x 256 characters, {RECIPE['max_steps']:,} steps",
        "validation loss (lower is better)",
        losses,
        minutes,
        wanted=WANTED,
        most_minutes=MOST_MINUTES,
    )
