"""The sides of the benchmark of training: MiniLM with a new head is trained on SST-2."""

import itertools
import os
import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memory import Meter
from side import Place

ROWS, LENGTH = 32, 64
"""Texts per step, and tokens per text: no padding."""
WARM, STEPS = 2, 5
"""Warm-up steps, and steps that are timed."""
RATE = 1e-4


@dataclass(frozen=True)
class Work:
    """What is trained. kind: "float32" or "bfloat16".  dropout: of hidden states.  attention_dropout: of weights.

    epoch: all of SST-2 once, each side by its defaults; otherwise steps of 32 texts of 64 tokens.
    quick: fewer steps, and no tuning.
    """

    kind: str
    dropout: float = 0.1
    attention_dropout: float = 0.1
    epoch: bool = False
    quick: bool = False

    @property
    def warm(self) -> int:
        """Steps before the timed ones."""
        return 1 if self.quick else WARM

    @property
    def steps(self) -> int:
        """All steps, where it is not an epoch."""
        return self.warm + (2 if self.quick else STEPS)


def sentences() -> list[dict[str, str]]:
    """The training sentences of SST-2."""
    path = Path(os.environ["PELLUCID_SHARED"]) / "data" / "sst2" / "train.txt"
    parted = [line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{"text": text, "label": ("negative", "positive")[int(label)]} for label, text in parted]


def long_texts() -> list[dict[str, str]]:
    """Texts of several sentences each, which are truncated to 64 tokens; enough for all steps of one turn."""
    rows = sentences()[: 8 * ROWS * (WARM + STEPS)]
    return [
        {"text": " ".join(row["text"] for row in rows[i : i + 8]), "label": rows[i]["label"]}
        for i in range(0, len(rows), 8)
    ]


def drawn_padding(lengths: list[int]) -> float:
    """The share of padding in batches that are sampled without regard to length."""
    drawn = random.Random(0).sample(lengths, len(lengths))
    batches = [drawn[i : i + ROWS] for i in range(0, len(drawn), ROWS)]
    return 1.0 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


def classifier_folder(scratch: Path) -> Path:
    """The folder of MiniLM's body with a randomly initialised head, which both sides load."""
    import pellucid

    folder = scratch / "learner"
    if not folder.exists():
        pellucid.load("sentence-transformers/all-MiniLM-L6-v2", head="sequence-classification").save(folder)
    return folder


class Learning(ABC):
    """One side of the benchmark."""

    axes: dict[str, list[Any]] = {}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place, work: Work, folder: Path) -> None:
        self.threads, self.task, self.folder = place.threads, work, folder
        self.rows = sentences() if work.epoch else long_texts()
        self.padding, self.begun = 0.0, False
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Reads the texts."""

    def configure(self, setting: dict[str, Any]) -> None:
        self.setting = setting

    def counted(self) -> float:
        """Seconds of a step, or of an epoch."""
        if self.task.epoch and self.begun:
            times = self.times(None)
            return times[-1] - times[0]
        self.begun = True  # a few steps warm up for an epoch
        times = self.times(self.task.steps)[self.task.warm :]
        return median(after - before for before, after in itertools.pairwise(times))

    work = counted

    @abstractmethod
    def times(self, steps: int | None) -> list[float]:
        """The time at the beginning of each step, and at the end of the last. steps: None for an epoch."""

    def told(self) -> list[list[float]]:
        """The share of computed positions that is padding."""
        return [[self.padding]]


class Own(Learning):
    """pellucid's loop. Steps use the benchmark's batch size; an epoch the defaults, with batches of similar length."""

    def open(self) -> None:
        import pellucid
        from pellucid.training.classification import TextClassification

        self.given = pellucid.load(self.folder).loaded
        self.objective = TextClassification(max_length=None if self.task.epoch else LENGTH).fitted(self.rows)

    def times(self, steps: int | None) -> list[float]:
        from pellucid.training.loop import Loop
        from pellucid.training.settings import Settings
        from pellucid.training.start import model_for_training

        said: dict[str, Any] = {"epochs": 1, "max_steps": steps} | ({} if self.task.epoch else {"batch_size": ROWS})
        drops = {"dropout": self.task.dropout, "attention_dropout": self.task.attention_dropout}
        settings = Settings(precision=self.task.kind, learning_rate=RATE, **drops, **said)
        loaded = model_for_training(self.given, self.objective, settings)
        examples = self.objective.examples(loaded, self.rows)
        loop = Loop(loaded, self.objective, settings, examples)
        batches = loop.order.epoch_batches(0)
        computed = sum(len(batch) * max(examples[i].length for i in batch) for batch in batches)
        self.padding = 1.0 - sum(example.length for example in examples) / computed
        return [time.perf_counter(), *(time.perf_counter() for _ in loop)]


class Reference(Learning):
    """`transformers.Trainer` with the faster of its two attentions; an epoch in batches of 32, padded."""

    def open(self) -> None:
        import torch
        import transformers

        torch.set_num_threads(self.threads)
        transformers.utils.logging.set_verbosity_error()
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        cut = {"truncation": True, "max_length": 512 if self.task.epoch else LENGTH}
        ids = tokenizer([row["text"] for row in self.rows], **cut)["input_ids"]
        self.examples = [
            {"input_ids": one, "attention_mask": [1] * len(one), "labels": int(row["label"] == "positive")}
            for one, row in zip(ids, self.rows)
        ]
        self.collator = transformers.DataCollatorWithPadding(tokenizer)
        self.padding = drawn_padding([len(one) for one in ids])
        self.axes = {"attention": ["eager", "sdpa"][: 1 if self.task.quick else 2] if not self.task.epoch else ["sdpa"]}

    def times(self, steps: int | None) -> list[float]:
        import transformers

        found: list[float] = []

        class Clock(transformers.TrainerCallback):
            def on_step_begin(self, *given: Any, **said: Any) -> None:
                found.append(time.perf_counter())

            def on_train_end(self, *given: Any, **said: Any) -> None:
                found.append(time.perf_counter())

        drops = {"hidden_dropout_prob": self.task.dropout, "attention_probs_dropout_prob": self.task.attention_dropout}
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            self.folder, attn_implementation=self.setting["attention"], **drops
        )
        self._trainer(model, Clock(), steps).train()
        return found

    def _trainer(self, model: Any, clock: Any, steps: int | None) -> Any:
        """A Trainer with its default settings, except that it saves no checkpoints and no logs."""
        import transformers

        lasts = {"num_train_epochs": 1} if steps is None else {"max_steps": steps}
        said = transformers.TrainingArguments(
            output_dir=str(self.folder.parent / "trainer"),
            per_device_train_batch_size=ROWS,
            learning_rate=RATE,
            weight_decay=0.01,
            warmup_steps=0.1,
            bf16=self.task.kind == "bfloat16",
            optim="adamw_torch_fused",
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **lasts,
        )
        return transformers.Trainer(
            model=model, args=said, train_dataset=self.examples, data_collator=self.collator, callbacks=[clock]
        )


class Peak:
    """Measures, in its own process, the memory of one side's training steps above what the side loaded before."""

    def __init__(self, side: type[Learning], place: Place, work: Work, folder: Path, setting: dict[str, Any]) -> None:
        self.given, self.side, self.setting = (place, work, folder), side, setting

    def peak(self) -> int:
        """Peak memory in bytes."""
        side = self.side(*self.given)  # not counted: imports, texts, and pellucid's loaded model, which training copies
        side.configure(self.setting)
        meter = Meter()
        side.times(side.task.steps)
        return meter.read()["peak"]
