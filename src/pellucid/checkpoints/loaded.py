"""`Loaded`: what every later room works on."""

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from pellucid.blocks.hooks import storage_version
from pellucid.blocks.quantized import low_bit_tensors
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.source import Source
from pellucid.config import Config
from pellucid.config.checks import check_bool, plain_number
from pellucid.config.pooling import Pooling
from pellucid.errors import Argument, InputError, Placeholder
from pellucid.models import Network
from pellucid.text import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A model with everything that belongs to it.

    module: a plain `nn.Module`.
    tokenizer: None where the checkpoint has none; then the model takes ids and no texts.
    target_tokenizer: the tokenizer of an encoder-decoder's output, where it has its own vocabulary; else None.
    pooling: the checkpoint's settings for sentence vectors; None for a plain checkpoint.
    source: where it came from; None for a model that was built, not loaded.
    untrained: names of the parts whose weights are random.
    generation: the checkpoint's generation settings, by the reference's keys.
    initial_versions: address and write count of each weight tensor when it was read or initialised; see
        `storage_versions`.
    initial_samples: for an untrained model, dtype and one value of each parameter.
    """

    module: Network
    config: Config
    family: Family
    tokenizer: Tokenizer | None = None
    target_tokenizer: Tokenizer | None = None
    pooling: Pooling | None = None
    source: Source | None = None
    untrained: tuple[str, ...] = ()
    generation: dict[str, Any] = field(default_factory=dict)
    initial_versions: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    initial_samples: tuple[tuple[torch.dtype, float], ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.initial_versions:
            object.__setattr__(self, "initial_versions", storage_versions(self.module))
            object.__setattr__(self, "initial_samples", _parameter_samples(self.module) if self.untrained else ())

    def set_training(self, mode: object) -> None:
        """Switches between training and evaluation. Raises InputError where `mode` is not true or false."""
        check_bool("mode", mode := plain_number(mode))
        (self.module.require_float("training") if mode else self.module).train(bool(mode))

    def config_bytes(self, **changes: Any) -> bytes:
        """Its `config.json` in a fixed order of keys, for digests, without the dtype, which only a saved model states.
        changes: to its config."""
        keys = self.family.write(self.config.replace(**changes))
        keys = {key: value for key, value in keys.items() if key not in ("dtype", "torch_dtype")}
        return json.dumps(keys, sort_keys=True, default=str).encode()

    @property
    def name(self) -> str:
        """What error sentences call it."""
        return self.source.name if self.source else "this model"

    @property
    def untrained_body(self) -> tuple[str, ...]:
        """The untrained parts that affect a vector: all but head and pooler."""
        return tuple(part for part in self.untrained if not part.startswith(("head", "pooler")))

    def is_untrained(self, name: str) -> bool:
        """Whether a parameter has random weights, by itself or as part of a module that does."""
        return any(part in ("all", name) or name.startswith(f"{part}.") for part in self.untrained)

    @property
    def still_untrained(self) -> tuple[str, ...]:
        """The untrained parts of which no weight has been written since, so that training in a loop of the user's own
        counts. Moved or copied weights are unchanged. "all" goes once any weight is written."""
        names = [name for name, _ in self.module.named_parameters()]
        before = zip(self.initial_versions, self.initial_samples)
        now = zip(storage_versions(self.module), _parameter_samples(self.module))
        changed = [f"{name}." for name, one, other in zip(names, before, now) if _was_changed(one, other)]
        candidates = (part for part in self.untrained if not (changed and part == "all"))
        return tuple(part for part in candidates if not any(name.startswith(f"{part}.") for name in changed))

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises InputError where there is none."""
        if self.tokenizer is None:
            raise InputError(
                f"{self.name} came without a tokenizer, so it cannot read a text: put tokenizer.json into its folder, "
                "or pass ",
                Argument("tokenizer", Placeholder("TOKENIZER")),
                " to pellucid.build; model(ids) alone reads ids",
            )
        return self.tokenizer

    @property
    def required_target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the output: `target_tokenizer` where there is one, else the tokenizer. Raises InputError
        where there is neither."""
        return self.target_tokenizer or self.required_tokenizer

    @property
    def uses_token_types(self) -> bool:
        """Whether the model gets token types (which text of a pair); a tokenizer's files may list no such input."""
        return self.tokenizer is None or self.tokenizer.token_types

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens in one pass: the smaller limit of tokenizer and model, or None for no limit."""
        return self.capped_length(self.tokenizer.model_max_length if self.tokenizer else None)

    def capped_length(self, *limits: int | None) -> int | None:
        """The smallest of these limits and of the one that the model was made for; None where none is set."""
        return min((limit for limit in (*limits, self.config.max_sequence_length) if limit), default=None)

    def pooling_length(self, requested: int | None = None) -> int | None:
        """Maximum number of tokens for the vector of a text: `requested`, else the pooling's, capped at the model's
        limit. A length of the pooling replaces the tokenizer's, as in the reference."""
        if self.pooling and self.pooling.max_length:
            return self.capped_length(requested or self.pooling.max_length)
        return self.capped_length(requested, self.max_length)

    @property
    def padding_id(self) -> int:
        """The padding token: the model's, else the tokenizer's, else 0."""
        own, tokenizer = self.config.pad_token_id, self.tokenizer
        return own if own is not None else (tokenizer.pad_token_id if tokenizer else None) or 0


def _was_changed(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether a parameter was written: by PyTorch's write count, or where that was bypassed (`.data`), by a value.

    Each: (address, number of writes), (dtype, one of its values).
    """
    ((_, writes_before), (kind, number)), ((_, writes), (other_kind, other)) = before, now
    return writes > writes_before or (kind == other_kind and number != other)


def _parameter_samples(module: Network) -> tuple[tuple[torch.dtype, float], ...]:
    """The dtype of each parameter, and its middle value."""
    flat = [one.detach().flatten() for one in module.parameters()]
    return tuple((one.dtype, float(one[len(one) // 2]) if len(one) and not one.is_meta else 0.0) for one in flat)


def storage_versions(module: Network) -> tuple[tuple[int, int], ...]:
    """Address and write count of each weight tensor of a module: equal as long as no weight changes."""
    numbers = (*module.parameters(), *low_bit_tensors(module).values())
    return tuple(map(storage_version, numbers))
