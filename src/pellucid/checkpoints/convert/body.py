"""What is known of a graph while its steps are given their places in BERT."""

from dataclasses import dataclass, field

from pellucid.checkpoints.convert.constants import Part
from pellucid.checkpoints.convert.run import Run
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps

ACTIVE = ("pooler.dense", "intermediate.dense", "predictions.transform.dense")
"""Products that an activation may follow within the same operation."""


@dataclass
class Body:
    """The encoder of a graph: its tables by the reference's names, and the step that its last hidden state leaves.

    used: every step that has found its place.  run: what stands between them, tried on random numbers.
    long: the same for one text as long as may be, in which attention alone is tried; None where `run` holds no longer.
    weights: names of the values that are weights of attention.
    """

    steps: Steps
    run: Run
    long: Run | None = None
    tables: dict[str, Part] = field(default_factory=dict)
    used: list[Step] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    last: Norm = field(init=False)

    @property
    def runs(self) -> list[Run]:
        """The one or two that there are."""
        return [self.run] if self.long is None else [self.run, self.long]

    def place(self, step: Linear | Norm | Lookup, name: str) -> None:
        """Takes the tables of a step as `name`; a product without a bias adds nothing, which is a bias of zeros."""
        self.used.append(step)
        if step.node.kind == "FusedGemm" and not name.endswith(ACTIVE):
            raise self.steps.unlike(f"an activation follows {name} ({step.node})")
        if isinstance(step, Lookup):
            self.tables[f"{name}.weight"] = step.table
            return
        self.tables[f"{name}.weight"] = step.weight
        zeros = Part(step.weight.numbers.new_zeros(step.weight.shape[0]), frozenset())
        self.tables[f"{name}.bias"] = step.bias or zeros
