"""The sides of the benchmark of training: MiniLM with a new head is trained on SST-2."""

import itertools
import os
import random
import time
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from comparison import WorkloadSide
from memory import MemoryMeter
from side import Setting, Workspace

BATCH_SIZE, LENGTH = 32, 64
"""Texts per step, and tokens per text: no padding."""
WARMUP_STEPS, TIMED_STEPS = 2, 5
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class TrainingWorkload:
    """What is trained. dtype: "float32" or "bfloat16".  dropout: of hidden states.  attention_dropout: of weights.

    epoch: all of SST-2 once, each side by its defaults; otherwise steps of 32 texts of 64 tokens.
    quick: fewer steps, and no tuning.
    """

    dtype: str
    dropout: float = 0.1
    attention_dropout: float = 0.1
    epoch: bool = False
    quick: bool = False

    @property
    def warmup_steps(self) -> int:
        """Steps before the timed ones."""
        return 1 if self.quick else WARMUP_STEPS

    @property
    def steps(self) -> int:
        """All steps, where it is not an epoch."""
        return self.warmup_steps + (2 if self.quick else TIMED_STEPS)


def sentences() -> list[dict[str, str]]:
    """The training sentences of SST-2."""
    path = Path(os.environ["PELLUCID_SHARED"]) / "data" / "sst2" / "train.txt"
    pairs = [line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{"text": text, "label": ("negative", "positive")[int(label)]} for label, text in pairs]


def long_texts() -> list[dict[str, str]]:
    """Texts of several sentences each, which are truncated to 64 tokens; enough for all steps of one measurement."""
    rows = sentences()[: 8 * BATCH_SIZE * (WARMUP_STEPS + TIMED_STEPS)]
    return [
        {"text": " ".join(row["text"] for row in rows[i : i + 8]), "label": rows[i]["label"]}
        for i in range(0, len(rows), 8)
    ]


def padding_of_random_batches(lengths: list[int]) -> float:
    """The share of padding in batches that are sampled without regard to length."""
    shuffled = random.Random(0).sample(lengths, len(lengths))
    batches = [shuffled[i : i + BATCH_SIZE] for i in range(0, len(shuffled), BATCH_SIZE)]
    return 1.0 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def classifier_folder(scratch: Path) -> Path:
    """The folder of MiniLM's body with a randomly initialised head, which both sides load."""
    import pellucid

    folder = scratch / "classifier"
    if not folder.exists():
        pellucid.load("sentence-transformers/all-MiniLM-L6-v2", head="sequence-classification").save(folder)
    return folder


