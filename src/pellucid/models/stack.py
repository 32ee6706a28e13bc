"""A stack: embeddings, layers and a final norm. Encoders, decoders and both halves of an encoder-decoder are stacks."""

import torch
from torch import Tensor, nn

from pellucid.blocks import (
    Cache,
    Embeddings,
    PaddingAwarePositions,
    Pass,
    RelativeBias,
    RotaryPositions,
    causal_mask,
    padding_mask,
    position_mask,
    segment_positions,
    segmented_mask,
    windowed_mask,
)
from pellucid.blocks.checks import kind_of
from pellucid.errors import InputError, format_count
from pellucid.models.observable import Observable, report_positions


class Stack(Observable):
    """ids --> embeddings --> layers.0 --> ... --> layers.N --> norm --> hidden states

    causal: each position attends to itself and earlier ones only, to at most `window` positions.
    depth: number of layers applied to each token, where it exceeds the number of distinct layers: each of these then
        serves several consecutive depths (Lan et al., 2019, arXiv:1909.11942, section 3.1).
    dropout: dropout probability after the norm.
    rotary, relative_bias: relative positions for attention.
    skips_padding: whether padding takes up no position, before a text or within it.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[nn.Module],
        *,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        rotary: RotaryPositions | None = None,
        relative_bias: RelativeBias | None = None,
        causal: bool = False,
        window: int | None = None,
        skips_padding: bool = False,
        depth: int | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm or nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.rotary = rotary
        self.relative_bias = relative_bias
        self.causal, self.window, self.skips_padding = causal, window, skips_padding
        self.shared_depth = None if depth == len(layers) else depth

    @property
    def depth(self) -> int:
        """Number of layers applied to each token: the number of layers or, if they are shared, the given one."""
        return self.shared_depth or len(self.layers)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.embeddings.token.like.device

    def states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        run: Pass | None = None,
        cache: Cache | None = None,
        segments: Tensor | None = None,
        first: bool = False,
    ) -> Tensor:
        """Returns the hidden states: Int[Tensor, "batch seq"]  ->  Float[Tensor, "batch seq hidden"]

        run: carries the encoder output for cross-attention, and an observer.
        cache: keys and values of earlier passes; the caller calls its `finish` when the pass is complete.
        segments: Int[Tensor, "batch seq"], texts packed into one row, numbered 1, 2, 3, ...; 0 for padding. A text
            attends only to itself, and positions restart in each. A cache has to be empty.
        first: whether the last layer computes the first position alone, Float[Tensor, "batch 1 hidden"]; only for a
            bidirectional stack, without segments or a cache. An observer receives no other position of that layer.
        """
        check_ids(self.embeddings, input_ids, attention_mask, token_type_ids, segments)
        if segments is not None:
            self._check_segments(attention_mask, cache)
        if first and (self.causal or segments is not None or cache is not None):
            raise InputError(
                "the first position alone is computed under bidirectional attention, without segments or a cache"
            )
        if cache is not None:
            cache.check(self.layers, self.depth, *input_ids.shape)
        if segments is None:
            positions = self._positions(input_ids, attention_mask, cache)
        else:
            positions = segment_positions(segments)
        self._check_length(positions)
        run = self._shared_pass(run or self.observed_pass(), positions, attention_mask, cache, segments, len(input_ids))
        stream = self.embeddings(input_ids, token_type_ids, run.inside("embeddings"), positions=positions.clamp(min=0))
        for i, layer in enumerate(self.in_order()):
            layer_pass = run.at_layer(i, None if cache is None else cache.layers[i])
            stream = layer(stream, layer_pass._replace(first=True) if first and i == self.depth - 1 else layer_pass)
        stream = stream if isinstance(self.norm, nn.Identity) else run.observe("norm.output", self.norm(stream))
        return self.dropout(stream)

    def in_order(self) -> list[nn.Module]:
        """Returns the layer of each depth; a shared layer occurs several times."""
        layers = list(self.layers)  # indexing a ModuleList looks each layer up by a name that it formats
        share = self.depth / len(layers)
        return [layers[int(i / share)] for i in range(self.depth)]  # rounded as in the reference

    def _positions(self, input_ids: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
        """Returns the position of each token: Int[Tensor, "batch|1 seq"]"""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if self.skips_padding and attention_mask is not None:
            count = attention_mask.long().cumsum(dim=1)
            positions = (count - 1).where(attention_mask.bool(), positions - count.eq(0).sum(dim=1, keepdim=True))
        if cache is not None and cache.filled:
            positions = positions + cache.next_positions()
        return positions if cache is None else positions.expand(len(input_ids), -1)

    def _check_segments(self, attention_mask: Tensor | None, cache: Cache | None) -> None:
        if attention_mask is not None:
            raise InputError("segments and an attention_mask were given: segments alone define the mask, 0 is padding")
        if cache is not None and cache.filled:
            filled = format_count(cache.filled, "position")
            raise InputError(f"segments cannot follow the {filled} of this cache: read them in a new one")
        if isinstance(self.embeddings.position, PaddingAwarePositions):
            raise InputError(
                "segments cannot be read: this model counts positions by its tokens, so give each text a row"
            )

    def _check_length(self, positions: Tensor) -> None:
        max_positions = self.embeddings.position.length
        if max_positions is not None and positions.numel() and (length := int(positions.max()) + 1) > max_positions:
            raise InputError(f"{length} tokens are too many: this model has {max_positions} positions; cut the text")

    def _shared_pass(
        self,
        run: Pass,
        positions: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None,
        segments: Tensor | None,
        rows: int,
    ) -> Pass:
        """Returns the pass with everything that all layers share."""
        key_positions = positions
        if cache is not None:
            padding = -1 if self.skips_padding else -2 - positions
            real = None if attention_mask is None else attention_mask.bool()
            cache.advance(self.layers, positions if real is None else positions.where(real, padding))
            key_positions = cache.positions
        report_positions(run, positions, attention_mask, cache, rows)
        if segments is None:
            mask, causal = self._mask(positions, attention_mask, cache)
        else:
            mask, causal = segmented_mask(segments, causal=self.causal, window=self.window), False
        bias = None if self.relative_bias is None else self.relative_bias(positions, key_positions)
        like = self.embeddings.token.like
        return Pass(
            mask=mask,
            causal=causal,
            bias=None if bias is None else run.observe("position_bias", bias),
            rotation=None if self.rotary is None else self.rotary(positions, like),
            memory=run.memory,
            memory_mask=run.memory_mask,
            text_lengths=None if segments is None else self._text_lengths(segments),
            observer=run.observer,
            path=run.path,
        )

    def _text_lengths(self, segments: Tensor) -> tuple[int, ...] | None:
        """Lengths of the texts in a single packed row, if a causal mask within each is all that is needed."""
        if not self.causal or len(segments) != 1:
            return None
        lengths = tuple(segments[0].unique_consecutive(return_counts=True)[1].tolist())
        return lengths if self.window is None or max(lengths) <= self.window else None

    def _mask(
        self, positions: Tensor, attention_mask: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor | None, bool]:
        """Returns the mask, or None; and whether attention is purely causal, for which it has a faster path."""
        mask = padding_mask(attention_mask)
        if not self.causal:
            return mask, False
        seq = positions.shape[1]
        if cache is not None and cache.filled > seq:
            sees_all = seq == 1 and not cache.padded and self.window is None
            return (None if sees_all else position_mask(positions, cache.positions, self.window)), False
        if self.window is not None and seq > self.window:
            if mask is None or attention_mask is None:
                return windowed_mask(seq, self.window, positions.device), False
            return position_mask(positions, positions.where(attention_mask.bool(), -1), self.window), False
        return (None, True) if mask is None else (causal_mask(seq, seq, positions.device) & mask, False)


_ID_DTYPES = (torch.int64, torch.int32)
"""Integer dtypes that an embedding table accepts as ids."""


def check_ids(
    embeddings: Embeddings,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None = None,
    segments: Tensor | None = None,
) -> None:
    """Raises InputError for ids, masks or types that this model cannot read."""
    if input_ids.dim() != 2 or input_ids.dtype not in _ID_DTYPES:
        raise InputError(f"input_ids are {kind_of(input_ids)}, expected int64 or int32 numbers of shape [batch, seq]")
    if not input_ids.shape[1]:
        raise InputError(f"input_ids are {kind_of(input_ids)}, expected one token at least in each text")
    for name, tensor in (
        ("attention_mask", attention_mask),
        ("token_type_ids", token_type_ids),
        ("segments", segments),
    ):
        if tensor is not None and tensor.shape != input_ids.shape:
            raise InputError(f"{name} is {kind_of(tensor)}, expected the shape of input_ids, {list(input_ids.shape)}")
    if token_type_ids is not None and token_type_ids.dtype not in _ID_DTYPES:
        raise InputError(f"token_type_ids are {kind_of(token_type_ids)}, expected int64 or int32 numbers")
    if input_ids.device.type == "cpu":  # elsewhere this would synchronise with the device
        _check_range("input_ids", input_ids, embeddings.token.num_embeddings)
        if token_type_ids is not None and embeddings.type is not None:
            _check_range("token_type_ids", token_type_ids, embeddings.type.num_embeddings)
        if attention_mask is not None:
            fits = (attention_mask == 0) | (attention_mask == 1)
            if not fits.all():
                raise InputError(f"attention_mask holds {attention_mask[~fits][0].item():g}, expected 0 and 1 alone")


def _check_range(name: str, ids: Tensor, size: int) -> None:
    if ids.numel():
        minimum, maximum = (int(n) for n in torch.aminmax(ids))
        if minimum < 0 or maximum >= size:
            raise InputError(f"{name} hold {minimum if minimum < 0 else maximum}, expected 0 to {size - 1}")
