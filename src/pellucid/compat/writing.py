"""The reference's `generate`: ids in, ids out, the prompt before what was written."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.checkpoints.generation import FILE, said_in
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError, several
from pellucid.generation.beam import search
from pellucid.generation.loop import write
from pellucid.generation.rules import OPTIONS
from pellucid.generation.said import settings_of

log = logging.getLogger("pellucid")

DEFAULT_LENGTH = 20
"""New tokens where nobody says how many, as the reference has it."""

_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")


class GenerationConfig:
    """How a model writes where a call does not say: any option of `generate` as an attribute; None is not said."""

    def __init__(self, **said: Any) -> None:
        vars(self).update(said)

    @classmethod
    def of(cls, loaded: Loaded) -> Self:
        """What a checkpoint says: `generation_config.json`, or where there is none its `config.json`."""
        ids = {name: getattr(loaded.config, name) for name in _IDS}
        ids = {name: list(one) if isinstance(one, tuple) else one for name, one in ids.items()}
        own = loaded.generation
        return cls(**own) if own and said_in(own, loaded.config.inert) == FILE else cls(**ids | own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

    def to_dict(self) -> dict[str, Any]:
        """What it says."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"GenerationConfig {json.dumps(self.to_dict(), indent=2)}"


_NOTHING = {"use_cache": True, "output_scores": False, "synced_gpus": False}
"""Options whose usual value changes nothing here; any other is refused."""


def written(loaded: Loaded, input_ids: Tensor, attention_mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Prompts with what the model writes behind them; of an encoder-decoder what its decoder wrote, the start token
    first.

    input_ids: Int[Tensor, "batch seq"], padded on either side.
    options: those of `Model.generate`; `max_length`, which counts the prompt; `pad_token_id` and `eos_token_id`.
    ->  Int[Tensor, "batch*num_return_sequences seq"], padded on the right
    """
    asked = {name: value for name, value in options.items() if name not in _NOTHING or value != _NOTHING[name]}
    pad, end = asked.pop("pad_token_id", None), asked.pop("eos_token_id", loaded.generation.get("eos_token_id"))
    loaded = replace(loaded, config=loaded.config.replace(eos_token_id=tuple(end) if isinstance(end, list) else end))
    ends = loaded.config.end_tokens
    pad = next(
        (i for i in (pad, loaded.generation.get("pad_token_id"), loaded.config.pad_token_id, *ends) if i is not None), 0
    )
    start = getattr(loaded.module, "start_token_id", None)
    given = input_ids.shape[1] if loaded.config.kind == "decoder" else 1
    asked["max_new_tokens"] = _length(asked.pop("max_new_tokens", None), asked.pop("max_length", None), loaded, given)
    if asked.get("do_sample") and "seed" not in asked:
        asked["seed"] = int(torch.randint(2**31, ()))  # torch.manual_seed decides, as it does in the reference
    settings = settings_of(loaded, _useful(asked, loaded.generation))
    mask = attention_mask if attention_mask is not None else _mask(input_ids, loaded.config.pad_token_id, ends)
    prompts = [row[keep.bool()].tolist() for row, keep in zip(input_ids, mask)]
    if settings.num_beams > 1:
        pad = pad or next(iter(ends), 0)  # a search of the reference's takes a padding token of 0 for none
        texts: list[Sequence[int]] = [one.ids for found in search(loaded, prompts, settings) for one in found]
    else:
        drafts: list[list[int]] = [[] for _ in range(len(prompts) * settings.num_return_sequences)]
        for step in write(loaded, prompts, settings):
            for row, token in zip(step.rows, step.tokens):
                drafts[row].append(token)
        texts = list(drafts)
    copies = len(texts) // max(len(prompts), 1)
    before = input_ids.repeat_interleave(copies, dim=0).tolist() if loaded.config.kind == "decoder" else None
    rows = [[*(before[i] if before else [start]), *text] for i, text in enumerate(texts)]
    longest = max(map(len, rows), default=0)
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=input_ids.device)


def _useful(asked: dict[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that mean nothing beside the others; as in the reference, a note is all they are."""
    idle = set() if asked.get("do_sample", said.get("do_sample")) else {n for n in OPTIONS if OPTIONS[n].sampling}
    idle |= {"length_penalty", "early_stopping"} if asked.get("num_beams", said.get("num_beams", 1)) == 1 else set()
    if found := idle & asked.keys():
        log.warning("%s: neither drawn nor searched by, and left out", several(sorted(found)))
    return {name: value for name, value in asked.items() if name not in found}


def _length(new: int | None, whole: int | None, loaded: Loaded, given: int) -> int:
    """How many tokens to write at most."""
    said = loaded.generation
    if new is None and whole is None:
        new, whole = said.get("max_new_tokens"), said.get("max_length")
    if new is not None:
        return new
    if whole is None:
        return DEFAULT_LENGTH
    if type(whole) is not int or whole <= given:
        raise InputError(f"max_length is {whole!r}, and {given} tokens stand already: raise it, or pass max_new_tokens")
    return whole - given


def _mask(ids: Tensor, pad: int | None, ends: tuple[int, ...]) -> Tensor:
    """Which tokens count, where nobody says so: all but padding, if padding is not an end token too."""
    return torch.ones_like(ids) if pad is None or pad in ends else (ids != pad).long()
