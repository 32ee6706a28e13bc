"""The YAML front matter of a model's README.md as the hub reads it: base, task and scores."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Scored(NamedTuple):
    """A measured score. metric: its type on the hub, such as "accuracy".  name: for display."""

    metric: str
    name: str
    value: float


def front_matter(
    model: str, scores: Sequence[Scored], dataset: Mapping[str, str], task: str, **facts: str | list[str] | None
) -> str:
    """The front matter between two lines of dashes, with a final line break.

    scores: non-finite ones are left out.  dataset: "name", "type" and "split" of the evaluation data.  task: by its
    name on the hub.  facts: `base_model`, `library_name`, `metrics`, `tags`, ...; None and empty ones are left out.
    """
    from huggingface_hub.repocard_data import EvalResult, ModelCardData

    card_data: dict[str, Any] = {name: value for name, value in facts.items() if value}
    fields = {"dataset_name": dataset["name"], "dataset_type": dataset["type"], "dataset_split": dataset["split"]}
    results = [
        EvalResult(task_type=task, metric_type=one.metric, metric_name=one.name, metric_value=one.value, **fields)
        for one in scores
    ]
    if results:
        card_data |= {"model_name": model, "eval_results": results}
    return f"---\n{ModelCardData(**card_data).to_yaml()}\n---\n"
