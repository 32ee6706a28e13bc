"""The answers of tasks: dicts and lists with the reference's keys, and as attributes what was read and why."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Method = Literal["integrated gradients", "gradient x input"]


@dataclass(frozen=True)
class AnswerAttribution:
    """How much each token that was read adds to the answer, or subtracts from it.

    target: what the scores are about, in words.  tokens, scores: one score for each token.
    method: "integrated gradients", whose scores sum to the change of the answer when padding is replaced by these
        tokens, and do not show how tokens interact; or "gradient x input", for generated texts, which holds only in the
        immediate neighbourhood of this text.
    """

    target: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...]
    method: Method


@dataclass(frozen=True)
class TextCoverage:
    """What was read of a text.

    windows: the windows that were read, as start and end characters, in order.
    cut: how many tokens were not read.  empty: whether there was nothing to read.
    ids: of text generation, the tokens of the prompt; of several windows, those of the last one.
    """

    windows: tuple[tuple[int, int], ...] = ()
    cut: int = 0
    empty: bool = False
    ids: tuple[int, ...] = ()


class Frozen:
    """Base of answers, which cannot be changed. Their facts are attributes, not part of their keys."""

    def _set_facts(self, **facts: Any) -> None:
        vars(self).update(facts)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an answer cannot be changed: copy it with dict(answer) or list(answer)")

    __setattr__ = __delattr__ = __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = _refuse


class FrozenDict(Frozen, dict[str, Any]):
    """A dict that refuses assignment; JSON-serializable."""

    pop = popitem = clear = update = setdefault = Frozen._refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (dict(self),), vars(self)


class FrozenList(Frozen, list[Any]):
    """A list that refuses assignment; JSON-serializable."""

    append = extend = insert = remove = pop = clear = sort = reverse = Frozen._refuse  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (list(self),), vars(self)


class Answer(FrozenDict):
    """One answer, with the reference's keys; JSON-serializable.

    all: this answer and the alternatives, the best first; () where the task finds only one.
    read: what was read for it.  window: the index of the window that it came from; None where it comes from all.
    why: its attribution, if requested.  mask: the index of the mask that it fills, where a text has masks.
    ids, finish_reason: of generated text, its tokens, with any end token, and why it ends: "end" (such a token),
        "stop", "length" or "time".
    raw: of text-classification, whether its score is no probability, but a logit or a regression's value.

    It refuses assignment. `whole()` is a plain dict with all of this.
    """

    all: tuple["Answer", ...]
    read: TextCoverage
    window: int | None
    why: AnswerAttribution | None
    mask: int | None
    ids: tuple[int, ...]
    finish_reason: str | None
    raw: bool

    def __init__(
        self,
        keys: Mapping[str, Any],
        *,
        all: Iterable["Answer"] = (),
        read: TextCoverage | None = None,
        window: int | None = None,
        why: AnswerAttribution | None = None,
        mask: int | None = None,
        ids: Iterable[int] = (),
        finish_reason: str | None = None,
        raw: bool = False,
    ) -> None:
        super().__init__(keys)
        self._set_facts(all=tuple(all), read=read or TextCoverage(), window=window, why=why, mask=mask)
        self._set_facts(ids=tuple(ids), finish_reason=finish_reason, raw=raw)

    def replace(self, **facts: Any) -> "Answer":
        """The same answer, with some attributes replaced."""
        return Answer(self, **(vars(self) | facts))

    def whole(self) -> dict[str, Any]:
        """A plain dict of the keys and, where informative, `all`, `window`, `mask`, `cut`, `empty` and `why`."""
        found = dict(self)
        if len(self.all) > 1:
            found["all"] = [dict(one) for one in self.all]
        if self.window is not None and len(self.read.windows) > 1:
            found["window"] = list(self.read.windows[self.window])
        if self.mask is not None:
            found["mask"] = self.mask
        if self.read.cut:
            found["cut"] = self.read.cut
        if self.read.empty:
            found["empty"] = True
        if (why := self.why) is not None:
            found["why"] = {"target": why.target, "method": why.method, "tokens": list(zip(why.tokens, why.scores))}
        return found


class Answers(FrozenList):
    """Several answers to one item, such as the entities of a text. It refuses assignment, and is JSON-serializable.

    read, why: as for an `Answer`.
    """

    read: TextCoverage
    why: AnswerAttribution | None

    def __init__(
        self, several: Iterable[Any], *, read: TextCoverage | None = None, why: AnswerAttribution | None = None
    ) -> None:
        super().__init__(several)
        self._set_facts(read=read or TextCoverage(), why=why)

    def replace(self, **facts: Any) -> "Answers":
        """The same answers, with some attributes replaced."""
        return Answers(self, **(vars(self) | facts))

    def whole(self) -> list[Any]:
        """The answers as plain dicts, as `Answer.whole` gives them."""
        return [one.whole() if isinstance(one, Answer) else one for one in self]
