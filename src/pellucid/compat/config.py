"""The reference's configs: values by the keys of `config.json`, to be read and changed."""

import copy
import functools
import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self

from pellucid.checkpoints.facts import ARITHMETIC, INERT
from pellucid.checkpoints.families import families, family_of, family_of_config
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.load import read_config
from pellucid.compat.arguments import output_folder, pop_hub_options
from pellucid.config import Config, Head
from pellucid.config.checks import check_count, plain_number, plain_numbers
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, did_you_mean, shorten
from pellucid.files import write_atomically
from pellucid.paths import path_text

COMMON_KEYS = ("output_attentions", "output_hidden_states", "return_dict", "problem_type", "num_labels")
"""Keys of every config about calls, losses and labels, besides those of its family."""


_ALTERNATIVES = {
    "to_diff_dict": "to_dict() gives every key",
    "to_json_file": "save_pretrained(folder) writes config.json, and to_json_string() gives its text",
    "update_from_string": "update({name: value}) sets facts",
    "push_to_hub": "save_pretrained(folder) writes it, and the hub's own command `hf upload NAME FOLDER` sends it",
}
"""The reference's names that do not exist here, each with its alternative."""


class PretrainedConfig:
    """A model's configuration by the reference's keys, each an attribute that may be set before a model is built.

    Our names are accepted, too: `hidden_size` is DistilBERT's `dim`. `BertConfig` and the like are subclasses; each
    takes values by keyword over the family's defaults.
    """

    family: ClassVar[Family]
    output_attentions, output_hidden_states, return_dict = False, False, True
    problem_type: str | None = None
    name_or_path = ""
    is_encoder_decoder: bool

    def __init__(self, **facts: Any) -> None:
        self._set_facts(self.family.defaults, facts)
        self._set_derived_facts({key: value for key, value in self.to_dict().items() if key in facts})

    @staticmethod
    def of(config: Config, name: str = "", **changes: Any) -> "PretrainedConfig":
        """One of our configs as the reference writes it, with some values changed."""
        config_type = config_class(config_class_name(family_of(config.family, "config")))
        made = config_type.__new__(config_type)
        made._set_facts(config, changes | {"name_or_path": name})
        return made

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **arguments: Any) -> "PretrainedConfig":
        """The config of a checkpoint, with changes: `from_pretrained("bert-base-uncased", num_labels=3)`."""
        return PretrainedConfig.of(read_config(name, pop_hub_options(arguments)), path_text(name), **arguments)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **changes: Any) -> "PretrainedConfig":
        """A config from the dict of `to_dict` or of a `config.json`, with some values changed.

        Raises InputError for a `model_type` of no family here, or of another family than this class, and for a wrong
            value.
        """
        if not isinstance(config_dict, Mapping) or not all(isinstance(key, str) for key in config_dict):
            raise InputError(
                f"config_dict is {shorten(repr(config_dict))}, expected values by name: {{'vocab_size': 9}}"
            )
        facts, own = plain_numbers(config_dict), getattr(cls, "family", None)
        if isinstance(id2label := facts.get("id2label"), Mapping):
            facts["id2label"] = {  # as in a file
                str(int(i) if _is_number(i) else i): _label_text(label) for i, label in id2label.items()
            }
        if "label2id" in facts:
            facts["label2id"] = _numbers_by_label(facts["label2id"])
        family = family_of_config({"model_type": own and own.model_type} | facts, "config_dict")
        kind = config_class(config_class_name(family))
        if not issubclass(kind, cls):
            raise InputError(
                f"model_type is {family.model_type!r}, which is not for {cls.__name__}: use {kind.__name__}"
            )
        try:
            config = family.read(facts, Path("config_dict"))
        except CorruptFileError as error:  # no file is at fault: the caller passed it
            raise InputError(error) from error
        return PretrainedConfig.of(config, **changes)

    def __eq__(self, other: object) -> bool:
        """Whether both are of one family and hold equal values."""
        return type(self) is type(other) and isinstance(other, PretrainedConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # it is mutable

    def to_config(self, head: Head | None = None) -> Config:
        """The same as a `Config` of ours, with this head."""
        facts = self.to_dict()
        try:
            config = self._parse_facts(facts)
        except CorruptFileError as error:  # no file is at fault: the caller set it
            raise InputError(error) from error
        known = self._known_keys
        others = {key: value for key, value in facts.items() if key not in known}  # reported when they were read
        return config.replace(head=head, inert=config.inert | others)

    @property
    def _known_keys(self) -> set[str]:
        keys = self.family.keys
        return {
            *keys.our_names,
            *keys.fixed,
            *keys.inert,
            *INERT,
            *ARITHMETIC,
            *(k for p in keys.computed for k in p.keys),
        }

    def _parse_facts(self, facts: Mapping[str, Any]) -> Config:
        known = self._known_keys
        return self.family.read({k: v for k, v in facts.items() if k in known}, Path(type(self).__name__))

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        check_count("num_labels", number, maximum=1_000_000)
        if number != len(self.id2label):
            self.id2label = {i: f"LABEL_{i}" for i in range(number)}

    def to_dict(self) -> dict[str, Any]:
        """The keys of `config.json`, as copies: changing them has no effect here."""
        own = {name: copy.deepcopy(value) for name, value in vars(self).items() if name != "name_or_path"}
        own["id2label"] = {str(i): label for i, label in self.id2label.items()}
        return own

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of a `config.json`: every key, whatever `use_diff` is, so that it does not depend on defaults."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def update(self, config_dict: Mapping[str, Any]) -> None:
        """Sets values by name; InputError for a name that is not of this family."""
        for key, value in config_dict.items():
            self.set_fact(key, value)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Writes `config.json` into a folder, created where it is missing; InputError where it cannot be written."""
        content = json.dumps(self.to_dict(), indent=2) + "\n"
        with output_folder(folder) as path:
            write_atomically(path / "config.json", lambda file: file.write(content.encode()))

    def _set_facts(self, config: Config, changes: dict[str, Any]) -> None:
        for key, value in self.family.write(config).items():
            setattr(self, key, value)
        for key, value in changes.items():
            self.set_fact(key, value)

    def _set_derived_facts(self, facts: Mapping[str, Any]) -> None:
        """Sets values that follow from the given ones, as in a file with no others: in T5 the decoder's layers."""
        try:
            found = self.family.write(self._parse_facts(facts))
        except (CorruptFileError, CheckpointMismatchError):  # raised when a model is built from it
            return
        derived = {key for part in self.family.keys.computed for key in part.keys if key not in facts}
        for key in derived & found.keys():  # some are only read
            setattr(self, key, found[key])

    @property
    def settable_names(self) -> set[str]:
        """The names of its values, the reference's and ours."""
        return {*self.to_dict(), *self.family.keys.our_names.values(), *COMMON_KEYS, *INERT, "name_or_path"}

    def set_fact(self, key: str, value: Any) -> None:
        """Sets a value; InputError for a name that is not of this family."""
        if key not in (known := self.settable_names):
            raise InputError(
                f"there is no argument and no fact {key!r} of a {type(self).__name__}{did_you_mean(key, known)}"
            )
        setattr(self, key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        theirs, value = {ours: key for key, ours in self.family.keys.renamed.items()}, plain_number(value)
        if name == "id2label":
            value = _labels_by_number(value)
            vars(self)["label2id"] = {label: i for i, label in value.items()}
        elif name == "label2id":
            value = _numbers_by_label(value)
        object.__setattr__(self, theirs.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "id2label":  # copy and pickle read these before they exist
            raise AttributeError(f"this {type(self).__name__} has no {name!r}")
        if name in _ALTERNATIVES:
            raise AttributeError(f"this {type(self).__name__} has no {name!r}: {_ALTERNATIVES[name]}")
        return getattr(self.to_config(), name)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """This config: a text model has no other; decoder, encoder: as in the reference, which one is meant."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__} {json.dumps(self.to_dict(), indent=2, sort_keys=True, default=repr)}\n"


def _labels_by_number(id2label: Any) -> dict[int, str]:
    """An `id2label` with ints and texts. Raises InputError for what is none."""
    if not isinstance(id2label, Mapping) or not all(map(_is_number, id2label)):
        raise InputError(f"id2label is {shorten(repr(id2label))}, expected labels by number: {{0: 'no', 1: 'yes'}}")
    if any(isinstance(label, list | dict | set) for label in id2label.values()):
        raise InputError(f"id2label is {shorten(repr(id2label))}, expected a name for each number")
    return {int(i): _label_text(label) for i, label in id2label.items()}


def _numbers_by_label(label2id: Any) -> Any:
    """A `label2id` with texts and ints; what is no number stays, since `id2label` is what is followed."""
    if not isinstance(label2id, Mapping):
        return label2id
    return {_label_text(label): int(i) if _is_number(i) else i for label, i in plain_numbers(label2id).items()}


def _is_number(i: Any) -> bool:
    return isinstance(i, int) or str(i).isdecimal()


def _label_text(label: Any) -> str:
    """A label as text: of an Enum's member its value."""
    return str(label.value if isinstance(label, Enum) else label)


class AutoConfig:
    """Configs by the name of a checkpoint or a family."""

    from_pretrained = PretrainedConfig.from_pretrained

    @classmethod
    def for_model(cls, model_type: str, **facts: Any) -> PretrainedConfig:
        """The defaults of a family, with some values changed: `for_model("gpt2", n_layer=2)`."""
        return config_class(config_class_name(family_of(model_type, "for_model")))(**facts)


def config_class_name(family: Family) -> str:
    """The reference's name for a family's config class."""
    return f"{family.heads[0].architecture.removesuffix('Model')}Config"


@functools.cache
def config_class(name: str) -> type[PretrainedConfig]:
    """A family's config class by the reference's name for it, such as "BertConfig"."""
    by_name = {config_class_name(family): family for family in families().values()}
    if name not in by_name:
        raise AttributeError(f"pellucid.compat has no {name!r}{did_you_mean(name, by_name)}")
    pair = by_name[name].defaults.kind == "encoder-decoder"
    about = {
        "family": by_name[name],
        "is_encoder_decoder": pair,
        "__module__": __name__,
        "__doc__": f"What a {name.removesuffix('Config')} is.",
    }
    return type(name, (PretrainedConfig,), about)


def __getattr__(name: str) -> type[PretrainedConfig]:
    """The classes above by name, for pickle."""
    return config_class(name)
