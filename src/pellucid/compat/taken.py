"""Models that the reference's own Trainer takes for its own, so that it has them save themselves and opens them again.

Of every other model it saves the names and numbers of a state dict alone, which opens nowhere.
"""

import copyreg
import functools
import sys
from typing import Any, ClassVar

from torch import Tensor, nn

from pellucid.compat.parts import Parts, maps_of_head, spoken


def _blank(kind: Any) -> Any:
    return kind.__new__(kind)


def _itself(kind: Any) -> Any:
    return kind


def _taken_for(model: Any) -> type[Any]:
    """Both only of a model whose numbers all stand in its network: `save_pretrained` writes no others."""
    theirs = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    plain, held = type(model), vars(model)
    parts, own = held.get("_modules", {}), (*held.get("_parameters", {}).values(), *held.get("_buffers", {}).values())
    if theirs is None or "network" not in parts or any(one is not None for one in own):
        return plain
    others = [part for name, part in parts.items() if name != "network" and part is not None]
    return plain if any(part.state_dict() for part in others) else _both(plain, theirs)


def _made(model: Any, kind: type[Any]) -> None:
    """Gives it another type, as PyTorch's own wrappers do."""
    object.__dict__["__class__"].__set__(model, kind)


class _Both(type):
    """The type of what `isinstance` is answered by. Everything else that is done with it is done with `plain`, the type
    that the model is: making one, deriving from it, pickling it, comparing it."""

    def __new__(cls, name: str, bases: tuple[Any, ...], space: dict[str, Any], **said: Any) -> Any:
        if "plain" in space:
            return super().__new__(cls, name, bases, space)
        own = tuple(_plain(base) for base in bases)
        space.setdefault("__module__", sys._getframe(1).f_globals.get("__name__"))
        return type(own[0])(name, own, space, **said)

    def mro(cls) -> list[type[Any]]:
        """With `plain`, whose content it has, at the end, so that `super(self.__class__, self)` goes on to the next."""
        *found, last = super().mro()
        plain = vars(cls)["plain"]
        return [*(kind for kind in found if kind is not plain), plain, last]

    def __call__(cls, *inputs: Any, **said: Any) -> Any:
        return _plain(cls)(*inputs, **said)

    def __eq__(cls, other: object) -> bool:
        return _plain(cls) is _plain(other)

    def __hash__(cls) -> int:
        return hash(_plain(cls))


def _plain(kind: Any) -> Any:
    return vars(kind)["plain"] if type(kind) is _Both else kind


copyreg.pickle(_Both, lambda kind: (_itself, (_plain(kind),)))


@functools.cache
def _both(kind: type[Any], theirs: type[Any]) -> type[Any]:
    """A type that is both; where they have no order together, as with a kin of the reference's, the plain one."""
    space = {name: one for name, one in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    space |= {"plain": kind, "__new__": lambda cls, *inputs, **said: kind.__new__(kind, *inputs, **said)}
    try:
        return _Both(kind.__name__, (kind, theirs), space)
    except TypeError:
        return kind


class Taken(Parts):
    """One that `isinstance` takes for a `PreTrainedModel` of the reference, where that library is there. Its `type` is
    what it was, and nothing of the reference's runs. One with numbers beside its network is taken for none."""

    is_activation_checkpointing: ClassVar[bool] = False
    is_gradient_checkpointing: ClassVar[bool] = False
    _no_split_modules: ClassVar[list[str] | None] = None
    _keys_to_ignore_on_save: ClassVar[list[str] | None] = None
    """What the reference's libraries ask of its models."""

    def is_custom_code(self) -> bool:
        """That its parts are none of the reference's: PEFT leaves the names of its targets as they are."""
        return True

    __class__ = property(_taken_for, _made)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies are of the type that it is."""
        if type(self).__reduce__ is not object.__reduce__:  # a subclass has a way of its own
            return self.__reduce__()
        return _blank, (type(self),), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What was pickled before there were `maps` gets them."""
        super().__setstate__(state)
        if "pellucid" in vars(self) and "maps" not in vars(self):
            self._name_parts()

    def _name_parts(self) -> None:
        self.name_or_path = self.config.name_or_path  # where PEFT looks for it
        self.maps = maps_of_head(self.pellucid)
        self.register_load_state_dict_pre_hook(read_by_family)


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
