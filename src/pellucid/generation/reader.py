"""Texts that are read on, one token a pass: what a choice of the next token needs of a model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pellucid.blocks import Cache, Watch
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder, check_finite

PACKED = 1024
"""Positions of prompts that are read end to end in one row; those longer than a quarter of it are read apart."""


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

    @inference_mode()
    def next(self, tokens: Tensor) -> Tensor:
        """Reads one more token in every row: Int[Tensor, "rows"]  ->  logits Float[Tensor, "rows vocab"]"""
        if isinstance(self.module, EncoderDecoder):
            memory, watch = self.memory, self._onlooker()
            read = self.module(None, self.source, tokens[:, None], memory=memory, cache=self.cache, watch=watch)
        else:
            read = self.module(tokens[:, None], cache=self.cache, watch=self._onlooker())
        return _wide(self.module, read.logits[:, -1])

    @inference_mode()
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


@inference_mode()
def begin(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    most: int,
    watch: Callable[[], Watch] | None = None,
    start: int | None = None,
) -> tuple[Reader, Tensor]:
    """Reads the prompts; room for `most` more tokens of each is set aside. watch: gives an onlooker for each pass.

    start: the token that a decoder beside an encoder begins with; None for the module's own.

    Prompts of one length are read together, short ones of several lengths end to end in one row, others apart, so that
    nothing is computed for padding.
    ->  the reader, its rows in the order of the prompts, and the first logits Float[Tensor, "rows vocab"]
    """
    order, readers, logits = [], [], []
    longest = max(map(len, prompts))
    for rows in _groups(module, prompts, apart=watch is not None or module.onlooker is not None):
        reader, first = _begin(module, [prompts[i] for i in rows], most, longest, watch, start)
        order += rows
        readers.append(reader)
        logits.append(first)
    if len(readers) == 1 and order == sorted(order):
        return readers[0], logits[0]
    back = torch.tensor(order, device="cpu").argsort()
    return _together(readers).choose(back), torch.cat(logits)[back]


def _groups(module: Decoder | EncoderDecoder, prompts: Sequence[Sequence[int]], apart: bool) -> list[list[int]]:
    """The prompts that are read in one pass each time, as numbers, the longest first.

    apart: those of different lengths are not to be mixed.
    """
    groups: list[list[int]] = []
    held, packs = 0, isinstance(module, Decoder) and not apart
    for i in sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i)):
        length, longest = len(prompts[i]), len(prompts[groups[-1][0]]) if groups else 0
        if groups and (length == longest or (packs and longest <= PACKED // 4 and held + length <= PACKED)):
            groups[-1].append(i)
            held += length
        else:
            groups.append([i])
            held = length
    return groups


def _begin(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    most: int,
    longest: int,
    watch: Callable[[], Watch] | None,
    start: int | None,
) -> tuple[Reader, Tensor]:
    device, lengths = module.device, [len(prompt) for prompt in prompts]
    if len(set(lengths)) > 1:
        assert isinstance(module, Decoder)
        return _packed(module, prompts, longest + most)
    ids = torch.tensor(list(prompts), device=device).view(len(prompts), lengths[0])
    onlooker = None if watch is None else watch()
    if isinstance(module, EncoderDecoder):
        cache = module.new_cache(most + 1)
        begun = module.shifted(ids[:, :1]) if start is None else torch.full_like(ids[:, :1], start)
        first = module(ids, None, begun, cache=cache, watch=onlooker)
        memory = first.encoder_last_hidden_state
        return Reader(module, cache, torch.ones_like(ids), memory, watch), _wide(module, first.logits[:, -1])
    cache = module.new_cache(longest + most)
    first = module(ids, cache=cache, logits_to_keep=1, watch=onlooker)
    return Reader(module, cache, watch=watch), _wide(module, first.logits[:, -1])


def _packed(module: Decoder, prompts: Sequence[Sequence[int]], capacity: int) -> tuple[Reader, Tensor]:
    """Prompts of several lengths read end to end, as if each stood alone; from then on each has a row of its own."""
    device = module.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device="cpu")
    ids = torch.tensor([[i for prompt in prompts for i in prompt]], device=device)
    segments = torch.arange(1, len(prompts) + 1, device="cpu").repeat_interleave(lengths)[None].to(device)
    cache = module.new_cache(ids.shape[1])
    last = (lengths.cumsum(0) - 1).to(device)
    (logits,) = module.logits_at((0, last), {"input_ids": ids, "cache": cache, "segments": segments})
    cache.finish()
    return Reader(module, cache.apart(lengths.tolist(), capacity)), _wide(module, logits)


def _wide(module: Decoder | EncoderDecoder, logits: Tensor) -> Tensor:
    """Choices are made in float32 at least, and among numbers."""
    return check_finite(logits, module).to(torch.promote_types(logits.dtype, torch.float32))


def _together(readers: list[Reader]) -> Reader:
    """Readers of texts of different lengths as one."""
    return replace(
        readers[0],
        cache=Cache.together([reader.cache for reader in readers]),
        source=_rows(reader.source for reader in readers),
        memory=_rows(reader.memory for reader in readers),
    )


def _rows(tables: Iterable[Tensor | None]) -> Tensor | None:
    """The rows of all tables as one table, with zeros behind the shorter ones; None where there are none."""
    rows = [row for table in tables if table is not None for row in table]
    return pad_sequence(rows, batch_first=True) if rows else None
