"""What every later room works on."""

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from pellucid.blocks.hooks import storage_version
from pellucid.blocks.quantized import low_bit_tensors
from pellucid.checkpoints.page import Family
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
    tokenizer: None where the folder has none; then ids can be run and texts cannot.
    target_tokenizer: of what the decoder of an encoder-decoder writes, where it has words of its own; else None.
    pooling: what the checkpoint says about sentence vectors; None for a plain checkpoint.
    source: where it came from; None for a model that was built, not loaded.
    untrained: names of parts whose numbers are random.
    generation: what the checkpoint says about how it writes, by the reference's keys.
    initial_versions: where the numbers stood when they were read or drawn, and how often each was written by then; see
        `storage_versions`.
    initial_samples: of an untrained model the kind and one number of each parameter.
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
        """Training or evaluation, as somebody says. Raises InputError for what is neither true nor false."""
        check_bool("mode", mode := plain_number(mode))
        (self.module.require_float("training") if mode else self.module).train(bool(mode))

    def config_bytes(self, **changes: Any) -> bytes:
        """What `config.json` would say of it, always in the same order, for digests; but for the kind of its numbers,
        which only a saved one tells. changes: of its config."""
        keys = self.family.write(self.config.replace(**changes))
        keys = {key: value for key, value in keys.items() if key not in ("dtype", "torch_dtype")}
        return json.dumps(keys, sort_keys=True, default=str).encode()

    @property
    def name(self) -> str:
        """How a sentence speaks of it."""
        return self.source.name if self.source else "this model"

    @property
    def untrained_body(self) -> tuple[str, ...]:
        """The untrained parts that a vector depends on: a head and a pooler do not count."""
        return tuple(part for part in self.untrained if not part.startswith(("head", "pooler")))

    @property
    def still_untrained(self) -> tuple[str, ...]:
        """The untrained parts of which no number was written since: a loop of one's own does not say what it learns. Of
        what was moved or copied each number is as it was. "all" ends with the first that is written."""
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
        """The tokenizer of what is written: `target_tokenizer`, where there is one. Raises InputError where
        there is none."""
        return self.target_tokenizer or self.required_tokenizer

    @property
    def uses_token_types(self) -> bool:
        """Whether the model is told which text of a pair a token is of; a tokenizer's files may list no such input."""
        return self.tokenizer is None or self.tokenizer.token_types

    @property
    def max_length(self) -> int | None:
        """How many tokens of a text are read at once, by what the tokenizer and the model say; None where neither
        says anything."""
        return self.capped_length(self.tokenizer.model_max_length if self.tokenizer else None)

    def capped_length(self, requested: int | None) -> int | None:
        """So many tokens at once, and no more than the model was made for, whatever its tokenizer says."""
        return min((limit for limit in (requested, self.config.longest) if limit), default=None)

    def pooling_length(self, requested: int | None = None) -> int | None:
        """Tokens that the vector of a text is made of: what was asked for, else what the pooling says, and no more than
        are read at once. What a pooling says stands in the place of the tokenizer's length, as in the reference."""
        pooling_limit = self.pooling.max_length if self.pooling else None
        return (
            self.capped_length(requested or pooling_limit)
            if pooling_limit
            else min((limit for limit in (requested, self.max_length) if limit), default=None)
        )

    @property
    def padding_id(self) -> int:
        """The token that stands where a row has ended: by which the model knows it, else the tokenizer's, else 0."""
        own, tokenizer = self.config.pad_token_id, self.tokenizer
        return own if own is not None else (tokenizer.pad_token_id if tokenizer else None) or 0


def _was_changed(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Whether a parameter was written: by PyTorch's count, or where that was passed by, as `.data` does, by a number.

    Each: (where it stands, how often it was written), (its kind, one of its numbers).
    """
    ((_, writes_before), (kind, number)), ((_, writes), (other_kind, other)) = before, now
    return writes > writes_before or (kind == other_kind and number != other)


def _parameter_samples(module: Network) -> tuple[tuple[torch.dtype, float], ...]:
    """The kind of each parameter, and the number in its middle."""
    flat = [one.detach().flatten() for one in module.parameters()]
    return tuple((one.dtype, float(one[len(one) // 2]) if len(one) and not one.is_meta else 0.0) for one in flat)


def storage_versions(module: Network) -> tuple[tuple[int, int], ...]:
    """Where the numbers of a module stand, and how often each was written: the same as long as nobody changes them."""
    numbers = (*module.parameters(), *low_bit_tensors(module).values())
    return tuple(map(storage_version, numbers))
