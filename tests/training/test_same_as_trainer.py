"""The loss beside `transformers.Trainer`'s: same initial weights, same batches, no dropout, fifty steps."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pellucid
from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.save import save_checkpoint
from pellucid.config import CausalLM
from pellucid.training.classification import TextClassification
from pellucid.training.learner import Learner
from pellucid.training.loop import Loop
from pellucid.training.objective import Example, Objective
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

STEPS, ROWS = 50, 4
SETTINGS = Settings(
    epochs=2,
    max_steps=STEPS,
    batch_size=ROWS,
    learning_rate=1e-3,
    dropout=0.0,
    attention_dropout=0.0,
    precision="float32",
)


@dataclass(frozen=True, kw_only=True)
class NextToken(Objective):
    """Predicts each token of a row from those before it."""

    def _not_called(self, *args: Any) -> Any:
        raise AssertionError("the examples are given, and nothing is held out")

    examples = score = _not_called

    def head(self, loaded: Loaded) -> CausalLM:
        return CausalLM()

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        return as_batch(loaded, [one.ids[0] for one in examples], [one.types[0] for one in examples])

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return float(batch["input_ids"][:, 1:].numel())

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        logits = learner.logits(**batch)[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"][:, 1:].flatten(), reduction="sum")


def our_losses(folder: Path, objective: Objective, examples: list[Example]) -> tuple[list[float], list[Example]]:
    """The loss of every step, and the examples in the order of training."""
    loaded = model_for_training(pellucid.load(folder).loaded, objective, SETTINGS)
    loop = Loop(loaded, objective, SETTINGS, examples)
    read = [examples[i] for step in range(STEPS) for i in loop.order.epoch_and_batch(step)[1]]
    return [one.metrics["loss"] for one in loop], read


def trainer_losses(model: Any, rows: list[dict[str, Any]], folder: Path, **options: Any) -> list[float]:
    """The losses of the reference, which reads these rows in order."""
    losses: list[float] = []

    class RecordingTrainer(transformers.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            found = super().compute_loss(*args, **kwargs)
            losses.append(float(found[0] if isinstance(found, tuple) else found))
            return found

        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(rows)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        learning_rate=SETTINGS.learning_rate,
        weight_decay=SETTINGS.weight_decay,
        warmup_steps=SETTINGS.warmup_steps(STEPS),
        max_grad_norm=SETTINGS.clip,
        lr_scheduler_type="linear",
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    RecordingTrainer(model=model, args=arguments, train_dataset=rows, **options).train()
    return losses


def assert_same_losses(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected) == STEPS
    differences = [abs(our - their) for our, their in zip(found, expected)]
    assert max(differences) <= 1e-4, f"step {differences.index(max(differences)) + 1}: {max(differences):g}"
    assert min(found[-10:]) < 0.9 * found[0], "something was learned"


@pytest.mark.filterwarnings("ignore")
def test_classification_losses_equal_the_trainer_s(
    checkpoint: Callable[[str], Path], sentiments: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    rows, folder = sentiments(STEPS * ROWS // 2), tmp_path / "begun"
    objective = TextClassification().fitted(rows)
    base = model_for_training(pellucid.load(checkpoint("bert-body")).loaded, objective, SETTINGS)
    save_checkpoint(base, folder)  # with the random weights of its new head
    found, read = our_losses(folder, objective, objective.examples(base, rows))
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **no_dropout)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = [{"input_ids": one.ids[0], "token_type_ids": one.types[0], "labels": one.target.label} for one in read]
    collator = transformers.DataCollatorWithPadding(tokenizer)
    assert_same_losses(found, trainer_losses(model, inputs, tmp_path / "trainer", data_collator=collator))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_causal_losses_equal_the_trainer_s(name: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = checkpoint(name)
    generator = np.random.default_rng(3)
    starts = generator.integers(5, 200, size=(STEPS * ROWS // 2, 1))
    ids = (starts + np.arange(12) * 3) % 250 + 5  # each token is three above the last
    examples = [Example((row.tolist(),), ([0] * len(row),)) for row in ids]
    found, read = our_losses(folder, NextToken(), examples)
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if name.startswith("gpt2") else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **no_dropout)
    # the first token is not predicted; some families' reference would count its label
    inputs = [{"input_ids": one.ids[0], "labels": [-100, *one.ids[0][1:]]} for one in read]
    assert_same_losses(found, trainer_losses(model, inputs, tmp_path))


@pytest.mark.parametrize("pieces", [2, 4])
def test_accumulation_does_not_change_the_training(
    pieces: int, checkpoint: Callable[[str], Path], sentiments: Callable[..., Any]
) -> None:
    folder, rows = checkpoint("bert-body"), sentiments(32)
    objective = TextClassification().fitted(rows)
    settings, losses, norms, numbers = replace(SETTINGS, max_steps=4, batch_size=8), [], [], []
    for accumulation in (1, pieces):
        settings = replace(settings, accumulation=accumulation)
        loaded = model_for_training(pellucid.load(folder).loaded, objective, settings)
        loop = Loop(loaded, objective, settings, objective.examples(loaded, rows))
        events = list(loop)
        losses.append([one.metrics["loss"] for one in events])
        norms.append([one.metrics["gradient_norm"] for one in events])
        numbers.append(torch.cat([p.detach().flatten() for p in loop.parameters.values()]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert float((numbers[0] - numbers[1]).abs().mean()) < 1e-6  # AdamW divides small gradients by their own size
