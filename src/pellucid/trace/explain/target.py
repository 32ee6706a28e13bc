"""The number of the output that is explained, and its position."""

from dataclasses import dataclass

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import require_integer
from pellucid.errors import Argument, InputError, Placeholder, did_you_mean, join_names, shorten
from pellucid.trace.explain.inputs import checked_position, token_id, token_of
from pellucid.trace.reading import Reading


@dataclass(frozen=True)
class Target:
    """One logit, or the difference of two.

    description: in words.  position: counted from the end; None where the whole text has one output.
    chosen, against: the indices of these logits.
    """

    description: str
    position: int | None
    chosen: int
    against: int | None

    def value_of(self, logits: Tensor) -> Tensor:
        """Float[Tensor, "batch seq answers"], or "batch answers"  ->  Float[Tensor, "batch"]"""
        selected = logits if self.position is None else logits[:, self.position]
        return (
            selected[:, self.chosen] if self.against is None else selected[:, self.chosen] - selected[:, self.against]
        )


def find_target(
    loaded: Loaded,
    reading: Reading,
    logits: Tensor,
    target: str | int | None,
    against: str | int | None,
    position: int | None,
) -> Target:
    """The logit that a caller's arguments stand for.

    logits: of the text, Float[Tensor, "1 seq answers"], or "1 answers".
    target, against: a label or its index; of a language model a token or its id. target None: the likeliest.
    position: None for the last token, for the only mask, or for the whole text, depending on the head.
    """
    index = _target_position(loaded, reading, logits, position)
    target_logits = logits[0] if index is None else logits[0, index]
    chosen = (
        int(target_logits.argmax()) if target is None else _answer_index(loaded, target, "target", len(target_logits))
    )
    other = None if against is None else _answer_index(loaded, against, "against", len(target_logits))
    if chosen == other:
        raise InputError(
            f"target and against are both {_answer_name(loaded, chosen)!r}: their difference is 0 everywhere"
        )
    description = f"logit of {_answer_name(loaded, chosen)!r}"
    if other is not None:
        description += f" minus that of {_answer_name(loaded, other)!r}"
    if index is None:
        return Target(description, None, chosen, other)
    return Target(f"{description} at position {index}", index - logits.shape[1], chosen, other)


def _target_position(loaded: Loaded, reading: Reading, logits: Tensor, position: int | None) -> int | None:
    head = loaded.config.head
    assert head is not None  # checked by `check_head`
    if head.per == "text":
        if position is not None:
            raise InputError(
                f"position is {shorten(repr(position))}, and a {head.name} head has one answer for all of the text"
            )
        return None
    if position is not None:
        return checked_position(position, logits.shape[1])
    if head.writes:
        return logits.shape[1] - 1
    if head.answers != "vocabulary":
        last = logits.shape[1] - 1
        raise InputError(
            f"a {head.name} head answers at every token: choose one with ", Argument("position", 0), f" to {last}"
        )
    mask = loaded.required_tokenizer.mask_token_id
    masks = [i for i, number in enumerate(reading.ids) if number == mask]
    if len(masks) != 1:
        written = loaded.required_tokenizer.mask_token or "a mask"
        raise InputError(
            f"the text has {len(masks)} mask tokens, expected one: write {written} "
            "in place of one word, or choose the token with ",
            Argument("position", Placeholder("N")),
        )
    return masks[0]


def _answer_index(loaded: Loaded, answer: str | int, name: str, size: int) -> int:
    """The index of a label or token among the logits."""
    labels = loaded.config.answer_names
    if not labels:
        return token_id(loaded, answer, name)
    if not isinstance(answer, str):
        number = require_integer(name, answer, "a label or its index")
        if not 0 <= number < size:
            raise InputError(f"{name} is label {number}, expected 0 to {size - 1}")
        return number
    if answer not in labels:
        hint = did_you_mean(answer, labels)
        raise InputError(
            f"{name} {shorten(repr(answer))} is not a label of this model{hint}: it has {join_names(labels, 12)}"
        )
    return labels.index(answer)


def _answer_name(loaded: Loaded, number: int) -> str:
    labels = loaded.config.answer_names
    return labels[number] if labels else token_of(loaded, number)
