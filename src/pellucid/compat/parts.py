"""The parts of a model: which can be read and set by the reference's names, and how many parameters they hold."""

import warnings
from dataclasses import replace
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from pellucid.blocks.hooks import is_written_in
from pellucid.checkpoints.names import TensorNames
from pellucid.checkpoints.network import check_network
from pellucid.compat.arguments import missing_attribute_error
from pellucid.compat.config import PretrainedConfig
from pellucid.compat.generation_config import TOKEN_IDS, settings_to_save
from pellucid.errors import InputError
from pellucid.model import Model
from pellucid.models import count as numbers_in

_OWN = ("network", "pellucid", "config", "generation_config")

_ALTERNATIVES = {
    "gradient_checkpointing_enable": ": every pass keeps what its gradients need; smaller batches need less memory",
    "set_attn_implementation": ": pass attn_implementation to from_pretrained",
    "get_encoder": ": AutoModel.from_pretrained opens the body, and its parts are in .network",
    "get_decoder": ": AutoModel.from_pretrained opens the body, and its parts are in .network",
    "prune_heads": ": .pellucid.edit({'layers.3.attention.weights': zero(head=5)}), of pellucid.edits, leaves one out",
}
"""The reference's names that do not exist here, each with its alternative."""


_WIDTH_PRESERVING = (nn.Dropout, nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softmax, nn.LayerNorm)
"""Modules whose output is as wide as their input."""


class _Body(nn.ModuleDict):
    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        raise InputError(
            "base_model is for freezing its parts, and cannot be called: call the whole model, with "
            "output_hidden_states=True, or open the body alone with AutoModel.from_pretrained"
        )


def tensor_names(model: Model) -> TensorNames:
    """The names of tensors in the files of a model's family and head."""
    config, family = model.config, model.loaded.family
    return family.names_with(family.page(config.head), lambda: config)


def head_linears(model: Model) -> dict[str, str]:
    """The linear layers of a head by the reference's names, each with its path in the network, such as `{"classifier":
    "head.classifier"}`; only those that are not within a submodule of the head in the reference."""
    names = tensor_names(model)
    found: dict[str, str] = {}
    for path, part in model.module.named_modules():
        if path.startswith("head.") and isinstance(part, nn.Linear):
            reference_name = names.location_of(f"{path}.weight", prefixed=True).tensor_name.removesuffix(".weight")
            found |= {} if "." in reference_name else {reference_name: path}
    return found


def feature_count(part: Any, side: str = "out_features") -> int | None:
    """The output width of a linear layer, or of an `nn.Sequential` that ends in one; None if undetermined.

    side: "in_features" for the input width, of a linear layer only.
    """
    if isinstance(part, nn.Sequential) and side == "out_features":
        for one in reversed(part):
            if (found := feature_count(one)) is not None or not isinstance(one, _WIDTH_PRESERVING):
                return found
    width = getattr(part, side, None)
    return width if isinstance(width, int) else None


