"""The model card (README.md) of a trained model: what it is, how to use it, its base and data, and its scores."""

import json
import math
from typing import TYPE_CHECKING

from pellucid import __version__
from pellucid.checkpoints.front_matter import Scored, front_matter
from pellucid.checkpoints.hub import is_hub_id
from pellucid.config import head_named
from pellucid.errors import format_count
from pellucid.tasks.names import TASKS
from pellucid.training.names import Name

if TYPE_CHECKING:
    from pellucid.training.report import Result

HUB_NAMES = {
    "matthews": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "f1_macro": "f1",
    "f1_second": "f1",
}
"""The hub's names of scores, where they differ; "loss" is no metric there."""

_USES = {
    "text-classification": "A text to classify.",
    "token-classification": "My name is Ada, and I live in London.",
    "fill-mask": "Paris is the [MASK] of France.",
    "text-generation": "Once upon a time",
    "sentence-similarity": "One text.",
}
"""The input of the example, by task; [MASK] stands for the model's own mask token."""

_BASELINE = (
    "The baseline gives every row the same answer: the commonest label, or the mean, of the rows that were learned "
    "from, or that there is no answer; - where it has no such score."
)


def model_card(result: "Result", name: Name) -> str:
    """The whole card in Markdown; it refers to recipe.toml, log.jsonl and curves.svg in the same folder."""
    title = result.folder.name if result.folder is not None else "A model"
    parts = [
        _front_matter(result, name, title),
        f"# {escape_markdown(title)}\n",
        _description(result, name),
        _use(result, name),
        _scores(result),
        _training_section(result),
    ]
    return "\n".join(part for part in parts if part)


def escape_markdown(text: str) -> str:
    """A text on one line, with the special characters of Markdown escaped."""
    return "".join(f"\\{sign}" if sign in "\\`*_|<>[]#" else sign for sign in " ".join(text.split()))


def format_score(value: float) -> str:
    """A score to four decimals, or "not finite"."""
    return f"{value:.4f}" if math.isfinite(value) else "not finite"


def _front_matter(result: "Result", name: Name, title: str) -> str:
    """The metadata for the hub."""
    plan = result.start.plan
    base = plan.base.source.name if plan.base.source is not None else None
    scores = [
        Scored(HUB_NAMES.get(one, one), one, value)
        for one, value in result.scores.items()
        if one != "loss" and math.isfinite(value)
    ]
    data = plan.data_arguments.held_out_source or plan.data_arguments.source
    return front_matter(
        title,
        scores,
        {"name": data.name, "type": data.kind, "split": "validation"},
        name.task or name.name,
        base_model=base if base is not None and _on_hub(base) else None,
        library_name=_other_library(result) or "pellucid",
        pipeline_tag=name.task or None,
        metrics=list(dict.fromkeys(one.metric for one in scores)),
        tags=["pellucid", "lora"] if plan.settings.lora else ["pellucid"],
    )


def _description(result: "Result", name: Name) -> str:
    plan = result.start.plan
    summaries = {one.name: one.summary for one in TASKS}.get(name.task, name.summary)
    base = "from random weights" if plan.base.source is None else f"from {_linked(plan.base.source.name)}"
    data = f"on {format_count(len(plan.data), 'row')} of {escape_markdown(plan.data.name)}"
    labels = plan.loaded.config.labels
    named = name.head and head_named(name.head).answers == "labels"
    listed = f" Its labels: {', '.join(map(escape_markdown, labels[:50]))}." if named else ""
    means = "A model for" if not name.task else f"A model for {name.task}:"
    what = f"{summaries[:1].lower()}{summaries[1:].partition(':')[0].rstrip('.')}."
    return f"{means} {what} Trained {base} by pellucid {__version__}, {data}.{listed}\n"


def _linked(base: str) -> str:
    return f"[{escape_markdown(base)}](https://huggingface.co/{base})" if _on_hub(base) else escape_markdown(base)


def _on_hub(base: str) -> bool:
    """Whether a name may be a hub id with an owner; a single word is taken for a folder or a package."""
    return "/" in base and is_hub_id(base)


def _other_library(result: "Result") -> str | None:
    """Another library that can load the model; None where there is none."""
    plan = result.start.plan
    loaded = plan.loaded
    if loaded.family.is_native:
        return None
    if plan.settings.adapter_only:
        return "peft"
    return "transformers" if loaded.config.head else "sentence-transformers"


def _use(result: "Result", name: Name) -> str:
    """An example that can be run."""
    folder, task = json.dumps(str(result.folder or "."), ensure_ascii=False), json.dumps(name.task)
    if name.task == "sentence-similarity":
        lines = [f"model = pellucid.load({folder})", 'vectors = model.embed(["One text.", "Another text."])']
    elif name.task == "question-answering":
        lines = [f'answer = pellucid.pipeline("question-answering", {folder})',
                 'answer(question="Who came?", context="Ada came at five.")']  # fmt: skip
    elif name.task:
        mask = result.loaded.required_tokenizer.mask_token or ""
        text = _USES.get(name.task, "A text.").replace("[MASK]", mask)
        lines = [f"ask = pellucid.pipeline({task}, {folder})", f"ask({json.dumps(text)})"]
    else:
        lines = [f"model = pellucid.load({folder})"]
    code = "\n".join(["import pellucid", "", *lines])
    others = _other_library(result)
    also = f"\n{'PEFT' if others == 'peft' else others} opens it as well.\n" if others else ""
    return f"## Use\n\n```python\n{code}\n```\n{also}"


def _scores(result: "Result") -> str:
    """A table of the scores on the held-out rows, with those before training and of the baseline."""
    if not result.scores:
        return ""
    every = {"this model": result.scores, "before": result.before, "baseline": result.baseline}
    columns = {title: scores for title, scores in every.items() if scores}
    head = f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}\n"
    held_out_rows = format_count(len(result.start.plan.held_out or ()), "held-out row")
    rows = ""
    for name in result.scores:
        cells = [format_score(scores[name]) if name in scores else "-" for scores in columns.values()]
        rows += f"| {escape_markdown(name)} | {' | '.join(cells)} |\n"
    note = f"\n{_BASELINE}\n" if result.baseline else ""
    return f"## Scores\n\nOf {held_out_rows}:\n\n{head}{rows}{note}"


def _training_section(result: "Result") -> str:
    start, settings = result.start, result.start.plan.settings
    best = f"; the weights are those of step {result.best_step:,}, the best" if result.best_step else ""
    what_is_trained = f"an adapter of rank {settings.lora}" if settings.lora else "the whole model"
    if settings.freeze:
        what_is_trained += f", without {escape_markdown(', '.join(settings.freeze))}"
    facts = {
        "steps": f"{result.steps:,}{best}",
        "what learned": what_is_trained,
        "learning rate": f"{settings.learning_rate:g}, {settings.schedule}, warm-up {settings.warmup:g}",
        "precision": start.precision,
        "seconds": f"{result.seconds:,.0f}",
        "seed": str(settings.seed),
    }
    rows = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    repeat = "`pellucid train --recipe THIS-FOLDER/recipe.toml -o NEW`, run in the folder of the first run, repeats it"
    return (
        f"## Training\n\n| | |\n|---|---|\n{rows}\nEvery setting, and digests of the base and the data, are in "
        f"[recipe.toml](recipe.toml); {repeat}. "
        "Every step is in [log.jsonl](log.jsonl).\n\n![Loss, scores and learning rate](curves.svg)\n"
    )
