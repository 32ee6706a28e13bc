"""Causal language modelling: a decoder is trained to predict each token of a text from those before it."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head
from pellucid.config.checks import check_bool, check_choice
from pellucid.errors import Argument, InputError, format_count
from pellucid.training.language_examples import COLUMNS, TokenizedText, end_token, texts_of, tokenized_texts
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example, Fields, head_for
from pellucid.training.reading import row_length
from pellucid.training.sequence_packing import (
    Chunk,
    RowTargets,
    Tokens,
    concatenate,
    cut_chunks,
    example_generators,
    pack_rows,
    padded,
    segment_ids,
)
from pellucid.training.token_likelihood import VocabularyObjective, likelihood_scores

log = logging.getLogger("pellucid")

DEFAULT_MAX_LENGTH = 1024
"""Maximum positions of a row by default; many decoders take thousands."""

CHUNK_CHARACTERS = 500_000
"""The most characters of a long text that are tokenized at a time, up to the end of a line."""


class StreamRow(NamedTuple):
    """A row of one long text.  start: its first token.  room: positions of a row."""

    text: Tokens
    start: int
    room: int


@dataclass(frozen=True, kw_only=True)
class TextGeneration(VocabularyObjective):
    """Prediction of the next token (Radford et al., 2018); cross-entropy at each position but the last of a text.

    Rows hold a `text`; or a `prompt` and its `completion`, where only the completion is a target; or `messages`, where
    the assistant's answers are, as the tokenizer's chat template renders them. Texts and completions end with the
    end token as a target, where there is one.

    max_length: positions of a row; None for the model's maximum, at most 1,024.
    packing: "documents" packs texts into one row, where none attends to another and positions start again; "stream"
        concatenates all rows and cuts them into equal rows, as GPT-2 was trained; "none" gives each text its own rows.
    between: text between two rows of a stream; None for the end token.
    random_starts: whether the rows of a stream start at positions that are drawn anew each time.
    """

    packing: str = "documents"
    between: str | None = "\n"
    random_starts: bool = True

    name: ClassVar[str] = "text-generation"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    default_settings: ClassVar[dict[str, Any]] = {"schedule": "cosine", "weight_decay": 0.1, "beta2": 0.99}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("packing", self.packing, ("documents", "stream", "none"))
        check_bool("random_starts", self.random_starts)
        for name in ("between", "random_starts"):
            if self.packing != "stream" and getattr(self, name) != getattr(TextGeneration, name):
                stream = Argument("packing", "stream")
                raise InputError(f"{name} is for one long text, and packing is {self.packing!r}: pass ", stream)

    @property
    def ordered(self) -> bool:
        return self.packing == "stream"

    def head(self, loaded: Loaded) -> Head:
        if loaded.config.kind != "decoder":
            raise InputError(f"text-generation trains a decoder, and this model is of kind {loaded.config.kind!r}")
        return head_for(loaded, "causal-lm")

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        room = row_length(loaded, self.max_length, DEFAULT_MAX_LENGTH)
        if self.packing == "stream":
            return _stream_rows(self._token_stream(loaded, rows), room)
        chunks = _chunks(tokenized_texts(loaded, rows), room)
        sizes = [len(chunk.ids) for chunk in chunks]
        groups = pack_rows(sizes, room) if self.packing == "documents" else [[i] for i in range(len(chunks))]
        return [_packed_example([chunks[i] for i in sorted(group)]) for group in groups]

    def _token_stream(self, loaded: Loaded, rows: Sequence[Fields]) -> Tokens:
        """The tokens of all rows as one text."""
        tokenizer, texts = loaded.required_tokenizer, texts_of(rows)
        if self.between is not None:
            parts = tokenizer.encode(_portions(self.between.join(texts)), add_special_tokens=False)
            return concatenate([np.asarray(part.ids, dtype=np.int32) for part in parts])
        end = end_token(loaded)
        if end is None:
            raise InputError("between is None, and this tokenizer has no end token to put there: give it some text")
        ids = [tokenizer.encode(_portions(text), add_special_tokens=False) for text in texts]
        return concatenate([np.asarray([i for part in one for i in part.ids] + [end], dtype=np.int32) for one in ids])

    # -- examples to losses -------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        if self.packing != "stream" or not self.random_starts:
            return self._batch(loaded, examples, [None] * len(examples))
        return self._batch(
            loaded, examples, example_generators(generator, [example.target.start for example in examples])
        )

    def _batch(
        self, loaded: Loaded, examples: Sequence[Example], generators: Sequence[np.random.Generator | None]
    ) -> dict[str, Tensor]:
        read: list[tuple[Any, RowTargets]] = [
            _tokens_and_targets(example, one) for example, one in zip(examples, generators)
        ]
        device = loaded.module.device
        ids = padded([ids for ids, _ in read], loaded.padding_id)
        batch = {"input_ids": ids, "labels": padded([row.labels for _, row in read], IGNORED)}
        if any(row.segments[-1] > 1 for _, row in read):  # else one text a row, which never attends to padding
            batch["segments"] = padded([row.segments for _, row in read], 0)
        return {name: torch.from_numpy(array).to(device) for name, array in batch.items()}

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        def read(group: list[int]) -> dict[str, Tensor]:
            return self._batch(loaded, [examples[i] for i in group], [None] * len(group))

        scores = likelihood_scores(loaded, examples, read)
        return {"loss": scores["loss"], "perplexity": scores["perplexity"]}


def _portions(text: str) -> list[str]:
    """Splits a long text into parts that end with a line, where there are line breaks."""
    parts, start = [], 0
    while start < len(text):
        end = (
            text.rfind("\n", start, start + CHUNK_CHARACTERS) + 1 if start + CHUNK_CHARACTERS < len(text) else len(text)
        )
        end = end if end > start else start + CHUNK_CHARACTERS
        parts.append(text[start:end])
        start = end
    return parts


def _chunks(texts: Iterable[TokenizedText], room: int) -> list[Chunk]:
    """Texts as chunks; one of which only answers are targets is truncated instead, which is logged."""
    chunks: list[Chunk] = []
    short, lost = 0, 0
    for text in texts:
        many = room + 1 if text.answers_only else len(text.ids)
        found = list(cut_chunks(text.ids[:many], text.is_target[:many], room))
        short += text.answers_only and len(text.ids) > room + 1
        lost += not found
        chunks += found
    if short:
        log.warning("%s longer than %s: the rest was cut off", format_count(short, "text"), format_count(room, "token"))
    if lost:
        log.warning("left out: %s without anything to learn", format_count(lost, "text"))
    return chunks


def _packed_example(chunks: Sequence[Chunk]) -> Example:
    ids: Any = concatenate([chunk.ids for chunk in chunks])
    labels = concatenate([chunk.labels for chunk in chunks])
    return Example((ids,), (), RowTargets(labels, segment_ids([len(chunk.ids) for chunk in chunks])))


def _stream_rows(text: Any, room: int) -> list[Example]:
    """Cuts one long text into rows; the last one may be shorter."""
    targets = len(text) - 1
    return [
        Example((text[at : min(at + room, targets)],), (), StreamRow(text, at, room)) for at in range(0, targets, room)
    ]


def _tokens_and_targets(example: Example, generator: np.random.Generator | None) -> tuple[Any, RowTargets]:
    """The tokens of a row and their targets.  generator: draws another start for a row of a stream."""
    if isinstance(example.target, RowTargets):
        return example.ids[0], example.target
    text, start, room = example.target
    if generator is not None:
        start = max(min(start + int(generator.integers(room)), len(text) - 1 - room), 0)
    ids = text[start : start + room + 1]
    return ids[:-1], RowTargets(ids[1:], segment_ids([len(ids) - 1]))
