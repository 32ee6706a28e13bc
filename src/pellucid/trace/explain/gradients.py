"""How much each token of the input contributes to one number of the output, by its gradient."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count
from pellucid.machine import inference_mode
from pellucid.trace.explain.embedding_function import AttributionTask, baseline_of, prepare, target_value
from pellucid.trace.explain.integration import NODES, IntegrationPath
from pellucid.trace.explain.table import format_token, table


@dataclass(frozen=True, eq=False)
class Attribution:
    """One number of the output, distributed over the tokens of the input.

    method: the method of attribution.  target: which number, in words.
    value: that number.  baseline: the same number for the baseline input; None where there is none.
    tokens: the tokens read, as the vocabulary spells them.  by_bytes: whether their characters stand for bytes.
    scores: Float64[Tensor, "tokens"], the contribution of each, positive or negative.
    read, read_scores, read_by_bytes: the same for the tokens that the decoder of an encoder-decoder read; else empty.
    error: the absolute difference between the sum of all scores and `value - baseline`; None where they need not agree.
    """

    method: str
    target: str
    value: float
    tokens: tuple[str, ...]
    scores: Tensor
    read: tuple[str, ...]
    read_scores: Tensor
    baseline: float | None = None
    error: float | None = None
    by_bytes: bool = False
    read_by_bytes: bool = False

    def strongest(self, most: int = 5) -> list[tuple[int, str, float]]:
        """The tokens of the input with the largest absolute scores, as (position, token, score)."""
        most = check_count("most", most)
        order = self.scores.abs().argsort(descending=True)[:most].tolist()
        return [(i, self.tokens[i], float(self.scores[i])) for i in order]

    def __repr__(self) -> str:
        note = "" if self.error is None else f" (of nothing {self.baseline:.4f}; the scores miss by {self.error:.1e})"
        tokens = [format_token(token, self.by_bytes, 24) for token in self.tokens]
        tokens += [format_token(token, self.read_by_bytes, 24) for token in self.read]
        scores = [*self.scores.tolist(), *self.read_scores.tolist()]
        rows = [[token, f"{score:+.4f}"] for token, score in zip(tokens, scores)]
        return f"Attribution by {self.method}: {self.target} is {self.value:.4f}{note}\n{table(rows)}"


@inference_mode(False)  # whatever the caller has set
def gradient_x_input(
    loaded: Loaded,
    text: str,
    target: str | int | None = None,
    *,
    against: str | int | None = None,
    position: int | None = None,
    pair: str | None = None,
    decoder_text: str | None = None,
) -> Attribution:
    """The gradient of an output at each token's embedding, times that embedding, summed (Shrikumar et al., 2016,
    arXiv:1605.01713; for Transformers Atanasova et al., 2020, arXiv:2009.13295).

    target: a label or its index; of a language model a token or its id; None for the likeliest.
    against: explains the difference to the logit of this one instead.
    position: the token to explain the output of; by default the last of a decoder, or the only mask.
    pair: the second text of a pair.  decoder_text: what the decoder of an encoder-decoder reads.

    The embedding is `embeddings.output`, position and type included. What it does not show: anything beyond the
    immediate neighbourhood of this input. Where the output is saturated the gradient is nearly zero, however much a
    token matters; and the scores have no meaningful sum. `integrated_gradients` avoids both at some cost.
    Raises InputError for a model without a head, or with one that alone is untrained.
    """
    task = prepare(loaded, "gradient x input", text, target, against, position, pair, decoder_text)
    path, end = _integration_path(loaded, task, "zero"), torch.ones(1, device="cpu")
    return _attribution(task, "gradient x input", float(path.values_at(end)), path.derivatives_at(end)[0])


@inference_mode(False)
def integrated_gradients(
    loaded: Loaded,
    text: str,
    target: str | int | None = None,
    *,
    steps: int = 512,
    baseline: str = "zero",
    against: str | int | None = None,
    position: int | None = None,
    pair: str | None = None,
    decoder_text: str | None = None,
    progress: bool | None = None,
) -> Attribution:
    """The gradients along the straight path from a baseline input to this one, integrated, times the difference of the
    two (Sundararajan et al., 2017, arXiv:1703.01365).

    steps: the most points on the path at which the gradient is computed. No more are used than needed: an interval
        whose scores do not sum to the change of the output across it is halved.
    baseline: the input without information: "zero" (embeddings of zeros), or "pad" or "mask" in place of every token
        but the special ones. The scores depend on it, and none is right for all (Sturmfels et al., 2020, "Visualizing
        the Impact of Feature Attribution Baselines"). In pre-norm models (GPT-2, Llama, T5) the output varies wildly
        near zero, since the norms undo the scaling of the embeddings: prefer "pad" for deep ones.
    progress: show a bar; by default for long work at a terminal.
    The other arguments are those of `gradient_x_input`.

    The scores sum to the output minus that of the baseline (completeness); `error` is the difference, and a warning is
    logged where it is large. What it does not show: interactions of tokens, which are distributed over them anyway; and
    the path crosses inputs that no text produces.
    Raises InputError for a model without a head, or with one that alone is untrained, and for a baseline that its
        tokenizer lacks.
    """
    steps = check_count("steps", steps, minimum=NODES, maximum=100_000)
    task = prepare(loaded, "integrated gradients", text, target, against, position, pair, decoder_text)
    result = _integration_path(loaded, task, baseline).integrate(steps, progress)
    is_narrow = loaded.module.dtype.itemsize < 4  # then rounding alone misses, at any number of steps
    result.warn_if_inaccurate("load the model in float32" if is_narrow else "take more steps or another baseline")
    return _attribution(task, "integrated gradients", result.value, result.scores, result.baseline, result.error)


def _integration_path(loaded: Loaded, task: AttributionTask, baseline: str) -> IntegrationPath:
    return IntegrationPath(partial(target_value, loaded, task), baseline_of(loaded, task, baseline), task.embeddings)


def _attribution(
    task: AttributionTask,
    method: str,
    value: float,
    scores: Tensor,
    baseline: float | None = None,
    error: float | None = None,
) -> Attribution:
    """scores: of the tokens of the input, followed by those that the decoder read."""
    source, target_scores = scores.split([len(task.reading.tokens), len(task.reading.target_tokens)])
    return Attribution(
        method=method,
        target=task.target.description,
        value=value,
        tokens=tuple(task.reading.tokens),
        scores=source,
        read=task.reading.target_tokens,
        read_scores=target_scores,
        baseline=baseline,
        error=error,
        by_bytes=task.reading.by_bytes,
        read_by_bytes=task.reading.target_by_bytes,
    )
