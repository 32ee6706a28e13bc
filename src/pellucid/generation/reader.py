"""Texts that are read on, one token a pass: what a choice of the next token needs of a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pellucid.blocks import Cache, Watch
from pellucid.models import Decoder, EncoderDecoder


@dataclass
class Reader:
    """A model in the middle of several texts (rows).

    module: evaluating, with a head for the next token.  cache: what it has read.
    source: which rows of an encoder-decoder's memory may be looked at, Int[Tensor, "rows source"]; memory: that memory.
    watch: gives an onlooker for each pass.
    """

    module: Decoder | EncoderDecoder
    cache: Cache
    source: Tensor | None = None
    memory: Tensor | None = None
    watch: Callable[[], Watch] | None = None

    @torch.inference_mode()
    def next(self, tokens: Tensor) -> Tensor:
        """Reads one more token in every row: Int[Tensor, "rows"]  ->  logits Float[Tensor, "rows vocab"]"""
        if isinstance(self.module, EncoderDecoder):
            memory, watch = self.memory, self._onlooker()
            read = self.module(None, self.source, tokens[:, None], memory=memory, cache=self.cache, watch=watch)
        else:
            read = self.module(tokens[:, None], cache=self.cache, watch=self._onlooker())
        return _wide(read.logits[:, -1])

    @torch.inference_mode()
    def choose(self, rows: Tensor, *, since: int = 0) -> Self:
        """Keeps these rows in this order; a row may come several times. Int[Tensor, "kept"]

        since: where beams of the same texts change places, how many slots they have in common; these are not moved.
        """
        self.cache.choose(rows, since=since)
        if not since:
            self.source = None if self.source is None else self.source[rows]
            self.memory = None if self.memory is None else self.memory[rows]
        return self

    def _onlooker(self) -> Watch | None:
        return None if self.watch is None else self.watch()


@torch.inference_mode()
def begin(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    most: int,
    watch: Callable[[], Watch] | None = None,
) -> tuple[Reader, Tensor]:
    """Reads the prompts; room for `most` more tokens of each is set aside. watch: gives an onlooker for each pass.

    Prompts of one length are read together and others apart, so that nothing is computed for padding.
    ->  the reader, its rows in the order of the prompts, and the first logits Float[Tensor, "rows vocab"]
    """
    lengths = sorted({len(prompt) for prompt in prompts}, reverse=True)
    order, readers, logits = [], [], []
    for length in lengths:
        rows = [i for i, prompt in enumerate(prompts) if len(prompt) == length]
        device = module.embeddings.token.like.device
        ids = torch.tensor([prompts[i] for i in rows], device=device).view(len(rows), length)
        reader, first = _begin(module, ids, most, lengths[0], watch)
        order += rows
        readers.append(reader)
        logits.append(first)
    if len(readers) == 1:
        return readers[0], logits[0]
    back = torch.tensor(order).argsort()
    return _together(readers).choose(back), torch.cat(logits)[back]


def _begin(
    module: Decoder | EncoderDecoder, ids: Tensor, most: int, longest: int, watch: Callable[[], Watch] | None
) -> tuple[Reader, Tensor]:
    onlooker = None if watch is None else watch()
    if isinstance(module, EncoderDecoder):
        cache = module.new_cache(most + 1)
        first = module(ids, None, module.shifted(ids[:, :1]), cache=cache, watch=onlooker)
        memory = first.encoder_last_hidden_state
        return Reader(module, cache, torch.ones_like(ids), memory, watch), _wide(first.logits[:, -1])
    cache = module.new_cache(longest + most)
    first = module(ids, cache=cache, logits_to_keep=1, watch=onlooker)
    return Reader(module, cache, watch=watch), _wide(first.logits[:, -1])


def _wide(logits: Tensor) -> Tensor:
    """Choices are made in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _together(readers: list[Reader]) -> Reader:
    """Readers of texts of different lengths as one."""
    first = readers[0]
    cache = Cache.together([reader.cache for reader in readers])
    if first.memory is None or first.source is None:
        return replace(first, cache=cache)
    longest = max(reader.memory.shape[1] for reader in readers if reader.memory is not None)
    rows = sum(len(reader.memory) for reader in readers if reader.memory is not None)
    source = first.source.new_zeros(rows, longest)
    memory = first.memory.new_zeros(rows, longest, first.memory.shape[2])
    start = 0
    for reader in readers:
        if reader.memory is not None and reader.source is not None:
            count, length = reader.source.shape
            source[start : start + count, :length] = reader.source
            memory[start : start + count, :length] = reader.memory
            start += count
    return replace(first, cache=cache, source=source, memory=memory)
