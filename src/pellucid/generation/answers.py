"""Results of generation: a whole answer, a piece of one, and the probabilities of a text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pellucid.errors import format_count, shorten
from pellucid.text import Tokenizer, tokens_of

Messages = Sequence[Mapping[str, Any]]
"""A conversation: `[{"role": "user", "content": "..."}, ...]`"""


class Alternative(NamedTuple):
    """A token that was possible at a position, and its log-probability."""

    token: str
    id: int
    log_probability: float


@dataclass(frozen=True)
class Piece:
    """One more token of an answer that is being generated.

    text: the characters that became certain with this token, often none; the texts of all pieces joined are the answer.
    id, token: the token, and its string in the vocabulary.
    log_probability: of this token in the model, before any rule.
    alternatives: the likeliest tokens in its place, which may include it, as many as requested.
    finish_reason: of the last piece, "end" (an end token), "stop", "length" or "time"; else None.
    """

    text: str
    id: int
    token: str
    log_probability: float
    alternatives: tuple[Alternative, ...] = ()
    finish_reason: str | None = None


@dataclass(frozen=True)
class Completion:
    """An answer, with its tokens and their probabilities.

    text: without special tokens, up to a stop.
    ids, tokens: all chosen tokens, including an end token or a stop; tokens are strings of the vocabulary.
    log_probabilities: of each of them in the model, before any rule.
    finish_reason: "end" (an end token), "stop", "length" or "time".
    alternatives: for each token the likeliest in its place, as many as requested.
    score: the score of a beam search; None without one.
    sequences: all answers to the prompt, this one first; of a beam search in descending order, else as they were
        sampled.
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
    """The log-probabilities of a text, token by token.

    ids, tokens: the text as the model reads it, including its special tokens, and the end token of a target; tokens are
        strings of the vocabulary.
    log_probabilities: natural logarithms, one per token. The first token of a decoder's text has None, since nothing
        comes before it; if the tokenizer adds a token at the beginning, it is that one.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    log_probabilities: tuple[float | None, ...]

    @property
    def total(self) -> float:
        """The log-probability of the whole text."""
        return math.fsum(p for p in self.log_probabilities if p is not None)

    @property
    def mean(self) -> float:
        """The total divided by the number of tokens that have a probability."""
        return self.total / sum(p is not None for p in self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """e^-mean: the number of equally likely tokens that would be as uncertain on average; inf on overflow."""
        try:
            return math.exp(-self.mean)
        except OverflowError:
            return math.inf

    def __repr__(self) -> str:
        return (
            f"Score({format_count(len(self.ids), 'token')}, total {self.total:.2f}, perplexity {self.perplexity:.2f})"
        )


def as_alternatives(tokenizer: Tokenizer, top_tokens: Sequence[tuple[int, float]]) -> tuple[Alternative, ...]:
    """The likeliest tokens at a position, with their strings."""
    tokens = tokens_of(tokenizer, [i for i, _ in top_tokens])
    return tuple(Alternative(token, i, number) for token, (i, number) in zip(tokens, top_tokens))
