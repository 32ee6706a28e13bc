"""What the experiments of `training.py` share: options, data, training with several seeds, and rows of results."""

import csv
import json
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TABLE_HEAD = "| setting | measure | result | wanted | minutes | seeds |\n|---|---|---|---|---|---|"

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """The options of a run of `training.py`.

    seeds: one training for each.  quick: a small share of the data, only to check that everything runs.
    data: a folder with `sst2`, `stsb`, ...  scratch: a folder for models.  out: the folder for the last model.
    """

    seeds: tuple[int, ...]
    quick: bool
    data: Path
    scratch: Path
    out: Path | None = None

    def subset(self, rows: Sequence[Any], few: int = 200) -> list[Any]:
        """All rows; with ``quick``, a few from all parts of the data."""
        return list(rows[:: max(len(rows) // few, 1)][:few] if self.quick else rows)


@dataclass(frozen=True)
class ResultRow:
    """One row of the table.

    setting: what was trained on what, and how.  measure: such as "test accuracy"; with "lower" in it, lower is better.
    scores, minutes: one per seed.  wanted: limit of the mean score.  most_minutes: limit of each time.
    """

    setting: str
    measure: str
    scores: Sequence[float]
    minutes: Sequence[float]
    wanted: float | None = None
    most_minutes: float | None = None

    @property
    def within_limits(self) -> bool:
        """Whether the score and the times are within their limits."""
        score = mean(self.scores)
        good = self.wanted is None or (score <= self.wanted if "lower" in self.measure else score >= self.wanted)
        return good and (self.most_minutes is None or max(self.minutes) <= self.most_minutes)

    def __str__(self) -> str:
        each = f" ({', '.join(f'{score:.4f}' for score in self.scores)})" if len(self.scores) > 1 else ""
        sign = "<=" if "lower" in self.measure else ">="
        wanted = [] if self.wanted is None else [f"{sign} {self.wanted:g}"]
        wanted += [] if self.most_minutes is None else [f"{self.most_minutes:g} min"]
        verdict = f"{', '.join(wanted)}: {'yes' if self.within_limits else 'NO'}" if wanted else ""
        minutes = ", ".join(f"{time:.2f}" for time in self.minutes)
        cells = (self.setting, self.measure, f"{mean(self.scores):.4f}{each}", verdict, minutes, str(len(self.scores)))
        return f"| {' | '.join(cells)} |"


# -- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """How a model is evaluated.

    task: its name.  measure: name of one of its scores.  dev: rows by which the best checkpoint is chosen.
    test: rows that the result is measured on.  options: of the task, for that measurement.
    """

    task: str
    measure: str
    dev: Rows
    test: Rows
    options: Mapping[str, Any] = field(default_factory=dict)


def train_and_evaluate(
    options: Options, name: str, train: Rows, evaluation: Evaluation, recipe: Mapping[str, Any]
) -> tuple[list[float], list[float]]:
    """Trains MiniLM once per seed, in ``NAME-SEED`` of the scratch folder; returns scores and minutes of training."""
    import pellucid

    scores, minutes, task = list[float](), list[float](), evaluation.task
    for seed in options.seeds:
        started, out = time.perf_counter(), options.scratch / f"{name}-{seed}"
        saving = {"out": out, "overwrite": True}
        pellucid.train(MINILM, train, task, validation=evaluation.dev, seed=seed, **saving, **recipe)
        minutes.append((time.perf_counter() - started) / 60)
        scores.append(pellucid.evaluate(out, evaluation.test, task, **evaluation.options)[evaluation.measure])
    return scores, minutes


# -- data -------------------------------------------------------------------------------------------------------------


def sst2(data: Path, part: str) -> Rows:
    """Sentences of SST-2: "train", "dev" or "test"."""
    lines = (data / "sst2" / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ", 1) for line in lines if line.strip()]
    return [{"text": text, "label": ("negative", "positive")[int(label)]} for label, text in pairs]


def stsb(data: Path, part: str, language: str = "en") -> Rows:
    """Pairs of the STS benchmark with scores from 0 to 5."""
    with (data / "stsb" / f"stsb-{language}-{part}.csv").open(encoding="utf-8", newline="") as file:
        return [dict(zip(("sentence1", "sentence2", "score"), row)) for row in csv.reader(file)]


def conll(data: Path, scratch: Path, part: str) -> Path:
    """A file of CoNLL-2002: "esp.train", "esp.testa", "esp.testb"."""
    with zipfile.ZipFile(data / "conll2002" / "conll2002.zip") as archive:
        return Path(archive.extract(f"conll2002/{part}", scratch))


def xquad(data: Path, language: str = "en") -> list[Rows]:
    """The questions of XQuAD, grouped by paragraph."""
    from pellucid.training.formats import read_squad

    paragraphs: dict[str, Rows] = {}
    for row in read_squad(data / "xquad" / f"xquad.{language}.json"):
        paragraphs.setdefault(row["context"], []).append(row)
    return list(paragraphs.values())


def write(path: Path, results: Sequence[tuple[str, ResultRow]]) -> None:
    """Writes all results as JSON."""
    rows = [{"experiment": name, **vars(row), "within_limits": row.within_limits} for name, row in results]
    path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
