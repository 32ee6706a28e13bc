"""What is known of a graph while its steps are matched to BERT."""

from dataclasses import dataclass, field

from pellucid.checkpoints.convert.constants import ConstantTensor
from pellucid.checkpoints.convert.probe import GraphRun
from pellucid.checkpoints.convert.steps import Linear, Lookup, Norm, Step, Steps

WITH_ACTIVATION = ("pooler.dense", "intermediate.dense", "predictions.transform.dense")
"""Linear layers whose activation may be part of the same operation."""


@dataclass
class Body:
    """The encoder of a graph: its weights by the reference's names, and the step with the last hidden states.

    assigned: every step that has been matched, by the name of its weights.
    run: computes what is between steps, on random values.
    long_run: the same for one text of maximum length, with which only attention is checked; None where `run` has that
        length already.
    attention_weights: names of the values that are attention weights.
    """

    steps: Steps
    run: GraphRun
    long_run: GraphRun | None = None
    tables: dict[str, ConstantTensor] = field(default_factory=dict)
    assigned: dict[str, Step] = field(default_factory=dict)
    attention_weights: set[str] = field(default_factory=set)
    last_norm: Norm = field(init=False)

    @property
    def runs(self) -> list[GraphRun]:
        """All runs: one or two."""
        return [self.run] if self.long_run is None else [self.run, self.long_run]

    def add_weights(self, step: Linear | Norm | Lookup, name: str) -> None:
        """Records a step's tensors under `name`; for a linear layer without a bias, a bias of zeros."""
        self.assigned[name] = step
        if step.node.op_type == "FusedGemm" and not name.endswith(WITH_ACTIVATION):
            raise self.steps.not_bert_error(f"an activation follows {name} ({step.node})")
        if isinstance(step, Lookup):
            self.tables[f"{name}.weight"] = step.table
            return
        self.tables[f"{name}.weight"] = step.weight
        zeros = ConstantTensor(step.weight.numbers.new_zeros(step.weight.shape[0]), frozenset())
        self.tables[f"{name}.bias"] = step.bias or zeros
