"""The network in training: fast, in the requested precision, with dropout from a random generator of its own."""

from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks.training_copy import TrainingContext
from pellucid.checkpoints.loaded import Loaded
from pellucid.machine import choose_dtype, retain_freed_memory
from pellucid.training.settings import Settings


class Learner:
    """A network in training.

    Passes run on a training copy that shares every parameter of the plain module (`pellucid.blocks.training_copy`). The
    plain module itself stays in evaluation mode. Which parameters are trained, and which linear layers have adapters,
    is determined when a learner is created. A pass takes from a batch only the inputs of the network.

    module: the plain module, whose parameters receive the gradients.
    dtype: of matrix products; parameters, their gradients, softmax over labels and losses are float32.
    """

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        self.loaded, self.module = loaded, loaded.module
        self.device = self.module.device
        self.dtype = choose_dtype(settings.precision, torch.float32, self.device)
        if self.device.type == "cpu":
            retain_freed_memory()
        self.context = TrainingContext(
            self.dtype,
            seed=settings.seed,
            device=self.device,
            activation_checkpointing=settings.activation_checkpointing,
        )
        self.training_copy: Any = self.module.training_copy(self.context)

    def seed_dropout(self, step: int, piece: int) -> None:
        """Seeds dropout for a micro-batch of a step; its masks depend on this and on the passes since."""
        self.context.begin(step, piece)

    def logits(self, **batch: Any) -> Tensor:
        """The head's logits in float32; the last layer of an encoder computes only the states that the head reads.

        batch: input_ids, attention_mask, token_type_ids: Int[Tensor, "batch seq"]
        """
        return _at_least_float32(self.training_copy.logits(**self._network_inputs(batch)))

    def before_head(self, **batch: Any) -> Tensor:
        """The hidden states that the head reads; of an encoder-decoder, those of the decoder.

        batch: input_ids, attention_mask, token_type_ids, segments: Int[Tensor, "batch seq"], and for an encoder-decoder
            decoder_input_ids likewise
        ->  Float32[Tensor, "batch seq hidden"]
        """
        return _at_least_float32(self.training_copy.before_head(**self._network_inputs(batch)))

    def _network_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in batch.items() if name in self.module.input_names}

    def features(self, stream: Tensor) -> Tensor:
        """The head's input to its vocabulary matrix: Float[Tensor, "... hidden"]  ->  "... width" """
        return self.training_copy.head.features(stream)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name; a tied one once."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


def _at_least_float32(numbers: Tensor) -> Tensor:
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))