class Parts(nn.Module):
    """The part of the reference's model interface that concerns submodules.

    `model.classifier`, `lm_head`, `score` and `qa_outputs`, where the reference has a linear layer of the head of this
    name, are the network's, to be read and set. Other parts can be set only in `network`. Read `model.pellucid` again
    after the number of labels has changed: an older reference to it keeps the old labels.
    """

    pellucid: Model
    network: Any
    maps: dict[str, str]

    _keys_to_ignore_on_save: ClassVar[list[str] | None] = None
    """The reference's Trainer reads this when names are missing from a state dict."""

    @property
    def base_model(self) -> nn.Module:
        """Everything but the head, for freezing: `model.base_model.parameters()`."""
        return _Body({name: part for name, part in self.network.named_children() if name != "head"})

    @property
    def config(self) -> PretrainedConfig:
        """Its configuration by the reference's keys; its labels follow a replaced head."""
        if "config" not in vars(self):
            raise AttributeError("config")
        self.sync_labels()
        return vars(self)["config"]

    @config.setter
    def config(self, config: PretrainedConfig) -> None:
        vars(self)["config"] = config

    @property
    def num_labels(self) -> int:
        """The number of labels in the config."""
        return self.config.num_labels

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        self.config.num_labels = number

    def can_generate(self) -> bool:
        """Whether it has a language model head that generates."""
        return self.pellucid.config.writes

    def tie_weights(self, **arguments: Any) -> None:
        """Does nothing: weights that the config ties are tied from the start.  arguments: ignored."""

    def post_init(self) -> None:
        """Does nothing, for derived classes whose `__init__` ends with it: building parts initializes their weights."""

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of parameters; exclude_embeddings: without token, position and type embeddings."""
        every = self.modules() if exclude_embeddings else ()
        tables = nn.ModuleList(part for part in every if hasattr(part, "num_embeddings"))
        if not only_trainable:
            return numbers_in(self) - numbers_in(tables)
        left_out = {id(parameter) for parameter in tables.parameters()}
        return sum(p.numel() for p in self.parameters() if p.requires_grad and id(p) not in left_out)

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.network.embeddings.token

    def get_output_embeddings(self) -> nn.Module | None:
        """The linear layer that gives the logits of tokens; None for a head without one."""
        return getattr(getattr(self.network, "head", None), "decoder", None)

    def __setattr__(self, name: str, value: Any) -> None:
        is_part = isinstance(value, nn.Module | nn.Parameter)
        if name in _OWN or name.startswith("_") or "maps" not in vars(self) or not (is_part or value is None):
            super().__setattr__(name, cast(Any, value))
        elif name in self.maps:
            self._set_head_linear(name, value)
        elif (is_part and self._uses_our_forward) or (value is None and name in self._part_names()):
            raise InputError(self._unused_part_message(name))
        else:
            super().__setattr__(name, cast(Any, value))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Adds `maps` to objects that were pickled before it existed."""
        super().__setstate__(state)
        if "pellucid" in vars(self) and "maps" not in vars(self):
            self._register_parts()

    def _register_parts(self) -> None:
        self.name_or_path = self.config.name_or_path  # read by PEFT
        self.maps = head_linears(self.pellucid)
        self.register_load_state_dict_pre_hook(read_by_family)

    def __delattr__(self, name: str) -> None:
        if name not in vars(self).get("maps", ()):
            super().__delattr__(name)
        else:
            getattr(self, name)  # raises where there is none
            delattr(*self._parent_and_name(name))

    @property
    def _uses_our_forward(self) -> bool:
        """Whether `forward` is ours, which runs no further parts; a subclass or this object may have another. Wrappers
        of ours by accelerate and PyTorch, such as autocast, do not count."""
        return is_written_in(vars(self).get("forward", type(self).forward), "pellucid", "accelerate", "torch")

    def _parent_and_name(self, name: str) -> tuple[nn.Module, str]:
        """The module that holds a linear layer of the head, and its name there."""
        path, _, last = self.maps[name].rpartition(".")
        return self.network.get_submodule(path), last

    def _head_linear(self, name: str) -> nn.Module:
        """A linear layer of the head. Raises AttributeError where it was removed."""
        part: Any = self.network
        for step in self.maps[name].split("."):
            part = getattr(part, step, None)
        if part is None:
            raise AttributeError(f"{name} was removed from this {type(self).__name__}: set it to a module first")
        return part

    def _set_head_linear(self, name: str, value: Any) -> None:
        """Replaces a linear layer of the head, and warns at once where no file of the family can hold the new one."""
        if not isinstance(value, nn.Module):
            kind = "None" if value is None else type(value).__name__
            raise InputError(f"{name} is {kind}, expected a module, such as nn.Linear: AutoModel opens the body alone")
        self.pellucid.loaded.module.require_float("setting a part")
        owner, last = self._parent_and_name(name)
        expected, found = feature_count(getattr(owner, last, None), "in_features"), feature_count(value, "in_features")
        if None not in (expected, found) and expected != found:
            raise InputError(f"{name} reads {found} numbers, and its input has {expected}: give it as many")
        setattr(owner, last, value)
        self.sync_labels()
        try:
            check_network(self.current_model().loaded, "saved")
        except InputError as error:
            advice = "; if they are two, set config.tie_word_embeddings = False" if "one table" in str(error) else ""
            if self._label_head() is not None and feature_count(value) is None:
                advice = "; its number of labels is unknown: set model.num_labels"
            warnings.warn(
                f"{name} is used and trained as set, but only state_dict() keeps it: {error}{advice}", stacklevel=3
            )

    def _label_head(self) -> nn.Module | None:
        head = self.pellucid.config.head
        return getattr(self.network, "head", None) if head is not None and head.answers == "labels" else None

    def sync_labels(self) -> None:
        """Sets the number of labels to the output width of the head, which may have been replaced, or to the config's
        where that cannot be determined."""
        if (head := self._label_head()) is None:
            return
        config: PretrainedConfig = vars(self)["config"]
        loaded, last = self.pellucid.loaded, getattr(head, "classifier", None)
        number = feature_count(last) or config.num_labels
        if last is not None and number != len(loaded.config.labels):
            config.num_labels = number
            labels = config.to_config(loaded.config.head).labels
            self.pellucid = Model(replace(loaded, config=loaded.config.replace(labels=labels), source=None))

    def current_model(self) -> Model:
        """`pellucid` with all changes to `config` (labels, ids of tokens, values that affect no computation) and to
        `generation_config`, and with the head's current number of labels."""
        self.sync_labels()
        loaded = self.pellucid.loaded
        current = self.config.to_config(loaded.config.head)
        labels = current.labels if len(current.labels) == len(loaded.config.labels) else loaded.config.labels
        facts: dict[str, Any] = {name: getattr(current, name) for name in TOKEN_IDS}
        last = self.get_output_embeddings()
        if last is not None and getattr(last, "weight", None) is not getattr(self.get_input_embeddings(), "weight", 0):
            facts["tie_word_embeddings"] = current.tie_word_embeddings and loaded.config.tie_word_embeddings
        config = loaded.config.replace(labels=labels, inert=current.inert, **facts)
        return self.pellucid.saying(config, settings_to_save(loaded, self.generation_config))

    def _part_names(self) -> set[str]:
        """The parts of the network, and the first components of their names in the reference."""
        names = tensor_names(self.pellucid)
        known = {name for name, _ in self.network.named_children()}
        for row in (*names.body, *names.head):
            known.add(row[0].partition(".")[0])
        return known | {names.prefix.partition(".")[0]}

    def _unused_part_message(self, name: str) -> str:
        """The message for setting a part that no pass would use."""
        spellings = [f"{one!r}, which is .network.{path}" for one, path in self.maps.items()]
        if getattr(self.network, "head", None) is not None and not spellings:
            last = "decoder" if hasattr(self.network.head, "decoder") else "classifier"
            spellings = [f".network.head.{last}"]
        known = " or ".join(spellings)
        if known and self._label_head() is not None:
            known += ", or open the model with from_pretrained(..., num_labels=7) for another number of labels"
        return (
            f"{name!r} cannot be replaced, since no pass would use it: the parts of this "
            f"{type(self).__name__} are in .network" + (f", and of its head set {known}" if known else "")
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in (*_OWN, "maps"):
                raise
            if name in vars(self).get("maps", ()):
                return self._head_linear(name)
            elsewhere = ": its parts are in .network, and its other methods in .pellucid"
            known = [one for one in dir(type(self)) if one != name and not one.startswith("_")]
            if name in _ALTERNATIVES:
                known, elsewhere = [], _ALTERNATIVES[name]
            raise missing_attribute_error(f"this {type(self).__name__}", name, known, elsewhere) from None


def read_by_family(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A `load_state_dict` hook: tensors under the names of the family's files are renamed to the network's."""
    assert isinstance(model, Parts)
    own = [name for name in state if name.startswith(prefix)]
    if any(name.startswith(f"{prefix}network.") for name in own):
        return
    names = tensor_names(model.pellucid)
    for name in own:
        found = names.parameters_of(name.removeprefix(prefix))
        if not found or not isinstance(state[name], Tensor):
            continue
        numbers = state.pop(name)
        state.update({f"{prefix}network.{ours}": location.extract(numbers) for ours, location in found.items()})
