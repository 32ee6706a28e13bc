"""Generation settings: as requested, else those of the checkpoint, else our defaults."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pellucid.config.checks import check_bool, check_count, check_range, is_one_of, value_error
from pellucid.errors import Argument, InputError, Placeholder, did_you_mean, shorten
from pellucid.generation.options import token_id
from pellucid.generation.rules import OPTIONS, Rule, chain

log = logging.getLogger("pellucid")

CONFLICT_NOTE = "do_sample and num_beams do not go together, and %s: this %s"
"""Warning that one of the two is ignored: where they are from, and what is done."""

MAX_STOPS, MAX_STOP_LENGTH = 64, 1_000


@dataclass(frozen=True)
class Settings:
    """Settings of text generation.

    max_new_tokens: maximum number of tokens to generate.
    max_time: seconds after which no further token is chosen, counting the reading of prompts, but at least one per
        prompt; shared by all prompts of a call, and in a task by those in the same batch.
    do_sample: whether to sample the next token by its probability; else the likeliest is taken.
    seed: of sampling. The same seed gives the same text, in float32 and float64 whatever the rest of the batch is; in
        narrower dtypes, the batch may change rounding. None draws one; a CPU `torch.Generator` gives each text its own.
    num_beams: number of beams; 1 for no beam search.
    length_penalty: a finished text of n tokens is scored by its log-probability / n^length_penalty (beam search only).
    early_stopping: True ends a search with as many finished texts as beams, False when no better one is likely, "never"
        when none is possible (beam search only).
    num_return_sequences: number of texts per prompt.
    stop: texts at which generation ends, or the text of one special token; they are not part of the answer.
    stop_token_ids: tokens at which generation ends, besides the model's own end tokens.
    rules: functions applied to the logits before each choice, in this order.
    """

    max_new_tokens: int = 256
    max_time: float | None = None
    do_sample: bool = False
    seed: int | torch.Generator | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_return_sequences: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens)
        if self.max_time is not None:
            check_range("max_time", self.max_time, above=0)
        check_bool("do_sample", self.do_sample)
        if isinstance(self.seed, torch.Generator) and self.seed.device.type != "cpu":
            raise InputError(f"seed is a source of {self.seed.device}, expected one of the CPU, or a number")
        if self.seed is not None and not isinstance(self.seed, torch.Generator):
            check_count("seed", self.seed, maximum=2**63 - 1, minimum=0)
        check_beams(self.num_beams)
        check_range("length_penalty", self.length_penalty, minimum=-10, maximum=50)
        early = self.early_stopping
        if type(early) is not bool and not is_one_of(early, "never"):
            raise value_error("early_stopping", early, "true, false or 'never'")
        check_count("num_return_sequences", self.num_return_sequences, maximum=1_000)
        _check_lists(vars(self))
        self._check_stops()
        self._check_compatible()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InputError(f"stop holds {len(self.stop)} texts, expected at most {MAX_STOPS}")
        for text in self.stop:
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
                value = f"a text of {len(text):,} characters" if isinstance(text, str) else shorten(repr(text))
                raise InputError(
                    Argument("stop"), f" holds {value}, expected texts of 1 to {MAX_STOP_LENGTH:,} characters"
                )
        _check_tokens(self.stop_token_ids, None)

    def _check_compatible(self) -> None:
        if self.do_sample and self.num_beams > 1:
            both = Argument("do_sample", True), " and ", Argument("num_beams", self.num_beams)
            raise InputError(both, " do not go together: sample, or use beam search")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise InputError(
                f"num_return_sequences is {self.num_return_sequences} and ",
                Argument("num_beams"),
                f" {self.num_beams}: beam search returns at most as many texts as beams; raise ",
                Argument("num_beams"),
                ", or sample with ",
                Argument("do_sample", True),
            )


SAMPLING = tuple(name for name, option in OPTIONS.items() if option.sampling)
"""Options of rules that only affect sampling, in the order of the chain."""

_LIST_OPTIONS = {"stop": "texts", "stop_token_ids": "ids of tokens", "rules": "rules"}
_FIELD_NAMES = [field.name for field in dataclasses.fields(Settings)]
_BEAM_OPTIONS = ("length_penalty", "early_stopping")
_FOREIGN_NAMES = {
    **dict.fromkeys(("max_length", "max_tokens"), "max_new_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequence", "stop_sequences"), "stop"),
    "eos_token_id": "stop_token_ids",
    "num_sequences": "num_return_sequences",
}
"""Other libraries' names of our options, where these are not similar."""


def option_names() -> list[str]:
    """Names of all generation options."""
    return [*_FIELD_NAMES, *OPTIONS]


