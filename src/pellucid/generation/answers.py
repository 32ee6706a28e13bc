"""What writing gives: a whole answer, a piece of one while it is written, and how likely it all was."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pellucid.errors import counted
from pellucid.text import Tokenizer, tokens_of


class Alternative(NamedTuple):
    """A token that could have stood there, and the logarithm of its probability."""

    token: str
    id: int
    log_probability: float


@dataclass(frozen=True)
class Piece:
    """One token more of an answer that is being written.

    text: the characters that are certain by now and were not given before, often none; the texts of all pieces joined
        are the answer.
    id, token: the token, and how the vocabulary writes it.
    log_probability: what the model gave this token, before any rule.
    alternatives: the likeliest tokens in its place, itself perhaps among them, as far as they were asked for.
    finish_reason: with the last piece "end" (an end token), "stop", "length" or "time"; else None.
    """

    text: str
    id: int
    token: str
    log_probability: float
    alternatives: tuple[Alternative, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class Completion:
    """An answer and how it came about.

    text: without special tokens, and up to a stop.
    ids, tokens: all that was chosen, an end token or a stop included; tokens as the vocabulary writes them.
    log_probabilities: what the model gave each of them, before any rule.
    finish_reason: "end" (an end token), "stop", "length" or "time".
    alternatives: for each token the likeliest in its place, as far as they were asked for.
    score: by which a search ranks it; None where nothing was searched.
    sequences: all answers to the prompt, this one first; of a search the best first, else as they were drawn.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    finish_reason: str
    alternatives: tuple[tuple[Alternative, ...], ...] = ()
    score: float | None = None
    sequences: tuple["Completion", ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 80 else f"{self.text[:79]}…"
        score = "" if self.score is None else f", score {self.score:.3f}"
        more = f", {len(self.sequences)} sequences" if len(self.sequences) > 1 else ""
        return (
            f"Completion({text!r}, {counted(len(self.ids), 'token')}, ends by {self.finish_reason!r}, "
            f"log-probability {sum(self.log_probabilities):.2f}{score}{more})"
        )


def named(words: Tokenizer, likely: Sequence[tuple[int, float]]) -> tuple[Alternative, ...]:
    """The likeliest tokens in a place by their names."""
    tokens = tokens_of(words, [i for i, _ in likely])
    return tuple(Alternative(token, i, number) for token, (i, number) in zip(tokens, likely))
