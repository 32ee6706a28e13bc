"""The texts of the embedding benchmark: 2,000 of five kinds, from company names to paragraphs.

The data are not part of this repository. ``PELLUCID_SHARED`` names the folder that contains ``data/``.
"""

import csv
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from batches import token_counts

SEED = 20
MISSING = "set PELLUCID_SHARED to the folder whose data/ holds sst2, stsb, agnews, wikitext2, us_companies"


class CorpusError(Exception):
    """The data are not where ``PELLUCID_SHARED`` points; the message is one sentence for the user."""


@dataclass(frozen=True)
class Lengths:
    """Tokens per text, after the model's own truncation, including special tokens."""

    total: int
    mean: float
    p50: int
    p95: int
    longest: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _companies(data: Path) -> list[str]:
    return [row[1] for row in _rows(data / "us_companies" / "us_listed.csv")[1:]]


def _reviews(data: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in _lines(data / "sst2" / "train.txt") if " " in line]


def _captions(data: Path) -> list[str]:
    return [sentence for row in _rows(data / "stsb" / "stsb-en-train.csv") for sentence in row[:2]]


def news(data: Path) -> list[str]:
    return [f"{row[1]}. {row[2]}".replace("\\", " ") for row in _rows(data / "agnews" / "test.csv")]


def _paragraphs(data: Path) -> list[str]:
    lines = (line.strip() for line in _lines(data / "wikitext2" / "test.txt"))
    return [line for line in lines if line and not line.startswith("=")]


# Reader of one kind of text, and its share of the corpus in percent.
KINDS: tuple[tuple[Callable[[Path], list[str]], int], ...] = (
    (_companies, 20),
    (_reviews, 20),
    (_captions, 20),
    (news, 25),
    (_paragraphs, 15),
)


def data_folder() -> Path:
    """The folder ``data`` of ``PELLUCID_SHARED``. Raises CorpusError if the variable is unset."""
    shared = os.environ.get("PELLUCID_SHARED")
    if not shared:
        raise CorpusError(f"bench: {MISSING}")
    return Path(shared) / "data"


def read_corpus(count: int = 2000) -> list[str]:
    """``count`` distinct texts, the same in the same order on every call."""
    data, draw = data_folder(), random.Random(SEED)
    texts: list[str] = []
    try:
        for read, percent in KINDS:
            pool = sorted({text.strip() for text in read(data)} - {""})
            texts += draw.sample(pool, min(len(pool), count * percent // 100))
    except FileNotFoundError as missing:
        raise CorpusError(f"bench: no file {missing.filename}; {MISSING}") from missing
    draw.shuffle(texts)
    return texts


def sample(texts: Sequence[str], count: int = 300) -> list[str]:
    """A fixed part of the corpus, on which every side chooses its setting."""
    return random.Random(SEED + 1).sample(list(texts), min(count, len(texts)))


def lengths(texts: Sequence[str], model: Path) -> Lengths:
    """Statistics of the texts' lengths in tokens of ``model``."""
    counts = sorted(token_counts(texts, model))
    last, total = len(counts) - 1, sum(counts)
    return Lengths(total, total / len(counts), counts[last // 2], counts[last * 95 // 100], counts[last])
