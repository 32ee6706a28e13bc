"""The parts of a model: which may be asked for and set by the reference's names, and how many numbers they hold."""

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
"""Names of the reference's that are none here, each with what does that."""


_WIDTH_PRESERVING = (nn.Dropout, nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softmax, nn.LayerNorm)
"""What gives as many numbers as it reads."""


class _Body(nn.ModuleDict):
    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        raise InputError(
            "base_model is for freezing its parts, and cannot be called: call the whole model, with "
            "output_hidden_states=True, or open the body alone with AutoModel.from_pretrained"
        )


def tensor_names(model: Model) -> TensorNames:
    """How the files of a model's family and head call its tensors."""
    config, family = model.config, model.loaded.family
    return family.names_with(family.page(config.head), lambda: config)


def head_linears(model: Model) -> dict[str, str]:
    """The linear maps of a head by the reference's names for them, each with its path in the network, such as
    `{"classifier": "head.classifier"}`; only those that stand in no part of the head in the reference."""
    names = tensor_names(model)
    found: dict[str, str] = {}
    for path, part in model.module.named_modules():
        if path.startswith("head.") and isinstance(part, nn.Linear):
            reference_name = names.location_of(f"{path}.weight", prefixed=True).tensor_name.removesuffix(".weight")
            found |= {} if "." in reference_name else {reference_name: path}
    return found


def feature_count(part: Any, side: str = "out_features") -> int | None:
    """How many numbers a part gives, a map or a plain chain that ends in one; None where that is not to be seen.

    side: "in_features" for how many it reads, of a map alone.
    """
    if isinstance(part, nn.Sequential) and side == "out_features":
        for one in reversed(part):
            if (found := feature_count(one)) is not None or not isinstance(one, _WIDTH_PRESERVING):
                return found
    width = getattr(part, side, None)
    return width if isinstance(width, int) else None


class Parts(nn.Module):
    """What a model of the reference says of its parts.

    `model.classifier`, `lm_head`, `score` and `qa_outputs`, where the reference calls a map of the head so, are that of
    the network, to be read and set. No other part can be set but in `network`. Take `model.pellucid` anew after the
    number of labels has changed: one that was held before goes on with the labels of before.
    """

    pellucid: Model
    network: Any
    maps: dict[str, str]

    _keys_to_ignore_on_save: ClassVar[list[str] | None] = None
    """What the reference's Trainer asks of a model whose state dict lacks names."""

    @property
    def base_model(self) -> nn.Module:
        """Everything but the head, to be frozen: `model.base_model.parameters()`."""
        return _Body({name: part for name, part in self.network.named_children() if name != "head"})

    @property
    def config(self) -> PretrainedConfig:
        """Its facts by the reference's keys; its labels follow a head that was set to another part."""
        if "config" not in vars(self):
            raise AttributeError("config")
        self.sync_labels()
        return vars(self)["config"]

    @config.setter
    def config(self, config: PretrainedConfig) -> None:
        vars(self)["config"] = config

    @property
    def num_labels(self) -> int:
        """How many labels the config names."""
        return self.config.num_labels

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        self.config.num_labels = number

    def can_generate(self) -> bool:
        """Whether its head writes."""
        head = self.pellucid.config.head
        return head is not None and head.writes

    def tie_weights(self, **arguments: Any) -> None:
        """Does nothing: tables that are one by the config are one from the start.  arguments: not heeded."""

    def post_init(self) -> None:
        """Does nothing, for a derived class whose `__init__` ends with it: numbers are drawn where parts are made."""

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """How many numbers it holds; exclude_embeddings: without its tables of tokens, places and types."""
        every = self.modules() if exclude_embeddings else ()
        tables = nn.ModuleList(part for part in every if hasattr(part, "num_embeddings"))
        if not only_trainable:
            return numbers_in(self) - numbers_in(tables)
        left_out = {id(parameter) for parameter in tables.parameters()}
        return sum(p.numel() for p in self.parameters() if p.requires_grad and id(p) not in left_out)

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        return self.network.embeddings.token

    def get_output_embeddings(self) -> nn.Module | None:
        """The map that gives each token its logit; None where no head has one."""
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
        """What was pickled before there were `maps` gets them."""
        super().__setstate__(state)
        if "pellucid" in vars(self) and "maps" not in vars(self):
            self._register_parts()

    def _register_parts(self) -> None:
        self.name_or_path = self.config.name_or_path  # where PEFT looks for it
        self.maps = head_linears(self.pellucid)
        self.register_load_state_dict_pre_hook(read_by_family)

    def __delattr__(self, name: str) -> None:
        if name not in vars(self).get("maps", ()):
            super().__delattr__(name)
        else:
            getattr(self, name)  # says where there is none
            delattr(*self._parent_and_name(name))

    @property
    def _uses_our_forward(self) -> bool:
        """Whether a pass is ours, which hears of no further part; a subclass, or this one, may have another. What
        accelerate and PyTorch hang about ours, such as autocast, is none."""
        return is_written_in(vars(self).get("forward", type(self).forward), "pellucid", "accelerate", "torch")

    def _parent_and_name(self, name: str) -> tuple[nn.Module, str]:
        """The part of the network in which a map of the head stands, and by which name."""
        path, _, last = self.maps[name].rpartition(".")
        return self.network.get_submodule(path), last

    def _head_linear(self, name: str) -> nn.Module:
        """A map of the head. Raises AttributeError where somebody took it away."""
        part: Any = self.network
        for step in self.maps[name].split("."):
            part = getattr(part, step, None)
        if part is None:
            raise AttributeError(f"{name} was removed from this {type(self).__name__}: set it to a module first")
        return part

    def _set_head_linear(self, name: str, value: Any) -> None:
        """Puts a module in place of a map of the head, and tells at once where no file of the family can hold it."""
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
        """Makes the labels as many as the head gives, which may have been set to another part; where that is not to be
        seen, as many as the config says."""
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
        """`pellucid` with what was set since in `config` (labels, ids of tokens, what changes no number of a pass) and
        in `generation_config`, and with as many labels as its head gives by now."""
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
        """The parts of the network, and the first words of what the reference calls them."""
        names = tensor_names(self.pellucid)
        known = {name for name, _ in self.network.named_children()}
        for row in (*names.body, *names.head):
            known.add(row[0].partition(".")[0])
        return known | {names.prefix.partition(".")[0]}

    def _unused_part_message(self, name: str) -> str:
        """What to do where a part is set that no pass would ask."""
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
    """A hook: what `load_state_dict` is given under the names of the family's files goes under the network's."""
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
