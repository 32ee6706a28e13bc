"""What is asked of a writer and what it gives: a whole answer, a piece of one, and how likely it all was."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pellucid.errors import format_count, shorten
from pellucid.text import Tokenizer, tokens_of

Messages = Sequence[Mapping[str, Any]]
"""A conversation: `[{"role": "user", "content": "..."}, ...]`"""


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
        score = "" if self.score is None else f", score {self.score:.3f}"
        more = f", {len(self.sequences)} sequences" if len(self.sequences) > 1 else ""
        return (
            f"Completion({shorten(self.text)!r}, {format_count(len(self.ids), 'token')}, ends by "
            f"{self.finish_reason!r}, log-probability {sum(self.log_probabilities):.2f}{score}{more})"
        )


@dataclass(frozen=True)
class Score:
    """How likely a text is, token by token.

    ids, tokens: the text as the model reads it, its special tokens included, and behind a target the one that ends it;
        tokens as the vocabulary writes them.
    log_probabilities: natural logarithms, as many as tokens. The first token of a decoder's text has None: nothing
        stands before it, and where the tokenizer begins each text with a token of its own, that is the one.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    log_probabilities: tuple[float | None, ...]

    @property
    def total(self) -> float:
        """The logarithm of the probability of the whole text."""
        return math.fsum(p for p in self.log_probabilities if p is not None)

    @property
    def mean(self) -> float:
        """The same, divided by the number of tokens that have a probability."""
        return self.total / sum(p is not None for p in self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """e^-mean: among how many equally likely tokens the model hesitates on average; infinite beyond all floats."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return math.inf

    def __repr__(self) -> str:
        return (
            f"Score({format_count(len(self.ids), 'token')}, total {self.total:.2f}, perplexity {self.perplexity:.2f})"
        )


def as_alternatives(tokenizer: Tokenizer, top_tokens: Sequence[tuple[int, float]]) -> tuple[Alternative, ...]:
    """The likeliest tokens in a place by their names."""
    tokens = tokens_of(tokenizer, [i for i, _ in top_tokens])
    return tuple(Alternative(token, i, number) for token, (i, number) in zip(tokens, top_tokens))
