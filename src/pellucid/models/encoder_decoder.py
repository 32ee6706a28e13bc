"""The encoder-decoder: an encoder reads one text, and a decoder generates another with cross-attention to it."""

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

    start_token_id: the decoder's first input, before the first token that it generates.
    input_names: as in `Encoder`.
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
        """The encoder's embeddings."""
        return self.encoder.embeddings

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
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
        observer: Observer | None = None,
    ) -> Output:
        """Runs one forward pass, or the decoder's next part of one.

        input_ids: Int[Tensor, "batch source"]; attention_mask: the same shape, 1 = token, 0 = padding.
        decoder_input_ids: Int[Tensor, "batch seq"], one row per text; by default input_ids shifted right, behind the
            start token, as these models were trained.
        decoder_attention_mask: the same shape. Left padding takes up positions, as in the reference, so a model with
            absolute positions (BART) gives other results than for the text alone: pad on the right.
        memory: the `encoder_last_hidden_state` of an earlier pass, in place of input_ids.
        cache: keys and values of the decoder's earlier passes; decoder_input_ids are then only the new ones.
        ->  last_hidden_state Float[Tensor, "batch seq hidden"] (the decoder's), encoder_last_hidden_state
            Float[Tensor, "batch source hidden"], logits
        """
        run = self.observed_pass(observer)
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
        """Returns the decoder's hidden states, without computing logits.

        input_ids: Int[Tensor, "batch source"]; attention_mask: the same shape; decoder_input_ids:
            Int[Tensor, "batch seq"]
        ->  Float[Tensor, "batch seq hidden"]
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
        """Returns the ids shifted right behind the start token: the decoder's input when these ids are its targets."""
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
        """Returns an empty cache for `capacity` positions of the decoder in each text."""
        return Cache(self.decoder.depth, capacity)


def _check_rows(ids: Tensor | None, name: str, encoder_input: Tensor | None) -> None:
    """Refuses decoder ids whose batch size differs from the encoder's: a single row would be broadcast to all.

    name, encoder_input: the encoder's input, or its output where that is given.
    """
    if ids is None or encoder_input is None or ids.dim() != 2 or encoder_input.dim() < 2:
        return
    if len(ids) != len(encoder_input):
        kinds = f"{kind_of(ids)} and {name} {kind_of(encoder_input)}"
        raise InputError(f"decoder_input_ids are {kinds}: give one row of each for every text")
