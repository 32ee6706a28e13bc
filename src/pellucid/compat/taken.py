"""Models that the reference's own Trainer takes for its own, so that it has them save themselves and opens them again.

Of every other model it saves the names and numbers of a state dict alone, which opens nowhere.
"""

import functools
import sys
from typing import Any, ClassVar

from torch import Tensor, nn

from pellucid.compat.parts import Parts, spoken


def _blank(kind: Any) -> Any:
    return kind.__new__(kind)


def _taken_for(model: Any) -> type[Any]:
    theirs = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return type(model) if theirs is None else _both(type(model), theirs)


def _made(model: Any, kind: type[Any]) -> None:
    """Gives it another type, as PyTorch's own wrappers do."""
    object.__dict__["__class__"].__set__(model, kind)


@functools.cache
def _both(kind: type[Any], theirs: type[Any]) -> type[Any]:
    """A type that is both; nothing is made of it."""
    return type(kind.__name__, (kind, theirs), {"__module__": kind.__module__, "__doc__": kind.__doc__})


class Taken(Parts):
    """One that `isinstance` takes for a `PreTrainedModel` of the reference, where that library is there. Its `type` is
    what it was, and nothing of the reference's runs."""

    is_activation_checkpointing: ClassVar[bool] = False
    is_gradient_checkpointing: ClassVar[bool] = False
    _no_split_modules: ClassVar[list[str] | None] = None
    """What the reference's libraries ask of its models."""

    def is_custom_code(self) -> bool:
        """That its parts are none of the reference's: PEFT leaves the names of its targets as they are."""
        return True

    __class__ = property(_taken_for, _made)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies are of the type that it is."""
        return _blank, (type(self),), vars(self).copy()


def read_by_family(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """A hook: what `load_state_dict` is given under the names of the family's files goes under the network's."""
    assert isinstance(model, Parts)
    own = [name for name in state if name.startswith(prefix)]
    if any(name.startswith(f"{prefix}network.") for name in own):
        return
    names, rows = spoken(model.pellucid)
    for name in own:
        found = names.ours(name.removeprefix(prefix), rows)
        if not found or not isinstance(state[name], Tensor):
            continue
        numbers = state.pop(name)
        state.update({f"{prefix}network.{ours}": place.take(numbers) for ours, place in found.items()})
