"""Heads: from hidden states to logits. Heads that classify a whole text also take the ids and the mask."""

import torch
from torch import Tensor, nn

from pellucid.blocks import ACTIVATIONS
from pellucid.errors import Argument, InputError, format_count


class Pooler(nn.Module):
    """The first token's state through a linear layer and tanh."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, stream: Tensor) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  Float[Tensor, "batch hidden"]"""
        return self.dense(stream[:, 0]).tanh()


class PositionPooling(nn.Module):
    """Selects the one position that represents the whole text.

    place: "pooler", "first", "last" (the last that is not padding) or "eos" (the last end-of-sequence token).
    pad_token_id: an id that counts as padding, besides what the mask hides.
    """

    def __init__(self, place: str, pad_token_id: int | None = None, end_tokens: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.place, self.pad_token_id, self.end_tokens = place, pad_token_id, end_tokens

    def forward(self, stream: Tensor, pooled: Tensor | None, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """States or logits: Float[Tensor, "batch seq width"]  ->  Float[Tensor, "batch width"]

        Raises InputError for "eos" if a row has no end-of-sequence token, and for "last" and "eos" if `stream` and
        `input_ids` differ in length.
        """
        if self.place == "pooler":
            assert pooled is not None  # checked by the config
            return pooled
        if self.place == "first":
            return stream[:, 0]
        if stream.shape[:2] != input_ids.shape:
            others = format_count(stream.shape[1], "other token")
            problem = f"a text is scored by its own last token, and the decoder read {others}: leave "
            raise InputError(problem, Argument("decoder_input_ids"), " out")
        candidates = self._candidates(input_ids, mask)
        if self.place == "eos" and not (has_end := candidates.any(dim=1)).all():
            ends = " or ".join(map(str, self.end_tokens)) or "eos_token_id, which is not set"
            row = has_end.long().argmin().item()
            raise InputError(f"row {row} of input_ids has no token {ends}, by whose state a text is scored: add it")
        last = (candidates * torch.arange(candidates.shape[1], device=candidates.device)).argmax(dim=1)
        return stream[torch.arange(len(stream), device=stream.device), last]

    def _candidates(self, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
        if self.place == "eos":
            return real & torch.isin(input_ids, torch.tensor(self.end_tokens, device=input_ids.device))
        return real if self.pad_token_id is None else real & (input_ids != self.pad_token_id)


class TextLabels(nn.Module):
    """One logit per label for the whole text: pick a position [--> pre_classifier --> activation] --> classifier.

    dropouts: dropout probabilities before the classifier, and before the pre-classifier.

    Both names end in "classifier", by which PEFT finds the modules that are trained whole beside an adapter.

    For "last", logits are computed at every position and then picked, as in the reference: a matrix product of fewer
    rows may round differently.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        dropouts: tuple[float, float],
        pick: PositionPooling,
        *,
        activation: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.pick = pick
        self.dense_dropout = nn.Dropout(0.0 if activation is None else dropouts[1])
        self.pre_classifier = nn.Identity() if activation is None else nn.Linear(hidden_size, hidden_size)
        self.activation = nn.Identity() if activation is None else ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropouts[0])
        self.classifier = nn.Linear(hidden_size, num_labels, bias=bias)

    @property
    def reads_first_position(self) -> bool:
        """Whether only the first position is read."""
        return self.pick.place in ("pooler", "first")

    def forward(self, stream: Tensor, pooled: Tensor | None, input_ids: Tensor, mask: Tensor | None) -> Tensor:
        """->  Float[Tensor, "batch labels"]"""
        if self.pick.place == "last":
            return self.pick(self._logits(stream), pooled, input_ids, mask)
        return self._logits(self.pick(stream, pooled, input_ids, mask))

    def _logits(self, states: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.activation(self.pre_classifier(self.dense_dropout(states)))))


class TokenLabels(nn.Module):
    """One logit per label at every position."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, stream: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  Float[Tensor, "... labels"]"""
        return self.classifier(self.dropout(stream))


class MaskedToken(nn.Module):
    """One logit per vocabulary token at every position: dense, activation, norm, output embedding.

    norm: as wide as the token embedding, which may be narrower than the hidden states.
    """

    def __init__(self, hidden_size: int, width: int, vocab_size: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.decoder = nn.Linear(width, vocab_size)

    def features(self, stream: Tensor) -> Tensor:
        """The input of the output embedding: Float[Tensor, "... hidden"]  ->  Float[Tensor, "... width"]"""
        return self.norm(self.activation(self.dense(stream)))

    @property
    def output_embedding(self) -> tuple[Tensor, Tensor | None]:
        """The output embedding Float[Tensor, "vocab width"] and its bias."""
        return self.decoder.weight, self.decoder.bias

    def forward(self, stream: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  Float[Tensor, "... vocab"]"""
        return self.decoder(self.features(stream))


class NextToken(nn.Module):
    """One logit per vocabulary token at every position: hidden states (x scale) times the output embedding (+ bias).

    trainable_bias: whether the bias is trained.
    """

    def __init__(
        self, hidden_size: int, vocab_size: int, *, scale: float = 1.0, bias: bool = False, trainable_bias: bool = True
    ) -> None:
        super().__init__()
        self.scale = scale
        self.decoder = nn.Linear(hidden_size, vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab_size), requires_grad=trainable_bias) if bias else None

    def features(self, stream: Tensor) -> Tensor:
        """The input of the output embedding: Float[Tensor, "... hidden"]  ->  the same shape"""
        return stream if self.scale == 1.0 else stream * self.scale

    @property
    def output_embedding(self) -> tuple[Tensor, Tensor | None]:
        """The output embedding Float[Tensor, "vocab hidden"], and its bias or None."""
        return self.decoder.weight, self.bias

    def forward(self, stream: Tensor) -> Tensor:
        """Float[Tensor, "... hidden"]  ->  Float[Tensor, "... vocab"]"""
        logits = self.decoder(self.features(stream))
        return logits if self.bias is None else logits + self.bias
