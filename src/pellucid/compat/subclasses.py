"""Models of derived classes: constructed by their own `__init__`, as in the reference, and then filled with weights."""

import inspect
import logging
from dataclasses import replace
from typing import Any

from torch import nn

from pellucid.blocks import Attention
from pellucid.checkpoints.loaded import Loaded
from pellucid.compat.config import PretrainedConfig
from pellucid.compat.generation_config import GenerationConfig
from pellucid.compat.model import PreTrainedModel
from pellucid.errors import InputError, join_names
from pellucid.model import Model
from pellucid.models import attention_of, tied_parameters
from pellucid.models.assemble import tie_parameters

log = logging.getLogger("pellucid")


def init_keywords(
    kind: type[PreTrainedModel], config: PretrainedConfig, arguments: dict[str, Any], has_config: bool
) -> dict[str, Any]:
    """The keyword arguments that the `__init__` of a class takes besides the config: those that it names, and for `**`
    those that are not values of the config.

    has_config: the config was passed, so that `**` takes its values, too.
    """
    parameters = inspect.signature(kind.__init__).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    facts = set() if has_config else config.settable_names
    return {name: value for name, value in arguments.items() if name in parameters or (takes_all and name not in facts)}


def build_subclass(
    kind: type[PreTrainedModel], config: PretrainedConfig, loaded: Loaded, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PreTrainedModel:
    """`kind(config, *args, **kwargs)` with the weights that were read, in place.

    Weights that no file holds keep their initial values, with a warning that names them; another names tensors without
    a place. Raises InputError for weights of another shape, and for a model of 8 or 4 bits.
    """
    loaded.module.require_float(kind.__name__)
    found = kind(config, *args, **kwargs)
    module, like = found.network, next(loaded.module.parameters())
    found.to(device=like.device, dtype=like.dtype).eval()
    explicit = attention_of(loaded.module) == "explicit"
    for part in module.modules():
        if isinstance(part, Attention):
            part.explicit = explicit
    own, same = found.pellucid.config, tied_parameters(loaded.config)
    tensors = {
        name: one for name, one in loaded.module.state_dict().items() if not (name in same or _is_new(loaded, name))
    }
    for name in tied_parameters(own).keys() - same.keys() & tensors.keys():  # the files hold two weights
        owner, _, last = name.rpartition(".")
        setattr(module.get_submodule(owner), last, nn.Parameter(tensors[name].clone()))
    left = _load_weights(kind, module, tensors)
    tie_parameters(module, {name: first for name, first in same.items() if name in module.state_dict()})
    known = {
        f"network.{name}" for name in module.state_dict() if name in tensors or name in same or _is_new(loaded, name)
    }
    fresh = [name for name in found.state_dict() if name not in known]
    if fresh:
        sentence = "%s holds no weights for %s of this %s: they keep the values of its __init__, so train it first"
        log.warning(sentence, loaded.name, join_names(fresh, 3), kind.__name__)
    if left:
        log.warning(
            "%s of %s are unknown to this %s, and are left out", join_names(left, 3), loaded.name, kind.__name__
        )
    random = {name.split(".")[1] for name in fresh if name.startswith("network.")}
    found.pellucid = Model(
        replace(
            loaded,
            module=module,
            config=own.replace(tie_word_embeddings=loaded.config.tie_word_embeddings),
            source=None if random or left else loaded.source,
            untrained=tuple(sorted({*loaded.untrained, *random})),
            initial_versions=(),
            initial_samples=(),
        )
    )
    found.generation_config = GenerationConfig.of(loaded)
    return found


def _load_weights(kind: type[PreTrainedModel], module: nn.Module, tensors: dict[str, Any]) -> list[str]:
    """Loads the tensors that have a place. ->  the names of those that have none"""
    own = module.state_dict()
    for name, numbers in tensors.items():
        if name in own and own[name].shape != numbers.shape:
            raise InputError(
                f"{name} is {[*own[name].shape]} as {kind.__name__}.__init__ makes it, and {[*numbers.shape]} in the "
                "files: make it of that shape, or set it once the model is open"
            )
    module.load_state_dict({name: numbers for name, numbers in tensors.items() if name in own}, strict=False)
    return [name for name in tensors if name not in own]


def _is_new(loaded: Loaded, name: str) -> bool:
    """Whether the files lack a weight; what they hold is read even where all of it is untrained."""
    return "all" not in loaded.untrained and loaded.is_untrained(name)
