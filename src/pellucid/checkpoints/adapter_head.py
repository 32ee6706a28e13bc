"""What an adapter says of the whole model: by whose facts it was learned, which head it has, and how many labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.checkpoints.adapter_facts import TASKS, AdapterFacts, read_adapter_facts, weights_file_name
from pellucid.checkpoints.contents import Contents
from pellucid.checkpoints.families import family_of_config
from pellucid.checkpoints.labels import without_labels
from pellucid.checkpoints.links import path_inside
from pellucid.checkpoints.names import TensorLocation, TensorNames
from pellucid.checkpoints.page import Family, HeadPage
from pellucid.checkpoints.tensors import read_metadata_value
from pellucid.checkpoints.weights import StoredTensor
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, MessagePart, shorten
from pellucid.lazy import cached_property

CONFIG_KEY = "config"
"""In the header of our own files: what the whole model is, as its config.json would say it. The format has no place for
the names of labels."""

HEAD_KEYS = "architectures id2label label2id num_labels problem_type classifier_dropout pad_token_id prefix".split()
"""Facts that an adapter may say in place of its base."""


NETWORK = "network."
"""Stands before our own names in what PEFT writes of a model of `pellucid.compat`."""


def locations_in(names: TensorNames, theirs: str) -> dict[str, TensorLocation]:
    """Our parameters that a tensor of an adapter stands for, and where: by a name of the family, or by our own."""
    location = own_location(names, theirs)
    return names.parameters_of(theirs if location is None else location.tensor_name)


def own_location(names: TensorNames, name: str) -> TensorLocation | None:
    """Where the numbers of a parameter of ours stand in the files of its family; None for any other name."""
    if not name.startswith(NETWORK):
        return None
    try:
        return names.location_of(name.removeprefix(NETWORK), prefixed=True)
    except KeyError:
        return None


@dataclass(frozen=True)
class Adapter:
    """An adapter's files, before they are understood. base, base_name: the contents of its base, and who that is."""

    folder: Path
    base: Contents
    base_name: str

    @cached_property
    def facts(self) -> AdapterFacts:
        """What its own file says."""
        return read_adapter_facts(self.folder)

    @cached_property
    def path(self) -> Path:
        """The file with its numbers."""
        return path_inside(self.folder, weights_file_name(self.folder))

    @cached_property
    def family(self) -> Family:
        """That of the base."""
        return family_of_config(self.base.facts, str(self.base.facts_path))

    def head_page(self, facts: dict[str, Any]) -> tuple[HeadPage, TensorNames]:
        """The page of the head that these facts name, and how the tensors of its file are called."""
        architecture = next(iter(facts.get("architectures") or []), None)
        page = next((one for one in self.family.heads if one.architecture == architecture), self.family.heads[0])
        return page, self.family.names_with(page, lambda: self.family.read(facts, self.base.facts_path))

    def mismatch_error(self, *what: MessagePart) -> CheckpointMismatchError:
        """The error that says what does not fit."""
        return CheckpointMismatchError(f"{self.path}: ", *what)

    def other_base_error(self, why: str) -> CheckpointMismatchError:
        """The error for a base that it was not learned on."""
        return CheckpointMismatchError(f"{self.path} was made for another base than {self.base_name}: {why}")


def adapted_facts(adapter: Adapter, replacements: dict[str, StoredTensor]) -> dict[str, Any]:
    """The facts of the base with the head that the adapter speaks of.

    replacements: its tensors that stand in place of the base's, by the reference's names.
    """
    noted_facts, base = _noted_facts(adapter.path), adapter.base.facts
    if noted_facts is not None:
        _check_same_base(adapter, noted_facts)
        return base | {key: noted_facts[key] for key in HEAD_KEYS if key in noted_facts}
    base, task = base | _vocabulary_facts(adapter, replacements), adapter.facts.task
    head_name = TASKS.get(task or "")
    if head_name is None:
        return base | ({"architectures": []} if task in TASKS else {})
    try:
        head = adapter.family.head_named(head_name)
        page = adapter.family.page(head)
    except InputError as error:
        raise adapter.mismatch_error(f"task_type is {task}, and ", error) from error
    facts = base | {"architectures": [page.architecture]}
    _, names = adapter.head_page(facts)
    for name, numbers in replacements.items():
        if "head.classifier.weight" in locations_in(names, name) and head.answers == "labels":
            return _with_labels(facts, numbers.shape[0] if numbers.shape else 0)
    return facts


def _vocabulary_facts(adapter: Adapter, replacements: dict[str, StoredTensor]) -> dict[str, Any]:
    """How many tokens there are, where the adapter holds a table of them: it may know more than its base."""
    _, names = adapter.head_page(adapter.base.facts)
    for name, numbers in replacements.items():
        if numbers.shape and any(ours.endswith("embeddings.token.weight") for ours in locations_in(names, name)):
            return {"vocab_size": numbers.shape[0]}
    return {}


def _noted_facts(path: Path) -> dict[str, Any] | None:
    """What our own files say of the whole model."""
    note = read_metadata_value(path, CONFIG_KEY) if path.suffix == ".safetensors" else None
    if note is not None and not isinstance(note, dict):
        raise CorruptFileError(f"{path} has a note that is a {type(note).__name__}, expected an object")
    return note


def _check_same_base(adapter: Adapter, noted_facts: dict[str, Any]) -> None:
    """The facts by which the adapter was learned must be those of the base."""
    keys, standard = adapter.family.keys, adapter.family.defaults.facts()
    defaults = {"model_type": None} | {key: standard[ours] for key, ours in keys.our_names.items()}
    for key, default in defaults.items():
        adapter_value, base_value = noted_facts.get(key), adapter.base.facts.get(key, default)
        if adapter_value != base_value and None not in (adapter_value, base_value) and not _may_differ(key):
            raise adapter.other_base_error(
                f"its {key} was {shorten(ascii(adapter_value))}, and here it is {shorten(ascii(base_value))}"
            )


def _may_differ(key: str) -> bool:
    """Whether a fact may differ between an adapter and its base."""
    return key in HEAD_KEYS or "drop" in key or key.endswith("token_id") or key == "initializer_range"


def _with_labels(facts: dict[str, Any], number: int) -> dict[str, Any]:
    """The facts with so many labels, and their names where these are as many."""
    id2label = facts.get("id2label")
    if isinstance(id2label, dict) and len(id2label) == number:
        return facts
    return without_labels(facts) | {"num_labels": number}
