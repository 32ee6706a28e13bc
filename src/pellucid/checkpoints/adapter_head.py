"""How an adapter changes the facts of its base: the head, its labels and the vocabulary size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.checkpoints.adapter_facts import TASKS, AdapterFacts, read_adapter_facts, weights_file_name
from pellucid.checkpoints.contents import Contents
from pellucid.checkpoints.facts import named_architecture
from pellucid.checkpoints.families import family_of_config
from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.labels import without_labels
from pellucid.checkpoints.links import path_inside
from pellucid.checkpoints.names import TensorLocation, TensorNames
from pellucid.checkpoints.tensors import read_metadata_value
from pellucid.checkpoints.weights import StoredTensor
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, MessagePart, shorten
from pellucid.lazy import cached_property

CONFIG_KEY = "config"
"""Metadata key of our own files for the adapted model's config.json; PEFT's format has no place for label names."""

HEAD_KEYS = "architectures id2label label2id num_labels problem_type classifier_dropout pad_token_id prefix".split()
"""Keys in which an adapter may override its base."""


NETWORK = "network."
"""Prefix of our own names in what PEFT writes for a model of `pellucid.compat`."""


def locations_in(names: TensorNames, tensor_name: str) -> dict[str, TensorLocation]:
    """Our parameters that an adapter's tensor holds, with their locations; `tensor_name` is the family's or ours."""
    location = own_location(names, tensor_name)
    return names.parameters_of(tensor_name if location is None else location.tensor_name)


def own_location(names: TensorNames, name: str) -> TensorLocation | None:
    """The location of one of our parameters in its family's files; None for any other name."""
    if not name.startswith(NETWORK):
        return None
    try:
        return names.location_of(name.removeprefix(NETWORK), prefixed=True)
    except KeyError:
        return None


@dataclass(frozen=True)
class Adapter:
    """An adapter's files, and the base that it needs. base, base_name: the contents and the name of the base."""

    folder: Path
    base: Contents
    base_name: str

    @cached_property
    def facts(self) -> AdapterFacts:
        """The facts in its adapter_config.json."""
        return read_adapter_facts(self.folder)

    @cached_property
    def path(self) -> Path:
        """The file with its weights."""
        return path_inside(self.folder, weights_file_name(self.folder))

    @cached_property
    def family(self) -> Family:
        """The family of the base."""
        return family_of_config(self.base.facts, str(self.base.facts_path))

    def head_page(self, facts: dict[str, Any]) -> tuple[HeadPage, TensorNames]:
        """The page of the head that these facts name, and the tensor names of its files."""
        architecture = named_architecture(facts)
        page = next((one for one in self.family.heads if one.architecture == architecture), self.family.heads[0])
        return page, self.family.names_with(page, lambda: self.family.read(facts, self.base.facts_path))

    def mismatch_error(self, *what: MessagePart) -> CheckpointMismatchError:
        """The error for an adapter that does not fit."""
        return CheckpointMismatchError(f"{self.path}: ", *what)

    def other_base_error(self, why: str) -> CheckpointMismatchError:
        """The error for a base that the adapter was not trained on."""
        return CheckpointMismatchError(f"{self.path} was made for another base than {self.base_name}: {why}")


def adapted_facts(adapter: Adapter, replacements: dict[str, StoredTensor]) -> dict[str, Any]:
    """The facts of the base, with the adapter's head.

    replacements: the adapter's tensors that replace the base's, by the reference's names.
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
    """The vocabulary size, where the adapter holds a token table: it may have more tokens than its base."""
    _, names = adapter.head_page(adapter.base.facts)
    for name, numbers in replacements.items():
        if numbers.shape and any(
            parameter.endswith("embeddings.token.weight") for parameter in locations_in(names, name)
        ):
            return {"vocab_size": numbers.shape[0]}
    return {}


def _noted_facts(path: Path) -> dict[str, Any] | None:
    """The adapted model's facts, in the metadata of our own files."""
    note = read_metadata_value(path, CONFIG_KEY) if path.suffix == ".safetensors" else None
    if note is not None and not isinstance(note, dict):
        raise CorruptFileError(f"{path} has a note that is a {type(note).__name__}, expected an object")
    return note


def _check_same_base(adapter: Adapter, noted_facts: dict[str, Any]) -> None:
    """Checks that the adapter was trained on a base with these facts."""
    keys, standard = adapter.family.keys, adapter.family.defaults.facts()
    defaults = {"model_type": None} | {key: standard[fact] for key, fact in keys.our_names.items()}
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
    """The facts with this number of labels; their names are kept where the number is unchanged."""
    id2label = facts.get("id2label")
    if isinstance(id2label, dict) and len(id2label) == number:
        return facts
    return without_labels(facts) | {"num_labels": number}
