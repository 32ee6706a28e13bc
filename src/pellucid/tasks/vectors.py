"""Tasks that compare texts by one vector each, and the similarities of such vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import OF_TOKENS
from pellucid.config.checks import check_choice
from pellucid.config.pooling import SIMILARITIES, Pooling
from pellucid.models import Network, Output
from pellucid.tasks.attribution import Target
from pellucid.tasks.embed import normalize_and_truncate, pool, pooled_states, warn_unknown_tokens
from pellucid.tasks.reader import Reader, WindowOutput, mean_output
from pellucid.tasks.task import Work
from pellucid.text import Window

BODY_HEADS = (None, *OF_TOKENS)
"""Heads whose body gives vectors of texts: none, and those over the vocabulary, with which it was pretrained."""


@dataclass(frozen=True, kw_only=True)
class VectorTask(Reader):
    """A task that compares vectors of texts, pooled as the checkpoint sets it, or by the mean where it sets nothing.

    similarity: "cosine", "dot", or "euclidean" and "manhattan", which are negated distances; by default the
        checkpoint's.
    The vector of a text read in windows is the mean of theirs, each weighted by its tokens.
    explain: by gradients, so for two equal texts it shows nothing: they cannot become more similar.
    """

    similarity: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.similarity is not None:
            check_choice("similarity", self.similarity, SIMILARITIES)

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Any) -> dict[str, Any]:
        """The options; by default `max_length` is the checkpoint's for pooling."""
        return {"max_length": loaded.pooling_length()} | dict(options)

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        return pooled_states(module, batch, pooling_of(work))[0]

    def window_output(self, work: Work, output: Tensor, window: Window) -> Tensor:
        return window_vector(work, output)

    def _window_outputs(self, work: Work, rows: list[Window]) -> Iterator[tuple[int, Any]]:
        unknown = [row.is_all_unknown(work.loaded.required_tokenizer.unk_token_id) for row in rows]
        starts = [i for i, row in enumerate(rows) if row.index == 0]
        work.text_counts.texts += len(starts)
        work.text_counts.unknown += sum(all(unknown[i : i + rows[i].count]) for i in starts)
        return super()._window_outputs(work, rows)

    def warn_about_items(self, work: Work) -> None:
        warn_unknown_tokens(work.text_counts.unknown, work.text_counts.texts)

    def text_similarity(self, work: Work, one: Tensor, other: Tensor) -> Tensor:
        """The similarity of two texts, from vectors not yet normalized or truncated: Float[Tensor, "width"], twice"""
        plan = pooling_of(work)
        return vector_similarity(
            self.similarity or plan.similarity, normalize_and_truncate(one, plan), normalize_and_truncate(other, plan)
        )

    def similarity_target(self, work: Work, outputs: list[WindowOutput], other: Tensor, text: str) -> Target:
        """The similarity as a function of the window of a text that is most similar to the other.  text: its name."""
        best = max(outputs, key=lambda one: float(self.text_similarity(work, one.output, other)))
        rest = [window_output for window_output in outputs if window_output is not best]
        fixed = other.clone()  # tensors made in inference mode cannot take part in autograd

        def of(output: Output) -> Tensor:
            states = output.get("encoder_last_hidden_state", output["last_hidden_state"])
            best_output = WindowOutput(best.window, window_vector(work, states[0]))
            return self.text_similarity(work, mean_output([best_output, *rest]), fixed.to(states))

        return Target(f"{self.similarity or pooling_of(work).similarity} of the two texts", best.window, of, text)


def pooling_of(work: Work) -> Pooling:
    """How this checkpoint pools a text into a vector."""
    return work.loaded.pooling or Pooling()


def window_vector(work: Work, states: Tensor) -> Tensor:
    """The vector of one window, not normalized or truncated: Float[Tensor, "seq hidden"]  ->  Float[Tensor, "width"]"""
    return pool(states[None], None, Pooling(pooling_of(work).modes))[0]


def vector_similarity(metric: str, one: Tensor, other: Tensor) -> Tensor:
    """The similarity of two vectors: Float[Tensor, "width"], twice  ->  Float[Tensor, ""]"""
    match metric:
        case "cosine":
            scaled = [torch.nn.functional.normalize(vector, dim=-1) for vector in (one, other)]
            return scaled[0] @ scaled[1]
        case "dot":
            return one @ other
        case "euclidean":
            return 0 - (one - other).norm()
        case _:
            return 0 - (one - other).abs().sum()
