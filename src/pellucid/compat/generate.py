"""The reference's `generate`: ids in, ids out, with the prompt before the generated tokens."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.compat.arguments import without_unsupported
from pellucid.compat.generation_config import UNSUPPORTED
from pellucid.config import Config
from pellucid.config.checks import check_count, check_token_id, plain_numbers
from pellucid.config.positions import Learned, Sinusoidal
from pellucid.errors import InputError, format_count, join_names, shorten
from pellucid.generation.beam import beam_search
from pellucid.generation.checkpoint_settings import required_start_token, settings_of
from pellucid.generation.loop import Step, token_budget, write
from pellucid.generation.settings import SAMPLING, Settings, check_types
from pellucid.models import check_ids

log = logging.getLogger("pellucid")

DEFAULT_LENGTH, REFERENCE_TOP_K = 20, 50
"""The default number of new tokens, and the reference's default `top_k` for sampling."""

TORCH_GENERATOR = torch.default_generator
"""The source of seeds that a call does not set: `torch.manual_seed` determines them, as in the reference."""


def generate_ids(loaded: Loaded, input_ids: Tensor, attention_mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Prompts with the tokens generated after them; of an encoder-decoder the decoder's tokens, the start token first.

    input_ids: Int[Tensor, "batch seq"], padded on either side.  attention_mask: the same shape, or one row for all.
    options: those of `Model.generate`; `max_length`, which includes the prompt; `pad_token_id` and `eos_token_id`; a
        `streamer` of the reference's, which receives one text, token by token. None removes a checkpoint's setting. A
        rule that counts or compares tokens ignores padding, which the reference's rules include.
    ->  Int[Tensor, "batch*num_return_sequences seq"], padded on the right
    """
    options = plain_numbers(options)
    streamer, requested = options.pop("streamer", None), without_unsupported(options, UNSUPPORTED)
    _check_streamer(streamer)
    check_types(requested)  # some of them determine which others apply
    loaded = replace(loaded, generation=_checkpoint_settings(loaded.generation, options))
    pad = _as_list(requested.pop("pad_token_id", None))
    end = _as_list(requested.pop("eos_token_id", loaded.generation.get("eos_token_id")))
    loaded = replace(loaded, config=loaded.config.replace(eos_token_id=tuple(end) if isinstance(end, list) else end))
    loaded = _with_start_token(loaded, requested)
    requested, ends = {name: value for name, value in requested.items() if value is not None}, loaded.config.end_tokens
    pad = next((i for i in (pad, loaded.generation.get("pad_token_id"), *ends) if i is not None), None)
    mask = _default_mask(input_ids, pad, ends) if attention_mask is None else _expand_mask(attention_mask, input_ids)
    check_ids(loaded.module.embeddings, input_ids, mask)
    prompts = _prompt_ids(loaded, input_ids, mask)
    settings = _settings(loaded, requested, input_ids.shape[1], prompts)
    if settings.num_beams > 1:
        if streamer is not None:
            raise InputError("a streamer was given with num_beams, and beams are certain only at the end: leave it out")
        pad = pad or next(iter(ends), 0)  # the reference's beam search takes a padding token of 0 for none
        texts = _beam_search(loaded, prompts, settings)
    else:
        texts = _generate_tokens(loaded, prompts, settings, input_ids, streamer)
    copies = settings.num_return_sequences
    before = _initial_ids(loaded, input_ids.repeat_interleave(copies, dim=0))
    rows = [[*first, *text] for first, text in zip(before, texts)]
    max_length = max(map(len, rows), default=0)
    return torch.tensor([row + [pad or 0] * (max_length - len(row)) for row in rows], device=input_ids.device)


def _checkpoint_settings(generation: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The checkpoint's settings, without those that a call sets to None, and with the default `top_k` for sampling."""
    is_drawn = options.get("do_sample", generation.get("do_sample")) and "top_k" not in options
    remaining = {name: value for name, value in generation.items() if options.get(name, value) is not None}
    return {"top_k": REFERENCE_TOP_K, **remaining} if is_drawn else remaining


def _prompt_ids(loaded: Loaded, ids: Tensor, mask: Tensor) -> list[list[int]]:
    """The tokens that are not padding, row by row."""
    kept_positions = [keep.nonzero().flatten().tolist() for keep in mask]
    padding_counts = loaded.config.kind == "encoder-decoder" and isinstance(
        loaded.config.position, Learned | Sinusoidal
    )
    if loaded.config.kind != "decoder" and (row := _row_with_gap(mask)) is not None:
        raise InputError(f"attention_mask leaves out tokens within row {row}, and an encoder here reads a whole text")
    for i, positions in enumerate(kept_positions):
        if padding_counts and positions and positions[0]:
            raise InputError(
                f"row {i} is padded on the left, which takes positions of this encoder: pad it on the right"
            )
    return [row[positions].tolist() for row, positions in zip(ids, kept_positions)]


def check_mask(config: Config, mask: Any) -> None:
    """Refuses, for a pass that does not generate, a mask with gaps, which take up positions in the reference's decoders
    only."""
    if config.kind != "decoder" or mask is None:
        return
    tensor = torch.as_tensor(mask, device="cpu")
    if tensor.dim() == 2 and (row := _row_with_gap(tensor)) is not None:
        raise InputError(f"attention_mask leaves out tokens within row {row}: remove them from input_ids")


def _row_with_gap(mask: Tensor) -> int | None:
    """The first row of a mask that leaves out a token between others; None for none."""
    attended = mask.bool()
    first, last = attended.cummax(dim=-1).values, attended.flip(-1).cummax(dim=-1).values.flip(-1)
    return next(iter((~attended & first & last).any(dim=-1).nonzero().flatten().tolist()), None)


def _settings(loaded: Loaded, requested: dict[str, Any], width: int, prompts: Sequence[Sequence[int]]) -> Settings:
    """The generation settings.  width: the length of the prompts, including padding."""
    from_checkpoint = loaded.generation
    before = width if loaded.config.kind == "decoder" else 1
    lengths = requested.pop("max_new_tokens", None), requested.pop("max_length", None)
    set_length = _set_new_tokens(*lengths, from_checkpoint, before)
    new = _default_new_tokens(loaded.config.max_sequence_length, before) if set_length is None else set_length
    requested["max_new_tokens"] = new
    least = requested.get("min_length", from_checkpoint.get("min_length"))
    if isinstance(least, int) and all(one.get("min_new_tokens") is None for one in (requested, from_checkpoint)):
        requested["min_new_tokens"] = max(least - before, 0)  # which includes padding
        requested.pop("min_length", None)
    settings = settings_of(loaded, compatible_lengths(without_idle_options(requested, from_checkpoint)))
    if settings.stop:
        raise InputError(
            f"generation is to stop at {shorten(repr(settings.stop))}, and ids are not text: "
            f"{UNSUPPORTED['stop_strings']}"
        )
    token_budgets = [token_budget(loaded, prompt, new, i) for i, prompt in enumerate(prompts)]
    if set_length is not None and min(token_budgets, default=new) < new:
        log.warning("%d new tokens are requested, and this model has positions for %d more", new, min(token_budgets))
    return settings


def _with_start_token(loaded: Loaded, requested: dict[str, Any]) -> Loaded:
    """The same, with the decoder's start token from the settings, for an encoder-decoder."""
    from_checkpoint = loaded.generation
    start = _as_list(requested.pop("decoder_start_token_id", from_checkpoint.get("decoder_start_token_id")))
    if loaded.config.decoder is None or start is None:  # a decoder needs none, though files may set one
        return loaded
    check_token_id("decoder_start_token_id", start, loaded.config.vocab_size)
    return replace(loaded, generation=from_checkpoint | {"decoder_start_token_id": start})


def _initial_ids(loaded: Loaded, ids: Tensor) -> list[list[int]]:
    """The ids before the generated ones: a decoder's prompts, or the start token of each text."""
    return ids.tolist() if loaded.config.kind == "decoder" else [[required_start_token(loaded)]] * len(ids)


def _beam_search(loaded: Loaded, prompts: Sequence[Sequence[int]], settings: Settings) -> list[Sequence[int]]:
    """The generated ids for all prompts, by beam search: `num_return_sequences` for each."""
    found = beam_search(loaded, prompts, settings)
    for i, texts in enumerate(found):
        if len(texts) < settings.num_return_sequences:
            raise InputError(
                f"the rules leave {format_count(len(texts), 'text')} for prompt {i}: loosen them, or ask for fewer "
                "texts"
            )
    return [one.ids for texts in found for one in texts]


def _generate_tokens(
    loaded: Loaded, prompts: Sequence[Sequence[int]], settings: Settings, ids: Tensor, streamer: Any
) -> list[Sequence[int]]:
    """The same without beam search."""
    drafts: list[list[int]] = [[] for _ in range(len(prompts) * settings.num_return_sequences)]
    if settings.do_sample and settings.seed is None:
        settings = replace(settings, seed=TORCH_GENERATOR)
    steps = write(loaded, prompts, settings)
    for step in _with_streamer(steps, streamer, _initial_ids(loaded, ids), len(drafts)):
        for row, chosen in zip(step.rows, step.tokens):
            drafts[row].append(chosen)
    return list(drafts)


def _check_streamer(streamer: Any) -> None:
    if streamer is not None and (
        isinstance(streamer, type) or not all(callable(getattr(streamer, name, None)) for name in ("put", "end"))
    ):
        raise InputError(f"streamer is {shorten(repr(streamer))}, expected an object that has put(ids) and end()")


def _with_streamer(steps: Iterable[Step], streamer: Any, initial_ids: list[Any], text_count: int) -> Iterator[Step]:
    """The steps, which a streamer, if there is one, receives too: the initial ids, then each token."""
    if streamer is None:
        yield from steps
        return
    if text_count != 1:
        raise InputError(f"a streamer takes one text, and {text_count} are written: give one prompt, or leave it out")
    streamer.put(torch.tensor(initial_ids, device="cpu"))
    for step in steps:
        streamer.put(torch.tensor(step.tokens, device="cpu"))
        yield step
    streamer.end()


def without_idle_options(requested: dict[str, Any], from_checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that have no effect beside the others, with a warning, as in the reference."""
    idle = set() if requested.get("do_sample", from_checkpoint.get("do_sample")) else {"seed", *SAMPLING}
    if requested.get("num_beams", from_checkpoint.get("num_beams", 1)) == 1:
        idle |= {"length_penalty", "early_stopping"}
    if found := idle & requested.keys():
        log.warning("%s: left out, since it has no effect without sampling or beams", join_names(sorted(found)))
    return {name: value for name, value in requested.items() if name not in found}


def compatible_lengths(requested: Mapping[str, Any]) -> dict[str, Any]:
    """The options with one minimum length, at most the maximum; here, too, with a warning."""
    min_new_tokens, max_new_tokens = requested.get("min_new_tokens"), requested.get("max_new_tokens")
    found = dict(requested)
    if min_new_tokens is not None and found.pop("min_length", None):
        log.warning(
            "min_length is ignored beside min_new_tokens, which is %s: give min_new_tokens alone", min_new_tokens
        )
    if isinstance(min_new_tokens, int) and isinstance(max_new_tokens, int) and min_new_tokens > max_new_tokens:
        log.warning(
            "min_new_tokens is %d, and max_new_tokens %d: no more are generated", min_new_tokens, max_new_tokens
        )
        found["min_new_tokens"] = max_new_tokens
    return found


def _set_new_tokens(
    max_new_tokens: int | None, max_length: int | None, from_checkpoint: Mapping[str, Any], prompt_length: int
) -> int | None:
    """The maximum number of new tokens by the options of a call or else of the checkpoint; None where none sets it."""
    if max_new_tokens is not None:
        return max_new_tokens
    if (max_new_tokens := from_checkpoint.get("max_new_tokens")) is not None:
        if max_length is not None:
            log.warning(
                "max_length is ignored beside max_new_tokens, which is %s: give max_new_tokens alone", max_new_tokens
            )
        return max_new_tokens
    max_length = from_checkpoint.get("max_length") if max_length is None else max_length
    if max_length is None:
        return None
    return new_token_budget(check_count("max_length", max_length), prompt_length)


def new_token_budget(max_length: int, prompt_length: int) -> int:
    """How many new tokens are left of `max_length` in total. Raises InputError where none is."""
    if max_length <= prompt_length:
        raise InputError(
            f"max_length is {max_length:,}, expected more than the {format_count(prompt_length, 'token')} before the "
            "first new one: raise it, or pass max_new_tokens"
        )
    return max_length - prompt_length


def _default_new_tokens(max_positions: int | None, prompt_length: int) -> int:
    """The default number of new tokens, limited by the model's positions as in the reference."""
    if max_positions is None:
        return DEFAULT_LENGTH
    if prompt_length >= max_positions:
        raise InputError(
            f"the prompt has {format_count(prompt_length, 'token')} already, and this model has {max_positions:,} "
            "positions: cut the prompt"
        )
    return min(DEFAULT_LENGTH, max_positions - prompt_length)


def _as_list(ids: Any) -> Any:
    """Ids as a list or number, as in a file."""
    return ids.tolist() if isinstance(ids, Tensor) else ids


def _expand_mask(mask: Any, ids: Tensor) -> Tensor:
    """A mask of one row, repeated for every text."""
    if not isinstance(mask, Tensor):
        raise InputError(f"attention_mask is {type(mask).__name__}, expected a tensor of the shape of input_ids")
    return mask.expand(len(ids), -1) if mask.dim() == 2 and len(mask) == 1 else mask


def _default_mask(ids: Tensor, pad: int | None, ends: tuple[int, ...]) -> Tensor:
    """The default mask: all tokens but padding, unless padding is an end token too."""
    return torch.ones_like(ids) if pad is None or pad in ends else (ids != pad).long()
