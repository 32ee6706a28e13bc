"""The summary of a training run, in two lines before it starts, and its recipe."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from pellucid import __version__
from pellucid.errors import format_count
from pellucid.models import count
from pellucid.training.arguments import NOTHING
from pellucid.training.provenance import DataSource
from pellucid.training.recipe import Recipe

if TYPE_CHECKING:
    from pellucid.training.plan import Plan
    from pellucid.training.report import RunStart

MAX_SHOWN_LABELS = 6
"""The most labels that are named."""


def summary_lines(start: "RunStart") -> list[str]:
    """Two lines: the rows and their labels; the steps, the trainable parameters, precision, threads and processes."""
    plan, held_out = start.plan, ""
    source, settings = plan.data_arguments.held_out_source, plan.settings
    if plan.held_out is not None:
        share = len(plan.held_out) / (len(plan.held_out) + len(plan.data))
        held_out_origin = (
            f"of {source.name}" if source else f"({share:.0%})" if share > 0.01 else f"({100 * share:.1g}%)"
        )
        held_out = f", {len(plan.held_out):,} held out {held_out_origin}"
    rows = f"{format_count(len(plan.data), 'row')} of {plan.data.name} to learn from"
    data = f"{plan.objective.name}: {rows}{held_out}{_labels(plan)}"
    often = format_count(settings.epochs, "epoch") if settings.max_steps is None else f"{settings.max_steps:,} at most"
    numbers = [p for p in plan.loaded.module.parameters() if p.requires_grad]
    learns = sum(p.numel() for p in numbers)
    means = [start.precision, format_count(torch.get_num_threads(), "thread")]
    means += [f"{start.ranks.world_size} processes"] if start.ranks.world_size > 1 else []
    base = plan.base.source.name if plan.base.source is not None else "random numbers"
    steps = f"{format_count(start.steps, 'step')} ({often})" + (f", on from step {start.step:,}" if start.step else "")
    share = f"{learns:,} of {count(plan.loaded.module):,} parameters are trainable"
    return [data, f"{steps}, from {base}; {share}; {', '.join(means)}"]


def recipe_of(start: "RunStart", result: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a run that has started.  result: its outcome, where it has ended."""
    plan = start.plan
    arguments, objective, base, held_out = plan.data_arguments, plan.objective, plan.base.source, plan.held_out
    num_rows = len(plan.data) + (len(held_out) if held_out is not None and arguments.held_out_source is None else 0)
    model = {"from_scratch": True} if base is None else {"name": base.name, "revision": base.revision}
    validation: dict[str, Any] = {} if arguments.held_out_source else {"share": float(arguments.held_out_share)}
    if held_out is not None:
        validation |= _facts(held_out, arguments.held_out_source or DataSource(f"a share of {arguments.source.name}"))
    made = {
        "pellucid": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processes": start.ranks.world_size,
        "precision": start.precision,
    }
    facts = {"rows": num_rows, "columns": arguments.columns or None}
    facts |= {} if arguments.encoding == "utf-8" else {"encoding": arguments.encoding}
    return Recipe(
        task=objective.name,
        model=model | {"digest": plan.base_digest},
        data=_facts(plan.data, arguments.source) | facts,
        validation=validation,
        options=_recipe_options(objective, {}),
        settings=_recipe_options(plan.settings, objective.default_settings),
        made=made,
        result=result or {},
    )


def _labels(plan: "Plan") -> str:
    """The shares of the labels, where each row has one of the model's labels."""
    labels, rows = plan.loaded.config.labels, plan.data.rows
    many = Counter(str(row["label"]) for row in rows if row.get("label") is not None)
    if not many or not set(many) <= set(labels):
        return ""
    named = ", ".join(f"{label} {many[label] / len(rows):.0%}" for label in labels[:MAX_SHOWN_LABELS])
    return f"; labels: {named}" + (
        f" and {len(labels) - MAX_SHOWN_LABELS} more" if len(labels) > MAX_SHOWN_LABELS else ""
    )


def _facts(data: Any, source: DataSource) -> dict[str, Any]:
    return {"file": source.recipe_entry, "name": source.name, "rows": len(data), "digest": data.digest}


def _recipe_options(record: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The public fields of an objective or of settings; a None that is also the default is left out."""
    found = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = defaults.get(one.name, one.default)
        if not one.name.startswith("_") and (value is not None or default is not None):
            found[one.name] = NOTHING if value is None else value
    return found
