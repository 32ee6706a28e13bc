"""The pair: an encoder reads one text, a decoder writes another and looks across at what became of the first."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from pellucid.blocks import Cache, Embeddings, Observer, padding_mask
from pellucid.blocks.checks import kind_of
from pellucid.errors import InputError
from pellucid.models.output import Output
from pellucid.models.packable import PackableNetwork
from pellucid.models.stack import Stack


class EncoderDecoder(PackableNetwork):
    """
        ids ---------> encoder --> memory -----.
                                                v  (cross-attention, in every layer)
        decoder ids ---------------------> decoder --> hidden states [--> head]

    (Vaswani et al., 2017, arXiv:1706.03762, figure 1.)

    start_token_id: stands before the first word that the decoder writes.  input_names: as an encoder's.
    """

    input_names: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        "decoder_input_ids",
        "decoder_attention_mask",
    )
    is_autoregressive = True

    def __init__(
        self,
        encoder: Stack,
        decoder: Stack,
        *,
        head: nn.Module | None = None,
        start_token_id: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.start_token_id = start_token_id

    @property
    def embeddings(self) -> Embeddings:
        """Those of the encoder."""
        return self.encoder.embeddings

    @property
    def device(self) -> torch.device:
        """Where its numbers lie."""
        return self.encoder.device

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        cache: Cache | None = None,
        watch: Observer | None = None,
    ) -> Output:
        """One pass, or the next piece of the decoder's.

        input_ids: Int[Tensor, "batch source"]; attention_mask: the same shape, 1 = word, 0 = padding.
        decoder_input_ids: Int[Tensor, "batch seq"], a row for each text; where not given, the input moved one
            place to the right behind the start token, as these models were trained.
        decoder_attention_mask: the same shape. Padding before a text takes places of it, as in the reference, so what
            counts places (BART) answers otherwise than to the text alone: pad on the right.
        memory: the `encoder_last_hidden_state` of an earlier pass, in place of input_ids.
        cache: what earlier passes of the decoder read; the decoder's ids are then only the new ones.
        ->  last_hidden_state Float[Tensor, "batch seq hidden"] (the decoder's), encoder_last_hidden_state
            Float[Tensor, "batch source hidden"], logits
        """
        run = self.observed_pass(watch)
        _check_rows(decoder_input_ids, *(("input_ids", input_ids) if memory is None else ("memory", memory)))
        if memory is None:
            if input_ids is None:
                raise InputError("an encoder-decoder needs input_ids, or the memory of an earlier pass")
            memory = self.encoder.states(input_ids, attention_mask, run=run.inside("encoder"))
        if decoder_input_ids is None:
            decoder_input_ids = self.shift_right(input_ids)
        decoder_pass = run.inside("decoder")._replace(memory=memory, memory_mask=padding_mask(attention_mask))
        stream = self.decoder.states(decoder_input_ids, decoder_attention_mask, run=decoder_pass, cache=cache)
        answer = {"last_hidden_state": stream, "encoder_last_hidden_state": memory}
        if self.head is not None:
            head_inputs = (
                (decoder_input_ids, decoder_attention_mask) if input_ids is None else (input_ids, attention_mask)
            )
            answer["logits"] = run.observe("logits", self._head_logits(stream, *head_inputs))
        if cache is not None:
            cache.finish()
        return Output(answer)

    def before_head(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, decoder_input_ids: Tensor
    ) -> Tensor:
        """The hidden states of the decoder, without any logits.

        input_ids: Int[Tensor, "batch source"]; attention_mask: the same shape; decoder_input_ids:
        Int[Tensor, "batch seq"]  ->  Float[Tensor, "batch seq hidden"]
        """
        run = self.observed_pass()
        _check_rows(decoder_input_ids, "input_ids", input_ids)
        memory = self.encoder.states(input_ids, attention_mask, run=run.inside("encoder"))
        decoder_pass = run.inside("decoder")._replace(memory=memory, memory_mask=padding_mask(attention_mask))
        return self.decoder.states(decoder_input_ids, run=decoder_pass)

    def states(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Hidden states of the encoder alone: Int[Tensor, "batch source"]  ->  Float[Tensor, "batch source hidden"]"""
        return self.encoder.states(input_ids, attention_mask, run=self.observed_pass().inside("encoder"))

    def shift_right(self, ids: Tensor | None) -> Tensor:
        """The ids one place to the right, behind the start token: what the decoder has read when it writes them."""
        if ids is None:
            raise InputError("decoder_input_ids are needed: this pass has no input_ids to shift right")
        if self.start_token_id is None:
            raise InputError(
                "this model has no decoder_start_token_id, the first input of its decoder: set it in its config.json, "
                "or give ids of its decoder (decoder_input_ids)"
            )
        start = torch.full_like(ids[:, :1], self.start_token_id)
        return torch.cat((start, ids[:, :-1]), dim=1)

    def new_cache(self, capacity: int) -> Cache:
        """Memory for `capacity` positions of the decoder in each text."""
        return Cache(self.decoder.depth, capacity)


def _check_rows(ids: Tensor | None, name: str, encoder_input: Tensor | None) -> None:
    """Refuses ids of a decoder that are more or fewer texts than its encoder reads: one row would be spread over all.

    name, encoder_input: what the encoder reads, or has read.
    """
    if ids is None or encoder_input is None or ids.dim() != 2 or encoder_input.dim() < 2:
        return
    if len(ids) != len(encoder_input):
        kinds = f"{kind_of(ids)} and {name} {kind_of(encoder_input)}"
        raise InputError(f"decoder_input_ids are {kinds}: give one row of each for every text")
