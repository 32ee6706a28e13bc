"""What is known of a graph while its steps are given their places in BERT."""

from dataclasses import dataclass, field

from pellucid.checkpoints.convert.constants import ConstantTensor
from pellucid.checkpoints.convert.run import GraphRun
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps

WITH_ACTIVATION = ("pooler.dense", "intermediate.dense", "predictions.transform.dense")
"""Products that an activation may follow within the same operation."""


@dataclass
class Body:
    """The encoder of a graph: its tables by the reference's names, and the step that its last hidden state leaves.

    assigned: every step that has found its place.  run: what stands between them, tried on random numbers.
    long_run: the same for one text as long as may be, in which attention alone is tried; None where `run` has one.
    attention_weights: names of the values that are weights of attention.
    """

    steps: Steps
    run: GraphRun
    long_run: GraphRun | None = None
    tables: dict[str, ConstantTensor] = field(default_factory=dict)
    assigned: list[Step] = field(default_factory=list)
    attention_weights: set[str] = field(default_factory=set)
    last_norm: Norm = field(init=False)

    @property
    def runs(self) -> list[GraphRun]:
        """The one or two that there are."""
        return [self.run] if self.long_run is None else [self.run, self.long_run]

    def assign(self, step: Linear | Norm | Lookup, name: str) -> None:
        """Takes the tables of a step as `name`; a product without a bias adds nothing, which is a bias of zeros."""
        self.assigned.append(step)
        if step.node.op_type == "FusedGemm" and not name.endswith(WITH_ACTIVATION):
            raise self.steps.not_bert_error(f"an activation follows {name} ({step.node})")
        if isinstance(step, Lookup):
            self.tables[f"{name}.weight"] = step.table
            return
        self.tables[f"{name}.weight"] = step.weight
        zeros = ConstantTensor(step.weight.numbers.new_zeros(step.weight.shape[0]), frozenset())
        self.tables[f"{name}.bias"] = step.bias or zeros
