"""Explanations of a model's output, each with its paper and its limits.

All of them are available as `model.explain.<name>(...)`; here they are plain functions of a `Loaded`. Their modules are
imported on first use.
"""

from typing import TYPE_CHECKING

from pellucid.lazy import lazy_attributes

if TYPE_CHECKING:
    from pellucid.trace.explain.direct import DirectAttribution as DirectAttribution
    from pellucid.trace.explain.direct import direct_logit_attribution as direct_logit_attribution
    from pellucid.trace.explain.explain import Explain as Explain
    from pellucid.trace.explain.gradients import Attribution as Attribution
    from pellucid.trace.explain.gradients import gradient_x_input as gradient_x_input
    from pellucid.trace.explain.gradients import integrated_gradients as integrated_gradients
    from pellucid.trace.explain.heads import HeadScores as HeadScores
    from pellucid.trace.explain.heads import head_scores as head_scores
    from pellucid.trace.explain.lens import LogitLens as LogitLens
    from pellucid.trace.explain.lens import logit_lens as logit_lens
    from pellucid.trace.explain.rollout import attention_rollout as attention_rollout

_HOMES = {
    "DirectAttribution": "direct",
    "direct_logit_attribution": "direct",
    "Explain": "explain",
    "Attribution": "gradients",
    "gradient_x_input": "gradients",
    "integrated_gradients": "gradients",
    "HeadScores": "heads",
    "head_scores": "heads",
    "LogitLens": "lens",
    "logit_lens": "lens",
    "attention_rollout": "rollout",
}
__all__ = [*_HOMES]
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
