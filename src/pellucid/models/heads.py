"""Heads: from hidden states to logits. Each takes the stream and, where there is a pooler, the pooled first token."""

from torch import Tensor, nn

from pellucid.blocks import ACTIVATIONS


class Pooler(nn.Module):
    """The first token, through a linear map and tanh."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, stream: Tensor) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  Float[Tensor, "batch hidden"]"""
        return self.dense(stream[:, 0]).tanh()


class PooledLabels(nn.Module):
    """One logit per label for the whole text, from the pooled first token or, without a pooler, the token itself."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, stream: Tensor, pooled: Tensor | None) -> Tensor:
        """->  Float[Tensor, "batch labels"]"""
        return self.classifier(self.dropout(stream[:, 0] if pooled is None else pooled))


class TokenLabels(nn.Module):
    """One logit per label at every position."""

    def __init__(self, hidden_size: int, num_labels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, stream: Tensor, pooled: Tensor | None) -> Tensor:
        """->  Float[Tensor, "batch seq labels"]"""
        return self.classifier(self.dropout(stream))


class Vocabulary(nn.Module):
    """One logit per token of the vocabulary at every position: dense, activation, norm, then the table of tokens."""

    def __init__(self, hidden_size: int, vocab_size: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.decoder = nn.Linear(hidden_size, vocab_size)

    def forward(self, stream: Tensor, pooled: Tensor | None) -> Tensor:
        """->  Float[Tensor, "batch seq vocab"]"""
        return self.decoder(self.norm(self.activation(self.dense(stream))))
