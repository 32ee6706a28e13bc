"""The result of a forward pass."""

from typing import Any

from torch import Tensor

from pellucid.errors import InputError, shorten


class _NoNameError(InputError, KeyError):
    """Raised for a name that an output does not have: a dictionary's KeyError, with a full sentence as its message."""

    __str__ = BaseException.__str__


class Output(dict[str, Tensor]):
    """The result of a pass, by key and by attribute: `last_hidden_state`; `pooler_output`, `logits` and
    `encoder_last_hidden_state` where they exist.

    It is read-only: assignment raises TypeError.
    """

    def __getattr__(self, name: str) -> Tensor:
        if name in self:
            return self[name]
        raise AttributeError(f"this output has no {name!r}; it has {', '.join(self)}")

    def __getitem__(self, name: Any) -> Tensor:
        try:
            return super().__getitem__(name)
        except TypeError:  # an unhashable key, such as a list or a slice
            return self.__missing__(name)

    def __missing__(self, name: object) -> Tensor:
        has = f"it has {', '.join(self)}"
        if isinstance(name, str):
            raise _NoNameError(f"this output has no {shorten(repr(name))}; {has}")
        raise _NoNameError(f"an output is indexed by name, not by {shorten(repr(name))}; {has}")

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise TypeError("an output is an answer and cannot be changed: copy it with dict(output)")

    __setitem__ = __delitem__ = __setattr__ = __delattr__ = _refuse
    pop = popitem = clear = update = setdefault = __ior__ = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return (type(self), (dict(self),))