class TrainingSide(WorkloadSide):
    """One side of the benchmark."""

    def __init__(self, workspace: Workspace, workload: TrainingWorkload, folder: Path) -> None:
        self.threads, self.workload, self.folder = workspace.threads, workload, folder
        self.rows = sentences() if workload.epoch else long_texts()
        self.padding, self.warmed_up = 0.0, False
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Reads the texts."""

    @abstractmethod
    def run(self, steps: int | None = None) -> list[float]:
        """The time at the beginning of each step, and at the end of the last. steps: None for an epoch."""

    def seconds(self) -> float:
        """Seconds of a step, or of an epoch, for which a few steps are the warm-up."""
        if self.workload.epoch and self.warmed_up:
            times = self.run()
            return times[-1] - times[0]
        self.warmed_up = True
        times = self.run(self.workload.steps)[self.workload.warmup_steps :]
        return median(after - before for before, after in itertools.pairwise(times))

    def details(self) -> list[float]:
        """The share of computed positions that is padding."""
        return [self.padding]


class PellucidTraining(TrainingSide):
    """pellucid's loop. Steps use the benchmark's batch size; an epoch the defaults, with batches of similar length."""

    def open(self) -> None:
        import pellucid
        from pellucid.training.classification import TextClassification

        self.loaded = pellucid.load(self.folder).loaded
        self.objective = TextClassification(max_length=None if self.workload.epoch else LENGTH).fitted(self.rows)

    def run(self, steps: int | None = None) -> list[float]:
        from pellucid.training.loop import Loop
        from pellucid.training.settings import Settings
        from pellucid.training.start import model_for_training

        options: dict[str, Any] = {} if self.workload.epoch else {"batch_size": BATCH_SIZE}
        settings = Settings(
            epochs=1,
            max_steps=steps,
            precision=self.workload.dtype,
            learning_rate=LEARNING_RATE,
            dropout=self.workload.dropout,
            attention_dropout=self.workload.attention_dropout,
            **options,
        )
        loaded = model_for_training(self.loaded, self.objective, settings)
        examples = self.objective.examples(loaded, self.rows)
        loop = Loop(loaded, self.objective, settings, examples)
        batches = loop.order.epoch_batches(0)
        computed = sum(len(batch) * max(examples[i].length for i in batch) for batch in batches)
        self.padding = 1.0 - sum(example.length for example in examples) / computed
        return [time.perf_counter(), *(time.perf_counter() for _ in loop)]


class TransformersTraining(TrainingSide):
    """`transformers.Trainer` with the faster of its two attentions; an epoch in batches of 32, padded."""

    def axes(self) -> dict[str, list[Any]]:
        if self.workload.epoch:
            return {"attention": ["sdpa"]}
        return {"attention": ["eager"] if self.workload.quick else ["eager", "sdpa"]}

    def open(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.threads)
        transformers.utils.logging.set_verbosity_error()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        truncation = {"truncation": True, "max_length": 512 if self.workload.epoch else LENGTH}
        rows_of_ids = tokenizer([row["text"] for row in self.rows], **truncation)["input_ids"]
        self.examples = [
            {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(row["label"] == "positive")}
            for ids, row in zip(rows_of_ids, self.rows)
        ]
        self.collator = transformers.DataCollatorWithPadding(tokenizer)
        self.padding = padding_of_random_batches([len(ids) for ids in rows_of_ids])

    def run(self, steps: int | None = None) -> list[float]:
        import transformers

        times: list[float] = []

        class Clock(transformers.TrainerCallback):
            def on_step_begin(self, *arguments: Any, **options: Any) -> None:
                times.append(time.perf_counter())

            def on_train_end(self, *arguments: Any, **options: Any) -> None:
                times.append(time.perf_counter())

        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            self.folder,
            attn_implementation=self.setting["attention"],
            hidden_dropout_prob=self.workload.dropout,
            attention_probs_dropout_prob=self.workload.attention_dropout,
        )
        self._trainer(model, Clock(), steps).train()
        return times

    def _trainer(self, model: Any, clock: Any, steps: int | None) -> Any:
        """A Trainer with its default settings, except that it saves no checkpoints and no logs."""
        import transformers

        duration: dict[str, Any] = {"num_train_epochs": 1} if steps is None else {"max_steps": steps}
        arguments = transformers.TrainingArguments(
            output_dir=str(self.folder.parent / "trainer"),
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            weight_decay=0.01,
            warmup_steps=0.1,
            bf16=self.workload.dtype == "bfloat16",
            optim="adamw_torch_fused",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **duration,
        )
        return transformers.Trainer(
            model=model, args=arguments, train_dataset=self.examples, data_collator=self.collator, callbacks=[clock]
        )


class PeakMemoryCommands:
    """The command of a process that measures the memory of one side's training steps.

    Not counted is what comes before: imports, texts, and pellucid's loaded model, which training copies.
    """

    def __init__(
        self,
        side: type[TrainingSide],
        workspace: Workspace,
        workload: TrainingWorkload,
        folder: Path,
        setting: Setting,
    ) -> None:
        self.make_side, self.workload, self.setting = partial(side, workspace, workload, folder), workload, setting

    def peak(self) -> int:
        """Peak memory in bytes."""
        side = self.make_side()
        side.configure(self.setting)
        meter = MemoryMeter()
        side.run(self.workload.steps)
        return meter.read()["peak"]
