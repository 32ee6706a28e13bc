"""The same recipe twice: trained by pellucid and by `transformers.Trainer`, and both judged by the same scores.

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
from experiment import MINILM, Asked, Line, Rows
from machine import model_folder

import pellucid
from pellucid.machine import fastest_dtype
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example, Objective

MODELS = {
    "token-classification": transformers.AutoModelForTokenClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
}


def beside(
    asked: Asked,
    name: str,
    objective: Objective,
    train: Rows,
    test: Rows,
    recipe: Mapping[str, Any],
    said: str,
    measure: tuple[str, str],
) -> Iterator[Line]:
    """Two lines: pellucid's, then Trainer's. Neither is evaluated during training; the last weights count."""
    for who, learn in (("pellucid", ours), ("transformers.Trainer", theirs)):
        scores, minutes = list[float](), list[float]()
        for seed in asked.seeds:
            out, started = asked.scratch / f"{name}-{who}-{seed}", time.perf_counter()
            learn(objective, train, recipe, seed, out)
            minutes.append((time.perf_counter() - started) / 60)
            scores.append(pellucid.evaluate(out, test, objective.name)[measure[0]])
        yield Line(f"{said}: {who}", measure[1], scores, minutes)


def ours(objective: Objective, rows: Rows, recipe: Mapping[str, Any], seed: int, out: Path) -> None:
    """Trains with pellucid."""
    pellucid.train(MINILM, rows, objective.name, validation=0, out=out, overwrite=True, seed=seed, **recipe)


def theirs(objective: Objective, rows: Rows, recipe: Mapping[str, Any], seed: int, out: Path) -> None:
    """Trains with Trainer, on the tokens that pellucid trains on."""
    objective, loaded = objective.fitted(rows), pellucid.load(MINILM).loaded
    labels = objective.labels(loaded)
    facts: dict[str, Any] = {
        "hidden_dropout_prob": recipe["dropout"],
        "classifier_dropout": recipe["dropout"],
        "attention_probs_dropout_prob": recipe["attention_dropout"],
    }
    if objective.name == "token-classification":
        facts |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(seed)
    model = MODELS[objective.name].from_pretrained(model_folder(), **facts)
    examples = [example(one) for one in objective.examples(loaded, rows)]
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
    trainer = transformers.Trainer(model, arguments, train_dataset=examples, data_collator=together)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(model_folder()).save_pretrained(out)


def example(one: Example) -> dict[str, Any]:
    """An example under the reference's names."""
    found: dict[str, Any] = {"input_ids": one.ids[0], "token_type_ids": one.types[0]}
    if hasattr(one.target, "labels"):
        return found | {"labels": one.target.labels}
    return found | {"start_positions": one.target.first, "end_positions": one.target.last}


def together(examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of examples, padded to the longest."""
    width = max(len(one["input_ids"]) for one in examples)
    fill = {"input_ids": 0, "token_type_ids": 0, "labels": IGNORED}
    batch = {"attention_mask": [[1] * len(one["input_ids"]) for one in examples]}
    batch["attention_mask"] = [row + [0] * (width - len(row)) for row in batch["attention_mask"]]
    for name in examples[0]:
        if name in fill:
            batch[name] = [one[name] + [fill[name]] * (width - len(one[name])) for one in examples]
        else:
            batch[name] = [one[name] for one in examples]
    return {name: torch.tensor(rows) for name, rows in batch.items()}
