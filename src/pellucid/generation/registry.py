"""The registry of rules: from options by name to the chain of rules that is applied before each choice."""

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
"""(Float[Tensor, "rows vocab"], progress)  ->  the same shape; the input is not modified"""


@dataclass(frozen=True)
class Option:
    """One option of a rule.

    parse: checks a value.  sampling: whether it only affects sampling.
    """

    rule: Callable[..., Tensor]
    default: Any
    sampling: bool
    parse: ValueParser


OPTIONS: dict[str, Option] = {}
"""Every option by name, in the order of the chain."""

_RULES: dict[Callable[..., Tensor], list[str]] = {}
"""Every rule in the order of the chain, with the names of its options."""


def rule(*, sampling: bool = False) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Registers a function as the next rule of the chain.

    Its keyword arguments are its options, each annotated with its parser: `Annotated[float, number(above=0)]`. One
    without a parser is an option of an earlier rule, whose value is passed to this one too.
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
    """Returns the rules for these options, in order: those with an option that differs from its default.

    options: by name; None counts as not given, and other names are ignored.
    vocab_size: if given, token ids are checked against it.
    Raises InputError for an invalid value, and for options of sampling if nothing is sampled.
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
    """Returns the logits after all rules, Float[Tensor, "rows vocab"].

    Raises InputError, naming the options at fault, if a row has no token left, and for a rule that returns no logits.
    """
    ruled, max_logits = apply_with_max(rules, logits, progress)
    empty = max_logits == -torch.inf
    if bool(empty.any()) and (names := _forbidding_options(rules, logits, progress, empty)):
        wrong = (
            f"after {format_count(progress.new, 'token')} no token is left to choose, because of {join_names(names)}"
        )
        raise InputError(f"{wrong}: leave one of them out" if len(names) > 1 else wrong)
    return ruled


def apply_with_max(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> tuple[Tensor, Tensor]:
    """Returns the logits after all rules, Float[Tensor, "rows vocab"], even if a row has no token left; and the maximum
    of each row, Float[Tensor, "rows"].

    Raises InputError for a rule that returns anything else, or NaN or inf, which would pass for a normal result.
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
    """Describes what a rule returned instead of logits; "" if it returned logits."""
    if not isinstance(ruled, Tensor):
        return type(ruled).__name__
    has_same_layout = ruled.layout == logits.layout and ruled.device == logits.device
    if has_same_layout and ruled.shape == logits.shape and ruled.is_floating_point():
        return ""
    layout_note = "" if has_same_layout else f", {ruled.layout}, on {ruled.device}"
    return f"{tuple(ruled.shape)} of {ruled.dtype}{layout_note}"


def _overflowing_options(rules: Sequence[Rule], logits: Tensor, progress: GenerationProgress) -> list[str]:
    """Names of the rule that makes the first NaN or inf; all if none does so again, and none if the model does."""
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
    """Options of the rules that forbade tokens of the empty rows: if possible, only those without which tokens are
    left. A custom rule has its own name."""
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
    """Names of a rule: its options, or the function name of a custom rule."""
    if isinstance(rule, functools.partial):
        return list(rule.keywords) if any(one is rule.func for one in _RULES) else _names(rule.func)
    return [getattr(rule, "__name__", repr(rule))]
