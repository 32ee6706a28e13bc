"""The parts of a model: which may be asked for and set by the reference's names, and how many numbers they hold."""

from dataclasses import replace
from typing import Any, cast

from torch import nn

from pellucid.checkpoints.names import Names, Rows
from pellucid.compat.facts import PretrainedConfig
from pellucid.compat.said import lacking
from pellucid.errors import InputError
from pellucid.model import Model
from pellucid.models import count as numbers_in

_OWN = ("network", "pellucid", "config", "generation_config")

_ELSEWHERE = {
    "gradient_checkpointing_enable": ": every pass keeps what its gradients need; smaller batches need less memory",
    "set_attn_implementation": ": pass attn_implementation to from_pretrained",
    "get_encoder": ": AutoModel.from_pretrained opens the body, and its parts stand in .network",
    "get_decoder": ": AutoModel.from_pretrained opens the body, and its parts stand in .network",
    "prune_heads": ": .pellucid.edit({'layers.3.attention.weights': zero(head=5)}), of pellucid.edits, leaves one out",
    "push_to_hub": ": save_pretrained(folder) writes it, and the hub's own command `hf upload NAME FOLDER` sends it",
}
"""Names of the reference's that are none here, each with what does that."""


class _Body(nn.ModuleDict):
    def forward(self, *inputs: Any, **said: Any) -> Any:
        raise InputError(
            "base_model holds parts to be frozen, and is not called: ask the whole model, with "
            "output_hidden_states=True, or open the body alone with AutoModel.from_pretrained"
        )


def spoken(model: Model) -> tuple[Names, Rows]:
    """How the files of a model's family and head call its tensors."""
    config = model.config
    page = model.loaded.family.page(config.head)
    return model.loaded.family.names_with(page, lambda: config), page.rows


def maps_of_head(model: Model) -> dict[str, str]:
    """The linear maps of a head by the reference's names for them, each with its path in the network, such as
    `{"classifier": "head.classifier"}`; only those that stand in no part of the head in the reference."""
    names, rows = spoken(model)
    found: dict[str, str] = {}
    for path, part in model.module.named_modules():
        if path.startswith("head.") and isinstance(part, nn.Linear):
            theirs = names.theirs(f"{path}.weight", rows, prefixed=True).theirs.removesuffix(".weight")
            found |= {} if "." in theirs else {theirs: path}
    return found


class Parts(nn.Module):
    """What a model of the reference says of its parts.

    `model.classifier`, `lm_head`, `score` and `qa_outputs`, where the reference calls a map of the head so, are that of
    the network, to be read and set. No other part can be set but in `network`.
    """

    pellucid: Model
    network: Any
    config: PretrainedConfig
    maps: dict[str, str]

    @property
    def base_model(self) -> nn.Module:
        """Everything but the head, to be frozen: `model.base_model.parameters()`."""
        return _Body({name: part for name, part in self.network.named_children() if name != "head"})

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

    def tie_weights(self, **said: Any) -> None:
        """Does nothing: tables that are one by the config are one from the start.  said: not heeded."""

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
            self._set_map(name, value)
        elif (is_part and self._runs_ours) or (value is None and name in self._names_of_parts()):
            raise InputError(self._unheard(name))
        else:
            super().__setattr__(name, cast(Any, value))

    @property
    def _runs_ours(self) -> bool:
        """Whether a pass is ours, which hears of no further part; a subclass may have one of its own."""
        return type(self).forward.__module__.startswith("pellucid.")

    def _set_map(self, name: str, value: Any) -> None:
        """Puts a module in place of a map of the head. Of labels there are then as many as a linear one gives."""
        path = self.maps[name]
        if not isinstance(value, nn.Module):
            kind = "None" if value is None else type(value).__name__
            raise InputError(f"{name} is {kind}, expected a module, such as nn.Linear: AutoModel opens the body alone")
        self.pellucid.loaded.module.real("setting a part")
        owner, _, last = path.rpartition(".")
        setattr(self.network.get_submodule(owner), last, value)
        loaded = self.pellucid.loaded
        head = loaded.config.head
        if not isinstance(value, nn.Linear) or head is None or head.answers != "labels":
            return
        if value.out_features != len(loaded.config.labels):
            self.config.num_labels = value.out_features
            labels = self.config.read(head).labels
            self.pellucid = Model(replace(loaded, config=loaded.config.replace(labels=labels), source=None))

    def _names_of_parts(self) -> set[str]:
        """The parts of the network, and the first words of what the reference calls them."""
        names, rows = spoken(self.pellucid)
        known = {name for name, _ in self.network.named_children()}
        for row in (*names.body, *rows):
            known.add(row[0].partition(".")[0])
        return known | {names.prefix.partition(".")[0]}

    def _unheard(self, name: str) -> str:
        """What to do where a part is set that no pass would ask."""
        ways = [f"{one!r}, which is .network.{path}" for one, path in self.maps.items()]
        if getattr(self.network, "head", None) is not None and not ways:
            last = "decoder" if hasattr(self.network.head, "decoder") else "classifier"
            ways = [f".network.head.{last}"]
        known = " or ".join(ways)
        return (
            f"{name!r} cannot be set to another part, since no pass would ask it: the parts of this "
            f"{type(self).__name__} stand in .network" + (f", and of its head set {known}" if known else "")
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in (*_OWN, "maps"):
                raise
            if name in vars(self).get("maps", ()):
                return self.network.get_submodule(self.maps[name])
            elsewhere = ": its parts stand in .network, and what else it can do in .pellucid"
            known = [one for one in dir(type(self)) if one != name and not one.startswith("_")]
            if name in _ELSEWHERE:
                known, elsewhere = [], _ELSEWHERE[name]
            raise lacking(f"this {type(self).__name__}", name, known, elsewhere) from None
