"""Which words fit in the place of a mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import count, truth
from pellucid.errors import Argument, InputError, Item
from pellucid.models import Network
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.attribution import Aim, logit
from pellucid.tasks.reader import Reader, Stretch, deepest, what_was_read
from pellucid.tasks.targets import possible_ids, target_ids
from pellucid.tasks.task import Work, text_alone
from pellucid.text import Tokenizer, Window
from pellucid.text.cut import bare, clean_text
from pellucid.text.unspaced import unspaced

Guesses = list[tuple[float, int]]
"""Probabilities and ids, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class FillMask(Reader):
    """The likeliest tokens in the place of each mask, `{"score", "token", "token_str", "sequence"}`, mask after mask.

    top_k: how many for each mask; `.mask` says which mask an answer fills.
    targets: words to choose among; their scores stay what they are among all tokens. Each has to be one token.
    partial_targets: a target that is several tokens stands for the first of them, with a warning, as in the reference.
    decoded: `sequence` is what the tokenizer makes of all ids, lower case perhaps, as in the reference; else the text
        itself with this mask filled.
    Of a long text read in stretches, each mask is filled in the one in which it stands farthest from where the text was
    cut; the others are not read. Other masks of the text stay masked, so scores are not those of them all together.
    """

    top_k: int = 5
    targets: str | Sequence[str] | None = None
    partial_targets: bool = False
    decoded: bool = False

    name: ClassVar[str] = "fill-mask"
    heads: ClassVar[tuple[str | None, ...]] = ("masked-lm",)
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    apart: ClassVar[bool] = False  # a number for each token of the vocabulary at every place

    def __post_init__(self) -> None:
        super().__post_init__()
        count("top_k", self.top_k)
        truth("partial_targets", self.partial_targets)
        truth("decoded", self.decoded)
        listed = isinstance(self.targets, str | Sequence)
        if self.targets is not None and not (listed and self._targets and all(map(_is_word, self._targets))):
            raise InputError(f"targets is {self.targets!r}, expected a word or several")

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        super().check(loaded)
        if loaded.words.mask_token_id is None:
            raise InputError("this model's tokenizer has no mask token, and fill-mask needs one: choose another model")

    @property
    def _targets(self) -> tuple[str, ...]:
        return (self.targets,) if isinstance(self.targets, str) else tuple(self.targets or ())

    def item(self, given: Any, index: int) -> str:
        return clean_text(text_alone(given, index), index, "item")

    def asked(self, work: Work, item: str, index: int) -> list[Window]:
        words = work.loaded.words
        every = self.stretches(work, index, item)
        if not (best := _best(words, every)):
            raise _no_mask(words, item, index)
        for number, place in best if self._targets else ():
            self._ids(words, item, every[number], place)
        return [every[number] for number in sorted({number for number, _ in best})]

    def _ids(self, words: Tokenizer, item: str, window: Window, place: int) -> list[int]:
        """The ids of the targets, as they would be in the place of this mask."""
        start, _ = bare(item, *window.offsets[place])
        return target_ids(words, self._targets, item[:start], partial=self.partial_targets)

    def look(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        """The logits of the masks alone, the first of each text first: Float[Tensor, "batch masks vocab"]"""
        here = batch["input_ids"] == work.loaded.words.mask_token_id
        (logits,) = module.logits_at(here, batch)
        rows, _ = here.nonzero(as_tuple=True)
        nth = (here.cumsum(dim=1) - 1)[here]
        masks = logits.new_zeros(len(here), int(here.sum(dim=1).max()), logits.shape[-1])
        masks[rows, nth] = logits
        return masks

    def keep(self, work: Work, here: Tensor, window: Window) -> list[Guesses]:
        """The likeliest tokens at each mask, or all that the targets may be."""
        words = work.loaded.words
        scores = here[: len(_masks(words, window))].softmax(dim=-1)
        possible = possible_ids(words, self._targets, partial=self.partial_targets) if self._targets else None
        ids = None if possible is None else torch.tensor(possible, device=scores.device)
        chosen = scores if ids is None else scores[:, ids]
        best = chosen.topk(min(self.top_k, chosen.shape[1]) if ids is None else chosen.shape[1])
        tokens = best.indices if ids is None else ids[best.indices]
        return [list(zip(*both)) for both in zip(best.values.tolist(), tokens.tolist())]

    def answer(self, work: Work, item: str, stretches: list[Stretch]) -> Answers:
        words, read = work.loaded.words, what_was_read(stretches)
        found = []
        for mask, (number, place) in enumerate(_best(words, [stretch.window for stretch in stretches])):
            window = stretches[number].window
            known = stretches[number].kept[_masks(words, window).index(place)]
            for score, token in self._guesses(words, item, window, place, known):
                make = _decoded if self.decoded else _filled
                keys = {"score": score, "token": token, "token_str": words.decode([token])}
                keys["sequence"] = make(words, item, window, place, token)
                found.append(Answer(keys, read=read, window=number, mask=mask))
        return Answers(found, read=read)

    def _guesses(self, words: Tokenizer, item: str, window: Window, place: int, known: Guesses) -> Guesses:
        if not self._targets:
            return known
        ids = set(self._ids(words, item, window, place))
        return [guess for guess in known if guess[1] in ids][: self.top_k]

    def aims(self, work: Work, item: str, stretches: list[Stretch], one: Answer) -> list[Aim]:
        number, place = _best(work.loaded.words, [stretch.window for stretch in stretches])[one.mask or 0]
        return [logit(repr(one["token_str"]), stretches[number].window, one["token"], place)]


def _is_word(given: Any) -> bool:
    return isinstance(given, str) and bool(given.strip())


def _masks(words: Tokenizer, window: Window) -> list[int]:
    """Where masks stand among the tokens of a stretch."""
    return [i for i, token in enumerate(window.ids) if token == words.mask_token_id]


def _best(words: Tokenizer, windows: Sequence[Window]) -> list[tuple[int, int]]:
    """For each mask of a text, in order, the stretch that fills it, and its place there."""
    return [(number, place) for number, place in deepest(windows) if windows[number].ids[place] == words.mask_token_id]


def _no_mask(words: Tokenizer, item: str, index: int) -> InputError:
    mask = words.mask_token
    if mask is not None and mask in item:
        cut = ": its mask stands in the part that is cut off: pass "
        return InputError(Item(index), cut, Argument("long", "windows"), " to read all of it")
    return InputError(Item(index), f" has no mask: write {mask} where a word is to be found")


def _filled(words: Tokenizer, text: str, window: Window, place: int, token: int) -> str:
    """The text with one mask filled. Whether a space stands before it is as the token says, if tokens say so."""
    start, end = bare(text, *window.offsets[place])
    before, piece, behind = text[:start], words.decode([token]), text[end:]
    if words.continues is not None:
        goes_on = piece.startswith(words.continues)
        piece = piece.removeprefix(words.continues)
        if not goes_on and _is_letter(before[-1:]) and _is_letter(piece[:1]):
            before += " "
        if _is_letter(piece[-1:]) and _is_letter(behind[:1]):  # which the model read as a word of its own
            behind = f" {behind}"
    else:
        (written,) = words.convert_ids_to_tokens([token]) if piece else ("",)
        goes_on = words.space is not None and not written.startswith(words.space)
        if words.space and not goes_on and before and not before[-1].isspace():
            before += " "
        (after,) = words.convert_ids_to_tokens(window.ids[place + 1 : place + 2]) or ("",)
        if words.space and after.startswith(words.space) and _is_letter(behind[:1]):
            behind = f" {behind}"
    return (before.rstrip() if goes_on else before) + piece.strip() + behind


def _is_letter(character: str) -> bool:
    """Whether this is a letter or figure of a script that puts spaces between words."""
    return character.isalnum() and not unspaced(character)


def _decoded(words: Tokenizer, text: str, window: Window, place: int, token: int) -> str:
    """A stretch as the reference tells it: special tokens are left out where no other mask would be lost with them."""
    ids = [token if i == place else here for i, here in enumerate(window.ids)]
    alone = len(_masks(words, window)) == 1
    return words.cleaned(words.decode([i for i in ids if i != words.pad_token_id], skip_special_tokens=alone))
