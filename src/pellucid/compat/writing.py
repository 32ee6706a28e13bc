"""The reference's `generate`: ids in, ids out, the prompt before what was written."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from pellucid.checkpoints.generation import FILE, said_in
from pellucid.checkpoints.loaded import Loaded
from pellucid.compat.said import Unfollowed, followed
from pellucid.errors import InputError, several
from pellucid.generation.beam import search
from pellucid.generation.loop import Step, write
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


UNFOLLOWED: Unfollowed = {
    **dict.fromkeys(("use_cache", "cache_implementation", "synced_gpus", "tokenizer")),
    **dict.fromkeys(
        ("output_scores", "output_logits", "output_attentions", "output_hidden_states"),
        "model.pellucid.trace_writing(prompt) shows every step",
    ),
    **dict.fromkeys(
        ("stop_strings", "stopping_criteria"),
        "model.pellucid.generate(prompt, stop=[...]) ends at a text, and eos_token_id at a token",
    ),
    **dict.fromkeys(
        ("logits_processor", "prefix_allowed_tokens_fn"),
        "rules are asked for by name, such as repetition_penalty=1.1 or bad_words_ids=[[3]]",
    ),
    **dict.fromkeys(
        ("past_key_values", "inputs_embeds", "assistant_model"),
        "a prompt is read whole, and by this model alone: leave it out",
    ),
}
"""Options that are not taken with ids, and what stands in their place."""


def written(loaded: Loaded, input_ids: Tensor, attention_mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Prompts with what the model writes behind them; of an encoder-decoder what its decoder wrote, the start token
    first.

    input_ids: Int[Tensor, "batch seq"], padded on either side.
    options: those of `Model.generate`; `max_length`, which counts the prompt; `pad_token_id` and `eos_token_id`; a
        `streamer` of the reference's, which is told one text, token by token.
    ->  Int[Tensor, "batch*num_return_sequences seq"], padded on the right
    """
    streamer, asked = options.pop("streamer", None), followed(options, UNFOLLOWED)
    _check_streamer(streamer)
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
        if streamer is not None:
            raise InputError("a streamer was given with num_beams, and beams are certain only at the end: leave it out")
        pad = pad or next(iter(ends), 0)  # a search of the reference's takes a padding token of 0 for none
        texts: list[Sequence[int]] = [one.ids for found in search(loaded, prompts, settings) for one in found]
    else:
        drafts: list[list[int]] = [[] for _ in range(len(prompts) * settings.num_return_sequences)]
        begun = input_ids.tolist() if loaded.config.kind == "decoder" else [[start]]
        for step in _streamed(write(loaded, prompts, settings), streamer, begun, len(drafts)):
            for row, token in zip(step.rows, step.tokens):
                drafts[row].append(token)
        texts = list(drafts)
    copies = len(texts) // max(len(prompts), 1)
    before = input_ids.repeat_interleave(copies, dim=0).tolist() if loaded.config.kind == "decoder" else None
    rows = [[*(before[i] if before else [start]), *text] for i, text in enumerate(texts)]
    longest = max(map(len, rows), default=0)
    return torch.tensor([row + [pad] * (longest - len(row)) for row in rows], device=input_ids.device)


def _check_streamer(streamer: Any) -> None:
    if streamer is not None and (
        isinstance(streamer, type) or not all(callable(getattr(streamer, name, None)) for name in ("put", "end"))
    ):
        raise InputError(f"streamer is {repr(streamer)[:60]}, expected an object that has put(ids) and end()")


def _streamed(steps: Iterable[Step], streamer: Any, begun: list[Any], texts: int) -> Iterator[Step]:
    """The steps, of which a streamer hears, if there is one: what the text begins with, then each token."""
    if streamer is None:
        yield from steps
        return
    if texts != 1:
        raise InputError(f"a streamer hears one text, and {texts} are written: give one prompt, or leave it out")
    streamer.put(torch.tensor(begun))
    for step in steps:
        streamer.put(torch.tensor(step.tokens))
        yield step
    streamer.end()


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
