"""How it is learned: everything about a training that is not the task and not the data, as one frozen record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from pellucid.config.checks import check_bool, check_choice, check_count, check_range
from pellucid.errors import Argument, InputError, did_you_mean
from pellucid.training.schedule import SCHEDULES

PRECISIONS = ("auto", "float32", "bfloat16")
ADAPTED = 10
"""Adapters of low rank learn best at some ten times the rate of the whole (1e-3 for 1e-4 on SST-2)."""

_OF_ADAPTERS = ("adapter_only", "lora_alpha", "lora_targets", "lora_beside", "adapter_dtype")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training; an objective names others as its defaults.

    epochs: how often every example is read.  max_steps: so many steps in place of these, be they fewer or more.
    batch_size: examples of one step, of all pieces and processes together.  tokens_per_batch: where no batch_size is
        given, positions of one step after padding; texts of like length stand together.
    accumulation: a step is computed in so many pieces, one after the other; the result is the same.
    learning_rate: the greatest.  warmup: steps from 0 up to it, or below 1 the share of all steps.
    schedule: how it falls afterwards, see `pellucid.training.schedule`.  floor: the share of it that stays.
    weight_decay, beta1, beta2, epsilon: of AdamW (Loshchilov and Hutter, 2017, arXiv:1711.05101); tables alone decay.
    clip: the greatest norm of all gradients together; 0 for no limit.
    dropout, attention_dropout: shares that are dropped of the stream and of attention's weights; None for what the
        checkpoint says.
    precision: "float32", "bfloat16" (products alone; numbers are kept and changed in float32), or "auto" for the
        fastest that is safe here.
    evaluate_every: steps from one evaluation on the held-out examples to the next; None for once an epoch.
    patience: ends after so many evaluations without a better one; None for never.  keep_best: the best numbers are the
        result, not the last.
    save_every: steps from one state that a broken training goes on from to the next; None for each evaluation
        that comes half a minute or more after the last one.
    freeze: names of parameters that do not learn ("embeddings.*", "layers.0.*").
    activation_checkpointing: layers are computed again on the way back, for less memory.
    lora: the rank of adapters that learn in place of the tables, see `pellucid.training.low_rank`; None for none. Where
        no learning rate is said, it is then ten times the task's own.
    lora_alpha: what they add is multiplied by lora_alpha / lora; None for twice the rank.
    lora_targets: the linear maps that get one, by path or the end of it, with `*` for anything; "all-linear" for all
        but the head's.  lora_beside: names of parameters that learn as well; the head always does.
    adapter_only: what is written is the adapter, in PEFT's format, and not the whole model.  adapter_dtype: of its
        numbers there, "float32" or "bfloat16".
    seed: of the order, of dropout, and of whatever is new.
    """

    epochs: int = 3
    max_steps: int | None = None
    batch_size: int | None = None
    tokens_per_batch: int = 2048
    accumulation: int = 1
    learning_rate: float = 5e-5
    warmup: float = 0.1
    schedule: str = "linear"
    floor: float = 0.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float = 1.0
    dropout: float | None = None
    attention_dropout: float | None = None
    precision: str = "auto"
    evaluate_every: int | None = None
    patience: int | None = None
    keep_best: bool = True
    save_every: int | None = None
    freeze: tuple[str, ...] = ()
    activation_checkpointing: bool = False
    lora: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ("all-linear",)
    lora_beside: tuple[str, ...] = ()
    adapter_only: bool = False
    adapter_dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "tokens_per_batch", "accumulation"):
            check_count(name, getattr(self, name))
        for name in ("max_steps", "batch_size", "evaluate_every", "patience", "save_every"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), most=1_000_000_000)
        check_count("seed", self.seed, most=2**63 - 1, least=0)
        check_range("learning_rate", self.learning_rate, least=0.0, most=100.0)
        check_range("warmup", self.warmup, least=0.0, most=1e9)
        if self.warmup >= 1 and self.warmup != math.floor(self.warmup):
            raise InputError(f"warmup is {self.warmup}, expected a share below 1, or a whole number of steps")
        for name in ("floor", "weight_decay"):
            check_range(name, getattr(self, name), least=0.0, most=1.0)
        for name in ("beta1", "beta2"):
            check_range(name, getattr(self, name), least=0.0, below=1.0)
        check_range("epsilon", self.epsilon, above=0.0, most=1.0)
        check_range("clip", self.clip, least=0.0, most=1e9)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), least=0.0, most=0.999)
        check_choice("schedule", self.schedule, SCHEDULES)
        if self.floor and self.schedule == "constant":
            raise InputError(
                "floor is the last rate of a schedule that falls, and schedule is 'constant': leave one out"
            )
        check_choice("precision", self.precision, PRECISIONS)
        for name in ("keep_best", "activation_checkpointing", "adapter_only"):
            check_bool(name, getattr(self, name))
        self._check_names("freeze", "parameters, such as ('embeddings.*',)")
        self._check_names("lora_beside", "parameters, such as ('pooler.*',)")
        self._check_names("lora_targets", "linear maps, such as ('query', 'value')")
        self._check_adapter()

    def _check_names(self, name: str, what: str) -> None:
        names = getattr(self, name)
        if not isinstance(names, tuple) or not all(type(one) is str and one for one in names):
            raise InputError(f"{name} is {names!r}, expected names of {what}")

    def _check_adapter(self) -> None:
        check_choice("adapter_dtype", self.adapter_dtype, ("float32", "bfloat16"))
        if self.lora is not None:
            check_count("lora", self.lora, most=100_000)
        elif lone := [name for name in _OF_ADAPTERS if getattr(self, name) != getattr(Settings, name)]:
            raise InputError(
                f"{lone[0]} is set and lora is not: give the rank of the adapter, such as ", Argument("lora", 8)
            )
        if self.adapter_dtype != "float32" and not self.adapter_only:
            only = Argument("adapter_only", True)
            raise InputError("adapter_dtype is for a folder that holds the adapter alone: pass ", only)
        if self.lora_alpha is not None:
            check_range("lora_alpha", self.lora_alpha, above=0.0, most=1e6)
        if not self.lora_targets:
            raise InputError("lora_targets is empty, expected names of linear maps, such as ('query', 'value')")

    @classmethod
    def of(cls, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Self:
        """Settings by name, over the defaults of an objective. Raises InputError for a name that is none."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"unknown setting {name!r}{did_you_mean(name, known)}: one of {', '.join(known)}")
        if options.get("lora") is not None:
            defaults = {**defaults, "learning_rate": ADAPTED * defaults.get("learning_rate", cls.learning_rate)}
        if "tokens_per_batch" in options:  # over a number of examples that nobody said
            defaults = {name: value for name, value in defaults.items() if name != "batch_size"}
        return replace(cls(), **{**defaults, **options})

    def warmup_steps(self, steps: int) -> int:
        """How many of `steps` the rate rises; never all of them, since it begins at nothing."""
        requested = math.ceil(self.warmup * steps) if self.warmup < 1 else int(self.warmup)
        return min(requested, steps - 1)
