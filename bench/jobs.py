"""What the writing benchmark asks for: the prompts of each part, all out of wikitext2, as ids of the model's tokens."""

from dataclasses import dataclass, replace
from pathlib import Path

from corpus import CorpusError, data_folder
from tokenizers import Tokenizer

SENTENCE = "The printing press changed the way in which people in Europe"
WINDOW, WINDOWS = 1024, 8
AT_ONCE, SHORTEST, LONGEST = 16, 8, 60
FIRST = 1000  # tokens of the prompt whose first token is waited for


@dataclass(frozen=True)
class Job:
    """Prompts, and how many tokens each side writes behind each of them: the likeliest ones, ends forbidden.

    less: the time for so many tokens is taken off, which leaves that of the later steps alone.
    turns: how often a disturbed measurement is tried.
    """

    name: str
    prompts: list[list[int]]
    new: int
    less: int = 0
    turns: int = 3

    @property
    def counted(self) -> int:
        """Tokens that the measured time stands for."""
        return len(self.prompts) * (self.new - self.less)

    @property
    def positions(self) -> int:
        """Room that the longest text needs."""
        return max(map(len, self.prompts)) + self.new

    def short(self) -> "Job":
        """The same with a quarter of the tokens, for warming up."""
        return replace(self, new=min(self.new, self.less + max(1, (self.new - self.less) // 4)))

    def tried(self) -> "Job":
        """What a setting is chosen by: the whole job where reading counts, since fewer tokens would favour reading."""
        return self.short() if self.less else self


def read_ids(tokenizer: Tokenizer) -> list[int]:
    """The beginning of the text as one row of tokens."""
    file = data_folder() / "wikitext2" / "test.txt"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise CorpusError(f"bench: no file {missing.filename}; PELLUCID_SHARED names the folder of data/") from missing
    return tokenizer.encode(text[: WINDOW * WINDOWS * 8], add_special_tokens=False).ids


def _paragraphs(tokenizer: Tokenizer) -> list[list[int]]:
    """Sixteen beginnings of paragraphs, 8 to 60 tokens long."""
    lines = (data_folder() / "wikitext2" / "test.txt").read_text(encoding="utf-8").splitlines()
    rows = (tokenizer.encode(line.strip(), add_special_tokens=False).ids for line in lines if len(line) > 400)
    step = (LONGEST - SHORTEST) / (AT_ONCE - 1)
    lengths = [SHORTEST + round(step * (i * 7 % AT_ONCE)) for i in range(AT_ONCE)]  # short and long ones mixed
    return [row[:length] for row, length in zip(rows, lengths)]


def read_jobs(checkpoint: Path, quick: bool) -> tuple[dict[str, Job], list[list[int]]]:
    """The jobs by the letter of their part, and the windows for perplexity."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ids, one = read_ids(tokenizer), tokenizer.encode(SENTENCE, add_special_tokens=False).ids
    jobs = {
        "a": Job("one text", [one], 136, less=8),
        "b": Job("sixteen texts at once", _paragraphs(tokenizer), 64),
        "c": Job("first token", [ids[:FIRST]], 1),
        "d": Job("memory", [one], 128),
    }
    windows = [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(WINDOWS)]
    return (_fewer(jobs), [windows[0][:200]]) if quick else (jobs, windows)


def _fewer(jobs: dict[str, Job]) -> dict[str, Job]:
    """The same for a try: whatever is measured with these says nothing."""
    few = {"a": (1, 24), "b": (5, 8), "c": (1, 1), "d": (1, 16)}
    return {
        part: replace(job, prompts=[prompt[:200] for prompt in job.prompts[: few[part][0]]], new=few[part][1], turns=1)
        for part, job in jobs.items()
    }
