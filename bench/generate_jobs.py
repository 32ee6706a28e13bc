"""The jobs of the benchmark of generation: prompts from wikitext2 for each part, as ids of the model's tokens."""

from dataclasses import dataclass, replace
from pathlib import Path

from corpus import CorpusError, data_folder
from tokenizers import Tokenizer

SENTENCE = "The printing press changed the way in which people in Europe"
WINDOW, WINDOWS = 1024, 8
TEXTS, SHORTEST, LONGEST = 16, 8, 60
LONG_PROMPT = 1000
"""Tokens of the prompt of the part that measures the time to the first token."""


@dataclass(frozen=True)
class Job:
    """Prompts, and how many tokens each side generates after each of them, greedily and with end tokens forbidden.

    subtracted_tokens: the time of this many tokens is subtracted, which leaves that of the later steps alone.
    attempts: how often a disturbed measurement is tried.
    """

    name: str
    prompts: list[list[int]]
    new_tokens: int
    subtracted_tokens: int = 0
    attempts: int = 3

    @property
    def timed_tokens(self) -> int:
        """Number of tokens that the measured time covers."""
        return len(self.prompts) * (self.new_tokens - self.subtracted_tokens)

    @property
    def positions(self) -> int:
        """Number of positions of the longest text."""
        return max(map(len, self.prompts)) + self.new_tokens

    def shortened(self) -> "Job":
        """The job with a quarter of the tokens, for warming up."""
        quarter = max(1, (self.new_tokens - self.subtracted_tokens) // 4)
        return replace(self, new_tokens=min(self.new_tokens, self.subtracted_tokens + quarter))

    def for_tuning(self) -> "Job":
        """The job on which a setting is chosen: all of it where reading counts, which fewer tokens would overweight."""
        return self.shortened() if self.subtracted_tokens else self


def read_ids(tokenizer: Tokenizer) -> list[int]:
    """The beginning of the test text as one row of token ids."""
    file = data_folder() / "wikitext2" / "test.txt"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise CorpusError(f"bench: no file {missing.filename}; PELLUCID_SHARED names the folder of data/") from missing
    return tokenizer.encode(text[: WINDOW * WINDOWS * 8], add_special_tokens=False).ids


def _paragraphs(tokenizer: Tokenizer) -> list[list[int]]:
    """The beginnings of sixteen paragraphs, 8 to 60 tokens long."""
    lines = (data_folder() / "wikitext2" / "test.txt").read_text(encoding="utf-8").splitlines()
    rows = (tokenizer.encode(line.strip(), add_special_tokens=False).ids for line in lines if len(line) > 400)
    step = (LONGEST - SHORTEST) / (TEXTS - 1)
    lengths = [SHORTEST + round(step * (i * 7 % TEXTS)) for i in range(TEXTS)]  # short and long ones alternate
    return [row[:length] for row, length in zip(rows, lengths)]


def read_jobs(checkpoint: Path, quick: bool) -> tuple[dict[str, Job], list[list[int]]]:
    """The jobs by the letter of their part, and the windows for perplexity."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids, prompt = read_ids(tokenizer), tokenizer.encode(SENTENCE, add_special_tokens=False).ids
    jobs = {
        "a": Job("one text", [prompt], 136, subtracted_tokens=8),
        "b": Job("sixteen texts at once", _paragraphs(tokenizer), 64),
        "c": Job("first token", [ids[:LONG_PROMPT]], 1),
        "d": Job("memory", [prompt], 128),
    }
    windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(WINDOWS)]
    return (_quick(jobs), [windows[0][:200]]) if quick else (jobs, windows)


def _quick(jobs: dict[str, Job]) -> dict[str, Job]:
    """Smaller jobs for a trial run, whose measurements mean nothing."""
    sizes = {"a": (1, 24), "b": (5, 8), "c": (1, 1), "d": (1, 16)}
    return {
        part: replace(
            job,
            prompts=[prompt[:200] for prompt in job.prompts[: sizes[part][0]]],
            new_tokens=sizes[part][1],
            attempts=1,
        )
        for part, job in jobs.items()
    }
