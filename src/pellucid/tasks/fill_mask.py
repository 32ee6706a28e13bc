"""Fill-mask: the likeliest tokens at a mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count
from pellucid.errors import Argument, InputError, Item, shorten
from pellucid.models import Network
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.attribution import Target, logit_target
from pellucid.tasks.reader import Reader, WindowOutput, most_central_windows, text_coverage
from pellucid.tasks.targets import possible_ids, target_ids
from pellucid.tasks.task import Work
from pellucid.text import Tokenizer, Window
from pellucid.text.truncation import trimmed_span
from pellucid.text.unspaced import is_unspaced

Guesses = list[tuple[float, int]]
"""Probabilities and ids, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class FillMask(Reader):
    """The likeliest tokens for each mask, `{"score", "token", "token_str", "sequence"}`, mask after mask.

    top_k: how many for each mask; `.mask` is the index of the mask that an answer fills.
    targets: words to choose among; their scores remain those among all tokens. Each has to be one token.
    partial_targets: a target of several tokens stands for the first of them, with a warning, as in the reference.
    decoded: `sequence` is decoded from all ids, perhaps lower-cased, as in the reference; otherwise the text itself
        with this mask filled.
    Of a long text read in windows, each mask is filled in the window in which it is farthest from a cut; other windows
    are not read. Other masks of the text stay masked, so scores are not joint probabilities of all masks.
    """

    top_k: int = 5
    targets: str | Sequence[str] | None = None
    partial_targets: bool = False
    decoded: bool = False

    name: ClassVar[str] = "fill-mask"
    heads: ClassVar[tuple[str | None, ...]] = ("masked-lm",)
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    parallel: ClassVar[bool] = False  # logits over the whole vocabulary at every mask

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        listed = isinstance(self.targets, str | Sequence)
        if self.targets is not None and not (listed and self._targets and all(map(_is_word, self._targets))):
            raise InputError(f"targets is {shorten(repr(self.targets))}, expected a word or several")

    @classmethod
    def check(cls, loaded: Loaded) -> None:
        super().check(loaded)
        if loaded.required_tokenizer.mask_token_id is None:
            raise InputError("this model's tokenizer has no mask token, and fill-mask needs one: choose another model")

    @property
    def _targets(self) -> tuple[str, ...]:
        return (self.targets,) if isinstance(self.targets, str) else tuple(self.targets or ())

    def item_windows(self, work: Work, item: str, index: int) -> list[Window]:
        tokenizer = work.loaded.required_tokenizer
        every = self.text_windows(work, index, item)
        if not (best := _masks_by_window(tokenizer, every)):
            raise _no_mask_error(tokenizer, item, index)
        for number, position in best if self._targets else ():
            self._target_ids(tokenizer, item, every[number], position)
        return [every[number] for number in sorted({number for number, _ in best})]

    def _target_ids(self, tokenizer: Tokenizer, item: str, window: Window, position: int) -> list[int]:
        """The ids of the targets at the position of this mask."""
        start, _ = trimmed_span(item, *window.offsets[position])
        return target_ids(tokenizer, self._targets, item[:start], partial=self.partial_targets)

    def forward_batch(self, work: Work, module: Network, batch: dict[str, Tensor]) -> Tensor:
        """The logits at the masks alone, the first of each text first: Float[Tensor, "batch masks vocab"]"""
        is_mask = batch["input_ids"] == work.loaded.required_tokenizer.mask_token_id
        (logits,) = module.logits_at(is_mask, batch)
        rows, _ = is_mask.nonzero(as_tuple=True)
        mask_index = (is_mask.cumsum(dim=1) - 1)[is_mask]
        masks = logits.new_zeros(len(is_mask), int(is_mask.sum(dim=1).max()), logits.shape[-1])
        masks[rows, mask_index] = logits
        return masks

    def window_output(self, work: Work, output: Tensor, window: Window) -> list[Guesses]:
        """The likeliest tokens at each mask, or all ids that the targets may have."""
        tokenizer = work.loaded.required_tokenizer
        scores = output[: len(_mask_positions(tokenizer, window))].softmax(dim=-1)
        if self._targets:
            possible = possible_ids(tokenizer, self._targets, partial=self.partial_targets)
            ids = torch.tensor(possible, device=scores.device)
            best = scores[:, ids].topk(len(ids))
            tokens = ids[best.indices]
        else:
            best = scores.topk(min(self.top_k, scores.shape[1]))
            tokens = best.indices
        return [list(zip(*both)) for both in zip(best.values.tolist(), tokens.tolist())]

    def answer(self, work: Work, item: str, outputs: list[WindowOutput]) -> Answers:
        tokenizer, read = work.loaded.required_tokenizer, text_coverage(item, outputs)
        found = []
        for mask, (number, position) in enumerate(_masks_by_window(tokenizer, [output.window for output in outputs])):
            window = outputs[number].window
            known = outputs[number].output[_mask_positions(tokenizer, window).index(position)]
            for score, token in self._target_guesses(tokenizer, item, window, position, known):
                keys = {"score": score, "token": token, "token_str": tokenizer.decode([token])}
                if self.decoded:
                    keys["sequence"] = _decode_filled(tokenizer, window, position, token)
                else:
                    keys["sequence"] = _fill_text(tokenizer, item, window, position, token)
                found.append(Answer(keys, read=read, window=number, mask=mask))
        return Answers(found, read=read)

    def _target_guesses(
        self, tokenizer: Tokenizer, item: str, window: Window, position: int, known: Guesses
    ) -> Guesses:
        if not self._targets:
            return known
        ids = set(self._target_ids(tokenizer, item, window, position))
        return [guess for guess in known if guess[1] in ids][: self.top_k]

    def attribution_targets(self, work: Work, item: str, outputs: list[WindowOutput], one: Answer) -> list[Target]:
        number, position = _masks_by_window(work.loaded.required_tokenizer, [output.window for output in outputs])[
            one.mask or 0
        ]
        return [logit_target(repr(one["token_str"]), outputs[number].window, one["token"], position)]


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _mask_positions(tokenizer: Tokenizer, window: Window) -> list[int]:
    """The positions of the masks in a window."""
    return [i for i, token in enumerate(window.ids) if token == tokenizer.mask_token_id]


