"""All explanations of a model in one place: `model.explain`."""

from typing import Any

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.trace import Trace
from pellucid.trace.edit import with_active_edits
from pellucid.trace.explain.direct import DirectAttribution, direct_logit_attribution
from pellucid.trace.explain.gradients import Attribution, gradient_x_input, integrated_gradients
from pellucid.trace.explain.heads import HeadScores, head_scores
from pellucid.trace.explain.inputs import as_trace, side_of
from pellucid.trace.explain.lens import LogitLens, logit_lens
from pellucid.trace.explain.rollout import attention_rollout


class Explain:
    """Ways to explain a model's output. The function that each method refers to documents its arguments and limits."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def loaded(self) -> Loaded:
        """The record that is explained; inside a block of `edit`, wherever this was made, that of the edited model."""
        return with_active_edits(self._loaded)

    def logit_lens(self, text: str | Trace, *, k: int = 5, decoder_text: str | None = None) -> LogitLens:
        """What the model would predict if it stopped at a layer: the likeliest tokens after every layer
        (nostalgebraist, 2020). See `pellucid.trace.explain.logit_lens`."""
        return logit_lens(self.loaded, text, k=k, decoder_text=decoder_text)

    def direct_logit_attribution(
        self, text: str | Trace, token: str | int, against: str | int | None = None, **options: Any
    ) -> DirectAttribution:
        """A logit, or the difference of two, as a sum over heads, feed-forward blocks, embeddings and biases
        (Elhage et al., 2021). See `pellucid.trace.explain.direct_logit_attribution`."""
        return direct_logit_attribution(self.loaded, text, token, against, **options)

    def attention_rollout(self, text: str | Trace, *, side: str | None = None, residual: float = 0.5) -> Tensor:
        """Attention multiplied through the layers: Float[Tensor, "layers queries keys"] (Abnar and Zuidema, 2020,
        arXiv:2005.00928). See `pellucid.trace.explain.attention_rollout`."""
        trace = as_trace(self.loaded, text, (f"{side_of(self.loaded, side, 'encoder')}layers.*.attention.weights",))
        return attention_rollout(trace, side=side, residual=residual)

    def gradient_x_input(self, text: str, target: str | int | None = None, **options: Any) -> Attribution:
        """How much each token contributes to one output, by the gradient at its embedding (Shrikumar et al., 2016,
        arXiv:1605.01713). See `pellucid.trace.explain.gradient_x_input`."""
        return gradient_x_input(self.loaded, text, target, **options)

    def integrated_gradients(self, text: str, target: str | int | None = None, **options: Any) -> Attribution:
        """The same by gradients along the path from a baseline to the text, so that the scores sum to the change of the
        output (Sundararajan et al., 2017, arXiv:1703.01365). See `pellucid.trace.explain.integrated_gradients`."""
        return integrated_gradients(self.loaded, text, target, **options)

    def head_scores(self, text: str | Trace | None = None, **options: Any) -> HeadScores:
        """Which heads attend to the previous token, the first, the same, what followed it last time, and how broadly
        (Olsson et al., 2022, arXiv:2209.11895). See `pellucid.trace.explain.head_scores`."""
        return head_scores(self.loaded, text, **options)

    def __repr__(self) -> str:
        methods = [name for name, one in vars(type(self)).items() if callable(one) and not name.startswith("_")]
        return f"Explain({', '.join(methods)})"
