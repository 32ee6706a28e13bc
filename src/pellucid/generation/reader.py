"""Reads prompts into a cache, and further tokens one per pass."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pellucid.blocks import Cache, Observer
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder, check_finite

PACKED = 1024
"""Positions of prompts that are packed into one row; those longer than a quarter of it are read separately."""


@dataclass
class DecodingState:
    """A model in the middle of several texts (rows).

    module: in evaluation mode, with a head for the next token.  cache: of the tokens read so far.
    memory: the encoder output of an encoder-decoder, and source_mask: its padding mask, Int[Tensor, "rows source"].
    observer_factory: returns an observer for each pass.
    """

    module: Decoder | EncoderDecoder
    cache: Cache
    source_mask: Tensor | None = None
    memory: Tensor | None = None
    observer_factory: Callable[[], Observer] | None = None

    @inference_mode()
    def next(self, tokens: Tensor) -> Tensor:
        """Reads one more token in every row: Int[Tensor, "rows"]  ->  logits Float[Tensor, "rows vocab"]"""
        if isinstance(self.module, EncoderDecoder):
            memory, observer = self.memory, self._new_observer()
            output = self.module(
                None, self.source_mask, tokens[:, None], memory=memory, cache=self.cache, observer=observer
            )
        else:
            output = self.module(tokens[:, None], cache=self.cache, observer=self._new_observer())
        return _float32_logits(self.module, output.logits[:, -1])

    @inference_mode()
    def select_rows(self, rows: Tensor, *, since: int = 0) -> Self:
        """Keeps these rows in this order; a row may occur several times. Int[Tensor, "kept"]

        since: if rows are exchanged between beams of the same text, the number of slots that they share, which are not
            moved.
        """
        self.cache.select_rows(rows, since=since)
        if not since:
            self.source_mask = None if self.source_mask is None else self.source_mask[rows]
            self.memory = None if self.memory is None else self.memory[rows]
        return self

    def _new_observer(self) -> Observer | None:
        return None if self.observer_factory is None else self.observer_factory()


@inference_mode()
def prefill(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    observer_factory: Callable[[], Observer] | None = None,
    start: int | None = None,
) -> tuple[DecodingState, Tensor]:
    """Reads the prompts, and allocates room for `max_new_tokens` more tokens of each.

    observer_factory: returns an observer for each pass.
    start: the start token of a decoder with an encoder; None for a decoder alone.

    Prompts of the same length are read as a batch, short ones of different lengths packed into one row, others
    separately, so that nothing is computed for padding.
    ->  the state, its rows in the order of the prompts, and the first logits Float[Tensor, "rows vocab"]
    """
    order, states, logits = [], [], []
    max_length = max(map(len, prompts))
    for rows in _groups(module, prompts, same_length_only=observer_factory is not None or module.observer is not None):
        state, first = _prefill_group(
            module, [prompts[i] for i in rows], max_new_tokens, max_length, observer_factory, start
        )
        order += rows
        states.append(state)
        logits.append(first)
    if len(states) == 1 and order == sorted(order):
        return states[0], logits[0]
    restored_order = torch.tensor(order, device="cpu").argsort()
    return _merge_states(states).select_rows(restored_order), torch.cat(logits)[restored_order]


def _groups(
    module: Decoder | EncoderDecoder, prompts: Sequence[Sequence[int]], same_length_only: bool
) -> list[list[int]]:
    """Indices of the prompts to read in each pass, the longest first.

    same_length_only: whether prompts of different lengths must not be packed.
    """
    groups: list[list[int]] = []
    positions, packs = 0, isinstance(module, Decoder) and not same_length_only
    for i in sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i)):
        length, group_length = len(prompts[i]), len(prompts[groups[-1][0]]) if groups else 0
        if groups and (
            length == group_length or (packs and group_length <= PACKED // 4 and positions + length <= PACKED)
        ):
            groups[-1].append(i)
            positions += length
        else:
            groups.append([i])
            positions = length
    return groups


def _prefill_group(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    max_length: int,
    observer_factory: Callable[[], Observer] | None,
    start: int | None,
) -> tuple[DecodingState, Tensor]:
    device, lengths = module.device, [len(prompt) for prompt in prompts]
    if len(set(lengths)) > 1:
        assert isinstance(module, Decoder)
        return _prefill_packed(module, prompts, max_length + max_new_tokens)
    ids = torch.tensor(list(prompts), device=device).view(len(prompts), lengths[0])
    observer = None if observer_factory is None else observer_factory()
    if isinstance(module, EncoderDecoder):
        cache = module.new_cache(max_new_tokens + 1)
        assert start is not None  # `generation_module` requires one
        first = module(ids, None, torch.full_like(ids[:, :1], start), cache=cache, observer=observer)
        memory = first.encoder_last_hidden_state
        state = DecodingState(module, cache, torch.ones_like(ids), memory, observer_factory)
        return state, _float32_logits(module, first.logits[:, -1])
    cache = module.new_cache(max_length + max_new_tokens)
    first = module(ids, cache=cache, logits_to_keep=1, observer=observer)
    return DecodingState(module, cache, observer_factory=observer_factory), _float32_logits(module, first.logits[:, -1])


def _prefill_packed(module: Decoder, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[DecodingState, Tensor]:
    """Reads prompts of different lengths packed into one row, each as if alone; then each has a row of its own."""
    device = module.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device="cpu")
    ids = torch.tensor([[i for prompt in prompts for i in prompt]], device=device)
    segments = torch.arange(1, len(prompts) + 1, device="cpu").repeat_interleave(lengths)[None].to(device)
    cache = module.new_cache(ids.shape[1])
    last = (lengths.cumsum(0) - 1).to(device)
    (logits,) = module.logits_at((0, last), {"input_ids": ids, "cache": cache, "segments": segments})
    cache.finish()
    return DecodingState(module, cache.split_texts(lengths.tolist(), capacity)), _float32_logits(module, logits)


def _float32_logits(module: Decoder | EncoderDecoder, logits: Tensor) -> Tensor:
    """Checks that logits are finite and converts them to float32 at least, in which tokens are chosen."""
    return check_finite(logits, module).to(torch.promote_types(logits.dtype, torch.float32))


def _merge_states(states: list[DecodingState]) -> DecodingState:
    """Joins the states of texts of different lengths."""
    return replace(
        states[0],
        cache=Cache.merge([state.cache for state in states]),
        source_mask=_stack_padded(state.source_mask for state in states),
        memory=_stack_padded(state.memory for state in states),
    )


def _stack_padded(tensors: Iterable[Tensor | None]) -> Tensor | None:
    """Concatenates the rows of all tensors, right-padded with zeros; None if there are none."""
    rows = [row for tensor in tensors if tensor is not None for row in tensor]
    return pad_sequence(rows, batch_first=True) if rows else None
