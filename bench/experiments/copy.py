"""The copy task of "The Annotated Transformer" (Rush, 2018): a vanilla encoder-decoder, post-norm and with
sinusoidal positions, is trained to copy its input.

    python bench/training.py copy --seeds 0,1,2

4,000 rows of ten digits; the score is the share of 500 unseen rows whose digits are all right.
"""

import random
from collections.abc import Iterator
from typing import Any

from experiment import Options, ResultRow, Rows

import pellucid
from pellucid.config import SequenceToSequenceLM

DIGITS = "0123456789"
CONFIG: dict[str, Any] = {
    "residual": "post",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "decoder_attention_heads": 4,
    "intermediate_size": 128,
    "decoder_intermediate_size": 128,
    "initializer_range": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}
RECIPE: dict[str, Any] = {
    "batch_size": 64,
    "max_steps": 300,
    "learning_rate": 3e-3,
    "warmup": 50,
    "schedule": "cosine",
    "dropout": 0.0,
}


def rows(count: int, seed: int) -> Rows:
    """Rows of ten digits, whose target is the input."""
    generator = random.Random(seed)
    texts = ["".join(generator.choices(DIGITS, k=10)) for _ in range(count)]
    return [{"text": text, "target": text} for text in texts]


def untrained(seed: int) -> pellucid.Model:
    """A vanilla encoder-decoder that reads digits."""
    special = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    tokenizer = pellucid.train_tokenizer(None, "characters", texts=[DIGITS], special_tokens=special, add_eos=True)
    config = pellucid.Config.of("transformer", vocab_size=len(tokenizer), head=SequenceToSequenceLM(), **CONFIG)
    return pellucid.build(config, seed=seed, tokenizer=tokenizer)


def run(options: Options) -> Iterator[ResultRow]:
    train = rows(4_000, seed=1)
    seen = {row["text"] for row in train}
    validation = [row for row in rows(600, seed=2) if row["text"] not in seen][:500]
    changes: dict[str, Any] = {"max_steps": 20} if options.quick else {}
    reports = [
        pellucid.train(
            untrained(seed), train, "text2text-generation", validation=validation, seed=seed, **(RECIPE | changes)
        ).report
        for seed in options.seeds
    ]
    yield ResultRow(
        f"from scratch, 2 + 2 x 64, post-norm, {RECIPE['max_steps']} steps",
        "share of unseen rows that are right",
        [report.scores["exact_match"] for report in reports],
        [report.seconds / 60 for report in reports],
        wanted=1.0,
    )
