"""`SortedTensors`: the tensors of a file, each by what becomes of it, before any weights are read."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch

from pellucid.checkpoints.family_page import HeadPage
from pellucid.checkpoints.names import TensorLocation, TensorNames
from pellucid.checkpoints.weights import StoredTensor


@dataclass(frozen=True)
class Duplicate:
    """A second copy of a tensor in a file.

    location: of the second copy.  parameter: our name of the parameter that is filled from the first.
    may_differ: whether the copy is known to be unused, so that it may differ; otherwise both must be equal.
    tying_fact: the fact that ties the two, where a file could also set it to false.
    """

    location: TensorLocation
    parameter: str
    may_differ: bool = False
    tying_fact: str = ""


@dataclass
class SortedTensors:
    """The tensors of a file, each by what becomes of it; the fields are those of `Plan`.

    unexpected: names in the file that nothing accounts for.
    """

    locations: dict[str, TensorLocation] = field(default_factory=dict)
    duplicates: list[Duplicate] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    of_other_heads: dict[str, str] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def holds(self, prefix: str) -> bool:
        """Whether the file holds any parameter whose name of ours begins so."""
        return any(name.startswith(prefix) for name in self.locations)

    def tie(self, tied_names: dict[str, str]) -> None:
        """Of two tied parameters keeps one, as the first of them; a second copy becomes a duplicate of it."""
        for name, first in tied_names.items():
            if name in self.locations and first in self.locations:
                fact = "tie_word_embeddings" if name == "head.decoder.weight" else ""
                self.duplicates.append(Duplicate(self.locations.pop(name), first, tying_fact=fact))
            elif name in self.locations:
                self.locations[first] = self.locations.pop(name)
        self.duplicates = [
            replace(one, parameter=tied_names.get(one.parameter, one.parameter)) for one in self.duplicates
        ]

    def drop_other_labels(
        self, expected_shapes: dict[str, tuple[int, ...]], tensors: dict[str, StoredTensor]
    ) -> list[str]:
        """Drops the classifier's weights that the file holds in another shape. ->  their names of ours"""
        names = [
            name
            for name, location in self.locations.items()
            if name.startswith("head.classifier.")
            and name in expected_shapes
            and expected_shapes[name] != extracted_shape(location, tensors[location.tensor_name])
        ]
        for name in names:
            self.dropped[self.locations.pop(name).tensor_name] = "has another shape"
        return names


def sort_tensors(
    tensors: Collection[str], names: TensorNames, page: HeadPage, pools: bool, others: dict[str, TensorNames]
) -> SortedTensors:
    """`others`: architecture -> the names of its tensors, of the family's other heads."""
    found = SortedTensors()
    for tensor_name in tensors:
        parameters = names.parameters_of(tensor_name)
        if any(parameter.startswith("pooler.") for parameter in parameters) and not pools:
            found.dropped[tensor_name] = "the pooled first token is not read by this head"
        elif parameters:
            may_differ = page.duplicate_names.get(tensor_name) in tensors
            for parameter, location in parameters.items():
                if may_differ or parameter in found.locations:
                    found.duplicates.append(Duplicate(location, parameter, may_differ))
                else:
                    found.locations[parameter] = location
        elif (reason := names.drop_reason(tensor_name)) is not None:
            found.dropped[tensor_name] = reason
        elif (other := next((one for one in others if others[one].parameters_of(tensor_name)), None)) is not None:
            found.of_other_heads[tensor_name] = f"belongs to {other}, which was not requested"
        else:
            found.unexpected.append(tensor_name)
    return found


def extracted_shape(location: TensorLocation, stored: StoredTensor) -> tuple[int, ...]:
    """The shape of our part of a stored tensor, without reading it."""
    try:
        return tuple(location.extract(torch.empty(stored.shape, device="meta")).shape)
    except (IndexError, RuntimeError):
        return ()  # a tensor of this shape cannot be taken apart
