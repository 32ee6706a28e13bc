"""The settings of a training run, everything but task and data, as one frozen record."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from pellucid.config.checks import check_bool, check_choice, check_count, check_range
from pellucid.errors import Argument, InputError, shorten
from pellucid.training.schedule import SCHEDULES

PRECISIONS = ("auto", "float32", "bfloat16")
LORA_RATE_FACTOR = 10
"""Low-rank adapters train best at about ten times the learning rate of the whole model (1e-3 for 1e-4 on SST-2)."""

_OF_ADAPTERS = ("adapter_only", "lora_alpha", "lora_targets", "lora_beside", "adapter_dtype")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training run; an objective may override the defaults.

    epochs: passes over all examples.  max_steps: number of steps in place of epochs, fewer or more.
    batch_size: examples per step, over all micro-batches and processes.  tokens_per_batch: without a batch_size,
        positions per step including padding; texts of similar length are batched together.
    accumulation: micro-batches per process into which a step is split, computed in turn; the result is the same.
    learning_rate: its maximum.  warmup: steps in which it rises from 0, or below 1 their share of all steps.
    schedule: how it falls afterwards, see `pellucid.training.schedule`.  floor: share of the maximum at which it ends.
    weight_decay, beta1, beta2, epsilon: of AdamW (Loshchilov and Hutter, 2017, arXiv:1711.05101); only matrices decay.
    clip: maximum norm of all gradients together; 0 for no limit.
    dropout, attention_dropout: probabilities for hidden states and for attention weights; None for the checkpoint's.
    precision: "float32", "bfloat16" (matrix products only; weights are kept and updated in float32), or "auto" for the
        fastest that is safe on this machine.
    evaluate_every: steps between evaluations on the held-out examples; None for once an epoch.
    patience: stops after so many evaluations without improvement; None for never.  keep_best: the result has the best
        weights, not the last.
    save_every: steps between saved states, from which an interrupted run resumes; None for each evaluation or end of an
        epoch that comes half a minute or more after the last state.
    freeze: names of parameters that are not trained ("embeddings.*", "layers.0.*").
    activation_checkpointing: recomputes layers in the backward pass to save memory.
    lora: rank of the adapters that are trained in place of the weight matrices, see `pellucid.training.low_rank`; None
        for none. The default learning rate is then ten times the task's own.
    lora_alpha: the adapters' product is scaled by lora_alpha / lora; None for twice the rank.
    lora_targets: the linear layers that get an adapter, by path or its end, with `*` for anything; "all-linear" for all
        but the head's.  lora_beside: names of parameters that are trained as well; the head always is.
    adapter_only: saves the adapter alone, in PEFT's format, not the whole model.  adapter_dtype: of its saved weights,
        "float32" or "bfloat16".
    seed: of the order of examples, of dropout, and of new weights.
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
                check_count(name, getattr(self, name), maximum=1_000_000_000)
        check_count("seed", self.seed, maximum=2**63 - 1, minimum=0)
        check_range("learning_rate", self.learning_rate, minimum=0.0, maximum=100.0)
        check_range("warmup", self.warmup, minimum=0.0, maximum=1e9)
        if self.warmup >= 1 and self.warmup != math.floor(self.warmup):
            raise InputError(f"warmup is {self.warmup}, expected a share below 1, or a whole number of steps")
        for name in ("floor", "weight_decay"):
            check_range(name, getattr(self, name), minimum=0.0, maximum=1.0)
        for name in ("beta1", "beta2"):
            check_range(name, getattr(self, name), minimum=0.0, below=1.0)
        check_range("epsilon", self.epsilon, above=0.0, maximum=1.0)
        check_range("clip", self.clip, minimum=0.0, maximum=1e9)
        for name in ("dropout", "attention_dropout"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), minimum=0.0, maximum=0.999)
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
            raise InputError(f"{name} is {shorten(repr(names))}, expected names of {what}")

    def _check_adapter(self) -> None:
        check_choice("adapter_dtype", self.adapter_dtype, ("float32", "bfloat16"))
        if self.lora is not None:
            check_count("lora", self.lora, maximum=100_000)
        elif lone := [name for name in _OF_ADAPTERS if getattr(self, name) != getattr(Settings, name)]:
            raise InputError(
                f"{lone[0]} is set and lora is not: give the rank of the adapter, such as ", Argument("lora", 8)
            )
        if self.adapter_dtype != "float32" and not self.adapter_only:
            only = Argument("adapter_only", True)
            raise InputError("adapter_dtype is for a folder that holds the adapter alone: pass ", only)
        if self.lora_alpha is not None:
            check_range("lora_alpha", self.lora_alpha, above=0.0, maximum=1e6)
        if not self.lora_targets:
            raise InputError("lora_targets is empty, expected names of linear maps, such as ('query', 'value')")

    @classmethod
    def of(cls, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Self:
        """Settings by name, over the defaults of an objective."""
        if options.get("lora") is not None:
            defaults = {
                **defaults,
                "learning_rate": LORA_RATE_FACTOR * defaults.get("learning_rate", cls.learning_rate),
            }
        if "tokens_per_batch" in options:  # overrides a default batch_size
            defaults = {name: value for name, value in defaults.items() if name != "batch_size"}
        return replace(cls(), **{**defaults, **options})

    def warmup_steps(self, steps: int) -> int:
        """The steps of `steps` in which the learning rate rises; never all of them, since it starts at 0."""
        requested = math.ceil(self.warmup * steps) if self.warmup < 1 else int(self.warmup)
        return min(requested, steps - 1)
