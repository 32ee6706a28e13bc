"""Parsers of the rules' options: each checks a value and returns it as its rule takes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.config.checks import check_count, check_range, check_token_id
from pellucid.errors import InputError, MessagePart, shorten
from pellucid.integers import as_integer

ValueParser = Callable[[str, Any, int | None], Any]
"""(name of the option, value, vocabulary size or None)  ->  the value as the rule takes it

Raises InputError for an invalid value.
"""

MAX_BIAS = 1e9


@dataclass(frozen=True, eq=False)
class TokenSequences:
    """Sequences of tokens, all of one length, and the bias of the logit of the token that completes one.

    prefix: Int[Tensor, "count length-1"], the tokens before it.  last: Int[Tensor, "count"], the completing token.
    bias: Float[Tensor, "count"].
    """

    prefix: Tensor
    last: Tensor
    bias: Tensor

    def without(self, tokens: tuple[int, ...]) -> "TokenSequences":
        """Those that are not completed by one of these tokens."""
        kept = ~torch.isin(self.last, torch.tensor(tokens, dtype=torch.long, device="cpu"))
        return TokenSequences(self.prefix[kept], self.last[kept], self.bias[kept])

    def next_completes(self, ids: Tensor) -> Tensor:
        """Which of them the next token could complete.  Int[Tensor, "rows seq"]  ->  Bool[Tensor, "rows count"]"""
        (rows, seq), (many, length) = ids.shape, self.prefix.shape
        if length > seq:
            return ids.new_zeros((rows, many), dtype=torch.bool)
        return (ids[:, None, seq - length :] == self.prefix.to(ids.device)).all(dim=-1)


def number(*, advice: MessagePart = "", **bounds: float) -> ValueParser:
    """A number within the bounds of `check_range`."""

    def parse(name: str, value: Any, vocab_size: int | None) -> float:
        try:
            check_range(name, value, **bounds)
        except InputError as error:
            raise InputError(error, advice) from None
        return float(value)

    return parse


def whole_number(name: str, value: Any, vocab_size: int | None) -> int:
    """An integer from 0 on."""
    return check_count(name, value, minimum=0)


def token_id(name: str, value: Any, vocab_size: int | None) -> int:
    """A token id."""
    number = check_token_id(name, value, vocab_size or 2**31)
    if number is None:
        raise InputError(f"{name} is None, expected the id of a token")
    return number


def token_ids(name: str, value: Any, vocab_size: int | None) -> tuple[int, ...]:
    """A token id, or a list of them."""
    if as_integer(value) is not None:
        return (token_id(name, value, vocab_size),)
    return _ids(name, value, vocab_size)


def forbidden_sequences(name: str, value: Any, vocab_size: int | None) -> tuple[TokenSequences, ...]:
    """[[id, id], [id]]: sequences that must not be completed."""
    _check_some(name, value, list | tuple, "a list of lists of token ids that is not empty")
    return _by_length({_ids(f"{name}[{i}]", ids, vocab_size): -torch.inf for i, ids in enumerate(value)})


def sequence_biases(name: str, value: Any, vocab_size: int | None) -> tuple[TokenSequences, ...]:
    """{(id, id): bias}, or as JSON has it [[[id, id], bias]]."""
    _check_some(name, value, list | tuple | Mapping, "pairs of token ids and their bias, one at least")
    biases: dict[tuple[int, ...], float] = {}
    for i, pair in enumerate(value.items() if isinstance(value, Mapping) else value):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError(
                f"{name}[{i}] is {shorten(repr(pair))}, expected a pair of a list of token ids and their bias"
            )
        ids = _ids(f"the ids of {name}[{i}]", pair[0], vocab_size)
        if ids in biases:
            raise InputError(f"{name} holds {shorten(str(list(ids)))} twice, expected one bias for each sequence")
        biases[ids] = _bias(f"the bias of {name}[{i}]", pair[1])
    return _by_length(biases)


def token_biases(name: str, value: Any, vocab_size: int | None) -> tuple[TokenSequences, ...]:
    """{id: bias}; JSON writes the ids as text."""
    _check_some(name, value, Mapping, "a mapping from token ids to their bias, one at least")
    biases: dict[tuple[int, ...], float] = {}
    for key, bias in value.items():
        plain = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20
        ids = (token_id(f"a key of {name}", int(key) if plain else key, vocab_size),)
        if ids in biases:
            raise InputError(f"{name} holds {ids[0]} twice, expected one bias for each token")
        biases[ids] = _bias(f"{name}[{ids[0]}]", bias)
    return _by_length(biases)


def _ids(name: str, value: Any, vocab_size: int | None) -> tuple[int, ...]:
    _check_some(name, value, list | tuple, "a list of token ids that is not empty")
    return tuple(token_id(f"{name}[{i}]", item, vocab_size) for i, item in enumerate(value))


def _check_some(name: str, value: Any, kind: Any, expected: str) -> None:
    if not isinstance(value, kind) or not value:
        raise InputError(f"{name} is {shorten(repr(value))}, expected {expected}")


def _bias(name: str, value: Any) -> float:
    check_range(name, value, minimum=-MAX_BIAS, maximum=MAX_BIAS)
    return float(value)


def _by_length(biases: Mapping[tuple[int, ...], float]) -> tuple[TokenSequences, ...]:
    lengths: dict[int, list[tuple[int, ...]]] = {}
    for ids in biases:
        lengths.setdefault(len(ids), []).append(ids)
    return tuple(
        TokenSequences(
            prefix=torch.tensor([ids[:-1] for ids in group], dtype=torch.long, device="cpu"),
            last=torch.tensor([ids[-1] for ids in group], device="cpu"),
            bias=torch.tensor([biases[ids] for ids in group], dtype=torch.float64, device="cpu"),
        )
        for _, group in sorted(lengths.items())
    )
