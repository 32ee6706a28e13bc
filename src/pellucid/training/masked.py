"""Masked language modelling: an encoder is trained to predict masked tokens from the tokens on both sides."""

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head
from pellucid.config.checks import check_bool, check_choice, check_count, check_range
from pellucid.errors import InputError, format_count
from pellucid.text import Tokenizer, Window, windows
from pellucid.training.data import row_location
from pellucid.training.language_examples import texts_of
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example, Fields, head_for
from pellucid.training.reading import row_length
from pellucid.training.sequence_packing import Tokens, concatenate, example_generators, pack_rows, padded, segment_ids
from pellucid.training.token_likelihood import VocabularyObjective, likelihood_scores, no_target_error

log = logging.getLogger("pellucid")

DEFAULT_MAX_LENGTH = 512
"""Maximum positions of a row by default."""


class MaskableRow(NamedTuple):
    """What masking needs beside the tokens of a row.

    words: for each token the number of its word; -1 for special tokens, which are never masked.
    segments: for each token the number of its text, from 1.
    number: of the row, which seeds its masks.
    """

    words: Tokens
    segments: Tokens
    number: int


@dataclass(frozen=True, kw_only=True)
class FillMask(VocabularyObjective):
    """Prediction of masked tokens (Devlin et al., 2018, arXiv:1810.04805, section 3.1); cross-entropy at these only.

    max_length: positions of a row; None for the model's maximum, at most 512. Longer texts are split into several rows.
    mlm_probability: share of tokens to predict, drawn anew each time.  mask_replace_prob: share of these that is
        replaced by the mask token.  random_replace_prob: share that is replaced by a random token; the rest is kept.
    whole_word_mask: all tokens of a word are to be predicted, or none; the replacement of each is drawn by itself.
    packing: "none" gives each text rows of its own; "stream" concatenates all texts, with a separator after each, and
        cuts them into rows (Liu et al., 2019, arXiv:1907.11692, section 4.2); "documents" packs texts into one row,
        where none attends to another.
    score_seed: seed of the masks of held-out texts, which are the same at each evaluation.
    """

    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    whole_word_mask: bool = False
    packing: str = "none"
    score_seed: int = 0

    name: ClassVar[str] = "fill-mask"
    columns: ClassVar[tuple[str, ...]] = ("text",)
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4, "beta2": 0.98}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mlm_probability", self.mlm_probability, above=0.0, maximum=1.0)
        for name in ("mask_replace_prob", "random_replace_prob"):
            check_range(name, getattr(self, name), minimum=0.0, maximum=1.0)
        total_probability = self.mask_replace_prob + self.random_replace_prob
        if total_probability > 1.0 + 1e-9:
            raise InputError(
                f"mask_replace_prob and random_replace_prob are {total_probability:g} together, expected at most 1"
            )
        check_bool("whole_word_mask", self.whole_word_mask)
        check_choice("packing", self.packing, ("none", "stream", "documents"))
        check_count("score_seed", self.score_seed, maximum=2**63 - 1, minimum=0)
        if self.max_length is not None:
            check_count("max_length", self.max_length, minimum=3)

    def head(self, loaded: Loaded) -> Head:
        tokenizer = loaded.required_tokenizer
        if loaded.config.kind != "encoder" or tokenizer.mask_token_id is None:
            kind = loaded.config.kind
            lack = f"is of kind {kind!r}" if kind != "encoder" else "has a tokenizer without one"
            raise InputError(f"fill-mask trains an encoder with a mask token, and this model {lack}")
        return head_for(loaded, "masked-lm")

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        tokenizer, room = loaded.required_tokenizer, row_length(loaded, self.max_length, DEFAULT_MAX_LENGTH)
        window_length = min(room, tokenizer.model_max_length or room)
        texts = texts_of(rows)
        if empty := sum(not text.strip() for text in texts):
            log.warning("left out: %s without anything to learn", format_count(empty, "text"))
        found = [
            window
            for row, text in zip(rows, texts)
            if text.strip()
            for window in windows(
                tokenizer, text, index=row_location(row), rule="windows", max_length=window_length, stride=0
            )
        ]
        if self.packing == "stream":
            return list(_stream_examples(tokenizer, found, room))
        sizes = [len(window.ids) for window in found]
        groups = pack_rows(sizes, room) if self.packing == "documents" else [[i] for i in range(len(found))]
        return [
            _windows_example(tokenizer, [found[i] for i in sorted(group)], number)
            for number, group in enumerate(groups)
        ]

    # -- examples to losses -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        return self._batch(
            loaded, examples, example_generators(generator, [example.target.number for example in examples])
        )

    def _batch(
        self, loaded: Loaded, examples: Sequence[Example], generators: Sequence[np.random.Generator]
    ) -> dict[str, Tensor]:
        hidden = [self.mask_tokens(loaded, example, one) for example, one in zip(examples, generators)]
        segments = padded([example.target.segments for example in examples], 0)
        batch = {
            "input_ids": padded([ids for ids, _ in hidden], loaded.padding_id),
            "token_type_ids": padded([example.types[0] for example in examples], 0),
            "labels": padded([labels for _, labels in hidden], IGNORED),
        }
        if segments.max(initial=0) > 1:
            batch["segments"] = segments
        elif not segments.all():
            batch["attention_mask"] = segments
        takes = {*loaded.module.input_names, "labels"}
        device = loaded.module.device
        return {name: torch.from_numpy(array).to(device) for name, array in batch.items() if name in takes}

    def mask_tokens(self, loaded: Loaded, example: Example, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
        """The masked token ids of a row, and its labels: the original ids to predict, and -100 for all others."""
        ids, words = np.asarray(example.ids[0]), example.target.words
        units = words if self.whole_word_mask else np.arange(len(ids))
        drawn = generator.random(int(units.max(initial=0)) + 1) < self.mlm_probability
        is_target = drawn[units] & (words >= 0)
        replacement_draws = generator.random(len(ids))
        tokenizer = loaded.required_tokenizer
        others = generator.choice(_non_special_ids(tokenizer, loaded.config.vocab_size), len(ids))
        becomes_mask = is_target & (replacement_draws < self.mask_replace_prob)
        becomes_other = (
            is_target & ~becomes_mask & (replacement_draws < self.mask_replace_prob + self.random_replace_prob)
        )
        read = np.where(becomes_mask, tokenizer.mask_token_id, np.where(becomes_other, others, ids))
        return read, np.where(is_target, ids, IGNORED)

    def check_held_out(self, loaded: Loaded, examples: Sequence[Example]) -> None:
        hidden = (self.mask_tokens(loaded, one, self._score_generator(i))[1] for i, one in enumerate(examples))
        if examples and not any((labels != IGNORED).any() for labels in hidden):
            raise no_target_error()

    def _score_generator(self, number: int) -> np.random.Generator:
        """The generator of a held-out row's masks, the same at each evaluation."""
        return np.random.default_rng((self.score_seed, number))

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        def read(group: list[int]) -> dict[str, Tensor]:
            return self._batch(loaded, [examples[i] for i in group], [self._score_generator(i) for i in group])

        return likelihood_scores(loaded, examples, read)


@functools.lru_cache(maxsize=8)
def _non_special_ids(tokenizer: Tokenizer, vocab_size: int) -> Tokens:
    """The ids of all tokens that are not special."""
    every = np.arange(min(tokenizer.largest_id + 1, vocab_size))
    return np.setdiff1d(every, list(tokenizer.special_ids)).astype(np.int32)


def _word_ids(tokenizer: Tokenizer, window: Window) -> Tokens:
    """The number of each token's word; -1 for special tokens, also for those written in the text."""
    special = tokenizer.special_ids
    pairs = zip(window.ids, window.words)
    return np.asarray([-1 if word is None or token in special else word for token, word in pairs], dtype=np.int32)


def _windows_example(tokenizer: Tokenizer, found: Sequence[Window], number: int) -> Example:
    """Windows packed into one row; each word has a number of its own."""
    ids: Any = concatenate([np.asarray(one.ids, dtype=np.int32) for one in found])
    types: Any = concatenate([np.asarray(one.type_ids, dtype=np.int32) for one in found])
    words = _renumber_words([_word_ids(tokenizer, one) for one in found])
    return Example((ids,), (types,), MaskableRow(words, segment_ids([len(one.ids) for one in found]), number))


def _renumber_words(parts: Sequence[Tokens]) -> Tokens:
    """The numbers of words of all parts, those of each part continuing those of the part before."""
    found, num_words = [], 0
    for words in parts:
        found.append(np.where(words >= 0, words + num_words, -1).astype(np.int32))
        num_words += int(words.max(initial=-1)) + 1
    return concatenate(found)


def _stream_examples(tokenizer: Tokenizer, found: Sequence[Window], room: int) -> Iterator[Example]:
    """All texts concatenated and cut into rows, each with the special tokens of a text around it."""
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    if first is None or last is None or room < 3:
        raise InputError("packing is 'stream', which needs tokens cls and sep and rows of 3 tokens: choose 'documents'")
    ids, words = _join_windows(tokenizer, found, last)
    for start in range(0, len(ids), room - 2):
        chunk = slice(start, start + room - 2)
        row: Any = np.concatenate(([first], ids[chunk], [last])).astype(np.int32)
        of = np.concatenate(([-1], words[chunk], [-1]))
        numbers = np.where(of >= 0, np.unique(of, return_inverse=True)[1], -1).astype(np.int32)
        types: Any = np.zeros_like(row)
        yield Example((row,), (types,), MaskableRow(numbers, segment_ids([len(row)]), start))


def _join_windows(tokenizer: Tokenizer, found: Sequence[Window], between: int) -> tuple[Tokens, Tokens]:
    """The tokens and word numbers of all texts, with a separator after each in place of their special tokens."""
    ids: list[Tokens] = []
    words: list[Tokens] = []
    for window in found:
        plain = [word is not None for word in window.words]
        ends = window.index + 1 == window.count
        ids.append(np.asarray(np.asarray(window.ids)[plain].tolist() + [between] * ends, dtype=np.int32))
        words.append(np.asarray(_word_ids(tokenizer, window)[plain].tolist() + [-1] * ends, dtype=np.int32))
    return concatenate(ids), _renumber_words(words)