def read_settings(
    arguments: Mapping[str, Any],
    from_checkpoint: Mapping[str, Any] | None = None,
    *,
    defaults: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
) -> Settings:
    """Returns settings from options by name: `arguments`, else those `from_checkpoint`, else `defaults`.

    A value of None counts as not given. vocab_size: if given, token ids are checked against it.
    Raises InputError for an unknown name, a value out of range, and options that contradict each other.
    """
    for name in arguments:
        if name not in option_names():
            hint = (
                f" (did you mean {_FOREIGN_NAMES[name]}?)"
                if name in _FOREIGN_NAMES
                else did_you_mean(name, option_names())
            )
            raise InputError(f"there is no generation option {shorten(repr(name))}{hint}")
    check_types(arguments)
    requested = {name: value for name, value in arguments.items() if value is not None}
    options = {name: value for name, value in (from_checkpoint or {}).items() if value not in ([], {}, None)}
    usual = dict(defaults or {})
    if (options | requested).get("do_sample"):
        usual.pop("num_beams", None)
    options = _without_conflicts(usual | options, requested) | requested
    if options.get("num_beams", 1) == 1:
        for name in _BEAM_OPTIONS:
            if name in requested:
                wrong = f"{name} is {shorten(repr(requested[name]))} and there are no beams: pass "
                raise InputError(wrong, Argument("num_beams", Placeholder("N")), ", or leave it out")
            options.pop(name, None)
    field_values = {
        name: _as_tuple(name, options[name]) for name in options if name in _FIELD_NAMES and name != "rules"
    }
    rules = chain(options, sampling=bool(field_values.get("do_sample")), vocab_size=vocab_size)
    settings = Settings(**field_values, rules=(*rules, *requested.get("rules", ())))
    _check_has_effect(requested, settings)
    _check_tokens(settings.stop_token_ids, vocab_size)
    return settings


def _check_has_effect(requested: Mapping[str, Any], settings: Settings) -> None:
    """Refuses requested options that would have no effect."""
    if "seed" in requested and not settings.do_sample:
        argument, wrong = Argument("seed"), f" is {shorten(repr(requested['seed']))} and nothing is sampled: pass "
        raise InputError(argument, wrong, Argument("do_sample", True), ", or leave ", argument, " out")
    min_new_tokens, max_new_tokens = requested.get("min_new_tokens"), settings.max_new_tokens
    if isinstance(min_new_tokens, int) and min_new_tokens > max_new_tokens:
        advice = f" {max_new_tokens}: raise the one, or lower the other"
        raise InputError(Argument("min_new_tokens"), f" is {min_new_tokens} and ", Argument("max_new_tokens"), advice)
    if min_new_tokens is not None and requested.get("min_length"):
        argument, wrong = Argument("min_length"), f" is {shorten(repr(requested['min_length']))} and "
        advice = " takes its place: leave one of them out"
        raise InputError(argument, wrong, Argument("min_new_tokens"), advice)


def check_beams(num_beams: Any) -> None:
    """Checks the number of beams."""
    check_count("num_beams", num_beams, maximum=1_000)


def check_types(requested: Mapping[str, Any]) -> None:
    """Checks the types of option values."""
    values = {name: value for name, value in requested.items() if value is not None}
    if "num_beams" in values:
        check_beams(values["num_beams"])
    if "do_sample" in values:
        check_bool("do_sample", values["do_sample"])
    _check_lists({name: _as_tuple(name, value) for name, value in values.items()})


def _check_lists(values: Mapping[str, Any]) -> None:
    for name, kind in _LIST_OPTIONS.items():
        if not isinstance(values.get(name, ()), list | tuple):
            raise InputError(f"{name} is {type(values[name]).__name__}, expected a list of {kind}")
    if not all(callable(rule) for rule in values.get("rules", ())):
        raise InputError("rules hold something that cannot be called, expected functions of logits and what is written")


def _check_tokens(stops: Sequence[int], vocab_size: int | None) -> None:
    for i, stop in enumerate(stops):
        token_id(f"stop_token_ids[{i}]", stop, vocab_size)


def _without_conflicts(from_checkpoint: dict[str, Any], requested: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's options, without those that conflict with the requested ones."""
    both, chosen = from_checkpoint | requested, requested.keys() & {"do_sample", "num_beams"}
    num_beams = both.get("num_beams", 1)
    if both.get("do_sample") and type(num_beams) is int and num_beams > 1 and len(chosen) < 2:
        gives_way, does = ("num_beams", "draws") if requested.get("do_sample") else ("do_sample", "searches")
        log.warning(CONFLICT_NOTE, f"the checkpoint says {'one of them' if chosen else 'both'}", does)
        del from_checkpoint[gives_way]
        both = from_checkpoint | requested
    num_beams, draws = both.get("num_beams", 1), both.get("do_sample", False)
    texts = from_checkpoint.get("num_return_sequences")
    searches = not draws and chosen and "num_return_sequences" not in requested
    if searches and type(texts) is type(num_beams) is int and texts > num_beams:
        log.warning("the checkpoint says num_return_sequences %d, and this call gives at most %d", texts, num_beams)
        from_checkpoint["num_return_sequences"] = num_beams
    if not draws:
        return {name: value for name, value in from_checkpoint.items() if name not in SAMPLING}
    return from_checkpoint


def _as_tuple(name: str, value: Any) -> Any:
    if name not in ("stop", "stop_token_ids"):
        return value
    if isinstance(value, str if name == "stop" else int):
        return (value,)
    is_sequence = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)
    return tuple(value) if is_sequence else value
