"""The rules of a choice, in the order in which they are applied, which is the reference's.

A rule is a function of the logits (or log-probabilities) of the next token and of what is written so far; its own
options are its keyword arguments, and it takes part where one of them differs from its default. To add a rule, write
the function where it belongs in the order, and its test.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pellucid.errors import InputError
from pellucid.generation.written import Written

Rule = Callable[[Tensor, Written], Tensor]
"""(Float[Tensor, "rows vocab"], what is written)  ->  the same shape, in new memory"""


@dataclass(frozen=True)
class Option:
    """One option of a rule. sampling: it means something only where the next token is drawn."""

    rule: Callable[..., Tensor]
    default: Any
    sampling: bool


OPTIONS: dict[str, Option] = {}
"""Every option by its name, in the order of the chain."""


def rule(*, sampling: bool = False) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Makes a function part of the chain, behind those that stand before it."""

    def entered(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                OPTIONS[name] = Option(function, parameter.default, sampling)
        return function

    return entered


def chain(options: Mapping[str, Any], *, sampling: bool) -> tuple[Rule, ...]:
    """The rules that these options ask for, in order."""
    asked: dict[Callable[..., Tensor], dict[str, Any]] = {}
    for name, option in OPTIONS.items():
        value = options.get(name, option.default)
        if value != option.default:
            if option.sampling and not sampling:
                raise InputError(f"{name} is {value!r} and nothing is drawn: pass do_sample=True, or leave {name} out")
            asked.setdefault(option.rule, {})[name] = value
    return tuple(functools.partial(function, **values) for function, values in asked.items())


@rule(sampling=True)
def tempered(logits: Tensor, written: Written, *, temperature: float = 1.0) -> Tensor:
    """Logits divided by `temperature`: below 1 the likely becomes likelier, above 1 less so."""
    return logits / temperature
