"""The feed-forward block: two linear layers and an activation, for each position separately."""

from collections.abc import Callable

from torch import Tensor, nn

from pellucid.blocks.activation import ACTIVATIONS, activation_named
from pellucid.blocks.forward_pass import Pass


class FeedForward(nn.Module):
    """x --> up [hidden -> inner] --> activation --> dropout --> down [inner -> hidden] --> dropout

    Positions do not interact here. With inner = 4 x hidden, as is usual, these two weight matrices hold two thirds of a
    layer's parameters.
    activation: a name of `pellucid.blocks.ACTIVATIONS`.
    dropout, activation_dropout: dropout probability of the output, and of the activation's output.
    """

    activation: Callable[[Tensor], Tensor]

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.activation = activation_named(activation)
        self.activation_dropout = nn.Dropout(activation_dropout)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)

    @property
    def activation_name(self) -> str | None:
        """Name of the activation in configuration files; None for a custom one."""
        return next((name for name, one in ACTIVATIONS.items() if one is self.activation), None)

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        pre = run.observe("pre", self.up(x))  # [batch, seq, inner]
        hidden = run.observe("hidden", self.activation(pre))
        return run.observe("output", self.dropout(self.down(self.activation_dropout(hidden))))


class GatedFeedForward(FeedForward):
    """x --+--> gate [hidden -> inner] --> activation --(x)--> dropout --> down [inner -> hidden] --> dropout
           '--> up [hidden -> inner] --------------------'

    (Shazeer, 2020, arXiv:2002.05202.)
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str = "silu",
        dropout: float = 0.0,
        activation_dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        dropouts = {"dropout": dropout, "activation_dropout": activation_dropout}
        super().__init__(hidden_size, intermediate_size, activation=activation, bias=bias, **dropouts)
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=bias)

    def forward(self, x: Tensor, run: Pass | None = None) -> Tensor:
        """Float[Tensor, "batch seq hidden"]  ->  the same shape"""
        run = run or Pass()
        gate = run.observe("gate", self.activation(self.gate(x)))  # [batch, seq, inner]
        pre = run.observe("pre", self.up(x))
        hidden = run.observe("hidden", gate * pre)
        return run.observe("output", self.dropout(self.down(self.activation_dropout(hidden))))
