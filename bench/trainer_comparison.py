"""The same recipe twice: trained by pellucid and by `transformers.Trainer`, and both evaluated by the same scores.

Trainer gets the same tokens and labels, the same body, a random head of the same size, the same settings, also batches
of similar length, and the same precision; dropout uses other random numbers, so single runs differ.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from experiment import MINILM, Options, ResultRow, Rows
from machine import model_folder

import pellucid
from pellucid.machine import fastest_dtype
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example, Objective

MODELS = {
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
}


def compare_with_trainer(
    options: Options,
    name: str,
    objective: Objective,
    train: Rows,
    test: Rows,
    recipe: Mapping[str, Any],
    setting: str,
    measure: tuple[str, str],
) -> Iterator[ResultRow]:
    """Two rows: pellucid's, then Trainer's. Neither is evaluated during training; the last weights count."""
    for side, train_with in (("pellucid", train_with_pellucid), ("transformers.Trainer", train_with_trainer)):
        scores, minutes = list[float](), list[float]()
        for seed in options.seeds:
            out, started = options.scratch / f"{name}-{side}-{seed}", time.perf_counter()
            train_with(objective, train, recipe, seed, out)
            minutes.append((time.perf_counter() - started) / 60)
            scores.append(pellucid.evaluate(out, test, objective.name)[measure[0]])
        yield ResultRow(f"{setting}: {side}", measure[1], scores, minutes)


def train_with_pellucid(objective: Objective, rows: Rows, recipe: Mapping[str, Any], seed: int, out: Path) -> None:
    """Trains with pellucid."""
    pellucid.train(MINILM, rows, objective.name, validation=0, out=out, overwrite=True, seed=seed, **recipe)


def train_with_trainer(objective: Objective, rows: Rows, recipe: Mapping[str, Any], seed: int, out: Path) -> None:
    """Trains with Trainer, on the tokens that pellucid trains on."""
    objective, loaded = objective.fitted(rows), pellucid.load(MINILM).loaded
    labels = objective.labels(loaded)
    config: dict[str, Any] = {
        "hidden_dropout_prob": recipe["dropout"],
        "classifier_dropout": recipe["dropout"],
        "attention_probs_dropout_prob": recipe["attention_dropout"],
    }
    if objective.name == "token-classification":
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(seed)
    model = MODELS[objective.name].from_pretrained(model_folder(), **config)
    examples = [trainer_example(example) for example in objective.examples(loaded, rows)]
    random.Random(seed).shuffle(examples)
    arguments = transformers.TrainingArguments(
        output_dir=str(out),
        num_train_epochs=recipe["epochs"],
        per_device_train_batch_size=recipe["batch_size"],
        learning_rate=recipe["learning_rate"],
        warmup_steps=recipe["warmup"],
        weight_decay=recipe["weight_decay"],
        train_sampling_strategy="group_by_length",
        bf16=fastest_dtype(torch.device("cpu")) == torch.bfloat16,
        use_cpu=True,
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=examples, data_collator=collate)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(model_folder()).save_pretrained(out)


def trainer_example(example: Example) -> dict[str, Any]:
    """An example under the reference's names."""
    inputs: dict[str, Any] = {"input_ids": example.ids[0], "token_type_ids": example.types[0]}
    if hasattr(example.target, "labels"):
        return inputs | {"labels": example.target.labels}
    return inputs | {"start_positions": example.target.first, "end_positions": example.target.last}


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of examples, padded to the longest."""
    width = max(len(example["input_ids"]) for example in examples)
    fill = {"input_ids": 0, "token_type_ids": 0, "labels": IGNORED}
    batch = {"attention_mask": [[1] * len(example["input_ids"]) for example in examples]}
    batch["attention_mask"] = [row + [0] * (width - len(row)) for row in batch["attention_mask"]]
    for name in examples[0]:
        if name in fill:
            batch[name] = [row[name] + [fill[name]] * (width - len(row[name])) for row in examples]
        else:
            batch[name] = [row[name] for row in examples]
    return {name: torch.tensor(rows) for name, rows in batch.items()}