def _masks_by_window(tokenizer: Tokenizer, windows: Sequence[Window]) -> list[tuple[int, int]]:
    """For each mask of a text, in order, the window that fills it, and its position there."""
    return [
        (number, position)
        for number, position in most_central_windows(windows)
        if windows[number].ids[position] == tokenizer.mask_token_id
    ]


def _no_mask_error(tokenizer: Tokenizer, item: str, index: int) -> InputError:
    mask = tokenizer.mask_token
    if mask is not None and mask in item:
        cut = ": its mask is in the part that is cut off: pass "
        return InputError(Item(index), cut, Argument("long", "windows"), " to read all of it")
    return InputError(Item(index), f" has no mask: write {mask} where a word is to be predicted")


def _fill_text(tokenizer: Tokenizer, text: str, window: Window, position: int, token: int) -> str:
    """The text with one mask filled, with a space before it as the token marks it, if the vocabulary marks spaces."""
    start, end = trimmed_span(text, *window.offsets[position])
    before, piece, rest = text[:start], tokenizer.decode([token]), text[end:]
    if tokenizer.subword_prefix is not None:
        continues_word = piece.startswith(tokenizer.subword_prefix)
        piece = piece.removeprefix(tokenizer.subword_prefix)
        if not continues_word and _is_letter(before[-1:]) and _is_letter(piece[:1]):
            before += " "
        if _is_letter(piece[-1:]) and _is_letter(rest[:1]):  # which the model read as a separate word
            rest = f" {rest}"
    else:
        (written,) = tokenizer.convert_ids_to_tokens([token]) if piece else ("",)
        continues_word = tokenizer.space_marker is not None and not written.startswith(tokenizer.space_marker)
        if tokenizer.space_marker and not continues_word and before and not before[-1].isspace():
            before += " "
        (after,) = tokenizer.convert_ids_to_tokens(window.ids[position + 1 : position + 2]) or ("",)
        if tokenizer.space_marker and after.startswith(tokenizer.space_marker) and _is_letter(rest[:1]):
            rest = f" {rest}"
    return (before.rstrip() if continues_word else before) + piece.strip() + rest


def _is_letter(character: str) -> bool:
    """Whether this is a letter or digit of a script that puts spaces between words."""
    return character.isalnum() and not is_unspaced(character)


def _decode_filled(tokenizer: Tokenizer, window: Window, position: int, token: int) -> str:
    """A window decoded as in the reference: without special tokens, unless another mask would be lost with them."""
    ids = [token if i == position else here for i, here in enumerate(window.ids)]
    alone = len(_mask_positions(tokenizer, window)) == 1
    return tokenizer.cleaned(
        tokenizer.decode([i for i in ids if i != tokenizer.pad_token_id], skip_special_tokens=alone)
    )
