"""From options by name to the chain of rules that is applied before each choice."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import Argument, InputError, format_count, join_names, shorten
from pellucid.generation.options import ValueParser
from pellucid.generation.progress import GenerationProgress

Rule = Callable[[Tensor, GenerationProgress], Tensor]
"""(Float[Tensor, "rows vocab"], what is written)  ->  the same shape; what it is given stays as it is"""


@dataclass(frozen=True)
class Option:
    """One option of a rule.

    parse: checks a value.  sampling: whether it means something only where the next token is drawn.
    """

    rule: Callable[..., Tensor]
    default: Any
    sampling: bool
    parse: ValueParser


OPTIONS: dict[str, Option] = {}
"""Every option by its name, in the order of the chain."""

_RULES: dict[Callable[..., Tensor], list[str]] = {}
"""Every rule in the order of the chain, and the options that it takes."""


def rule(*, sampling: bool = False) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Makes a function part of the chain, behind those that stand before it.

    Its keyword arguments are its options, each annotated with its reading: `Annotated[float, number(above=0)]`. One
    without a reading is the option of an earlier rule, whose value this one takes too.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        parameters = inspect.signature(function).parameters.values()
        options = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        for option in options:
            if readings := getattr(option.annotation, "__metadata__", ()):
                OPTIONS[option.name] = Option(function, option.default, sampling, readings[0])
        _RULES[function] = [option.name for option in options]
        return function

    return register


def chain(options: Mapping[str, Any], *, sampling: bool, vocab_size: int | None = None) -> tuple[Rule, ...]:
    """The rules that these options ask for, in order: those with an option that differs from its default.

    options: by name; None means "as if not asked", and names that are no option of a rule are somebody else's.
    vocab_size: where it is given, ids of tokens are checked against it.
    Raises InputError for a value that an option cannot have, and for options of drawing where nothing is drawn.
    """
    values: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        if options.get(name) is not None:
            value = option.parse(name, options[name], vocab_size)
            if value != option.default:
                values[name] = value
                if option.sampling and not sampling:
                    argument, wrong = Argument(name), f" is {shorten(repr(value))} and nothing is sampled: pass "
                    raise InputError(argument, wrong, Argument("do_sample", True), ", or leave ", argument, " out")
    requested = {OPTIONS[name].rule for name in values}
    return tuple(
        functools.partial(function, **{name: values[name] for name in names if name in values})
        for function, names in _RULES.items()
        if function in requested
    )


def apply(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> Tensor:
    """The logits after all rules, Float[Tensor, "rows vocab"].

    Raises InputError where they leave a text no token to choose, with the options that took the last ones, and for a
    rule that gives no logits.
    """
    if not rules:
        return logits
    ruled, max_logits = apply_with_max(rules, logits, progress)
    empty = max_logits == -torch.inf
    if bool(empty.any()) and (names := _forbidding_options(rules, logits, progress, empty)):
        wrong = (
            f"after {format_count(progress.new, 'token')} no token is left to choose, because of {join_names(names)}"
        )
        raise InputError(f"{wrong}: leave one of them out" if len(names) > 1 else wrong)
    return ruled


def apply_with_max(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> tuple[Tensor, Tensor]:
    """The logits after all rules, Float[Tensor, "rows vocab"], also where they leave a row no token; and the greatest
    of each row, Float[Tensor, "rows"].

    Raises InputError for a rule that gives anything else, or NaN or inf, which would be an answer like any other.
    """
    ruled = logits
    for one in rules:
        ruled = one(ruled, progress)
        if wrong := _describe_invalid_logits(ruled, logits):
            raise InputError(f"the rule {join_names(_names(one))} gives {wrong}, expected logits {tuple(logits.shape)}")
    max_logits = ruled.amax(dim=-1)
    if not bool((max_logits < torch.inf).all()) and (names := _overflowing_options(rules, logits, progress)):
        raise InputError(f"the rule {join_names(names)} gives NaN or inf after {format_count(progress.new, 'token')}")
    return ruled, max_logits


def _describe_invalid_logits(ruled: Any, logits: Tensor) -> str:
    """What a rule gave in place of logits; "" where it gave such."""
    if not isinstance(ruled, Tensor):
        return type(ruled).__name__
    has_same_layout = ruled.layout == logits.layout and ruled.device == logits.device
    if has_same_layout and ruled.shape == logits.shape and ruled.is_floating_point():
        return ""
    layout_note = "" if has_same_layout else f", {ruled.layout}, on {ruled.device}"
    return f"{tuple(ruled.shape)} of {ruled.dtype}{layout_note}"


def _overflowing_options(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> list[str]:
    """What the rule is known by that makes the first NaN or inf; all of them where none does so again, and none where
    the model itself does."""
    if _overflows(logits):
        return []
    for one in rules:
        logits = one(logits, progress)
        if _overflows(logits):
            return _names(one)
    return [name for one in rules for name in _names(one)]


def _overflows(logits: Tensor) -> bool:
    return not bool((logits.amax(dim=-1) < torch.inf).all())


def _forbidding_options(
    rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress, empty: Tensor
) -> list[str]:
    """The options of the rules that forbade tokens to the empty rows, of those alone without which some are left, where
    there are such; a stranger's rule by its own name."""
    found, ruled = [], logits
    for one in rules:
        before, ruled = ruled, one(ruled, progress)
        if bool(((ruled == -torch.inf) & (before != -torch.inf))[empty].any()):
            found.append(one)
    alone = [
        one for one in found if not _leaves_no_token([other for other in rules if other is not one], logits, progress)
    ]
    return list(dict.fromkeys(name for one in alone or found for name in _names(one)))


def _leaves_no_token(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> bool:
    for one in rules:
        logits = one(logits, progress)
    return bool((logits.amax(dim=-1) == -torch.inf).any())


def _names(rule: Rule) -> list[str]:
    """What a rule is known by: its options, or a stranger's own name."""
    if isinstance(rule, functools.partial):
        return list(rule.keywords) if any(one is rule.func for one in _RULES) else _names(rule.func)
    return [getattr(rule, "__name__", repr(rule))]
