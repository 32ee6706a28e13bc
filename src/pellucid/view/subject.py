"""The subject of a page: tokens, and the attentions between them, each with the tensors that its weights come from."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pellucid.text.spelling import BYTES, token_text
from pellucid.trace.long_text import Sample
from pellucid.trace.points import Axes
from pellucid.view.arithmetic import Recipe


@dataclass(frozen=True)
class AttentionData:
    """One attention between two sequences of tokens.

    name: its path in the model.  layer: its index there.
    kind: "self" or "cross".  side: "", "encoder" or "decoder".
    queries, keys: indices of their tokens in `Subject.sequences`.
    weights: Float[Tensor, "heads queries keys"], the model's own, or None.
    recipe: what they can be recomputed from, or None.  sample: of a long text, some of the weights.
    """

    name: str
    layer: int
    queries: int
    keys: int
    weights: Tensor | None
    kind: str
    side: str
    recipe: Recipe | None = None
    sample: Sample | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of query heads, queries and keys."""
        if self.recipe is not None:
            return len(self.recipe.query), self.recipe.query.shape[1], self.recipe.key.shape[1]
        assert self.weights is not None  # an attention has weights or a recipe
        heads, queries, keys = self.weights.shape
        return heads, queries, keys

    @property
    def heads(self) -> int:
        """The number of query heads."""
        return self.shape[0]

    @property
    def key_heads(self) -> int:
        """The number of key heads; as many as query heads where only weights are known."""
        return self.heads if self.recipe is None else len(self.recipe.key)

    @property
    def cells(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Subject:
    """texts: the texts as given; the last one of an encoder-decoder is what its decoder reads.
    sequences: their tokens, each {"name", "tokens"}, and how many were "cut".  model: facts for the manifest.

    attentions: the attentions, in the order of the page.  label: its name beside a second subject.
    edits: the edits of this run, as displayed.
    tensors: those of the tensor view, each with its name and its axes.  lens: a result of the logit lens, or None.
    """

    texts: list[str]
    sequences: list[dict[str, Any]]
    model: dict[str, Any]
    attentions: list[AttentionData]
    label: str = ""
    edits: tuple[str, ...] = ()
    tensors: Sequence[tuple[str, Tensor, Axes]] = ()
    lens: Any = None


def token_entries(
    tokens: Sequence[str],
    ids: Sequence[int | None],
    special: Sequence[bool],
    segments: Sequence[int] | None = None,
    *,
    by_bytes: bool,
) -> list[dict[str, Any]]:
    """Tokens for the manifest. WordPiece's `##` is kept; markers for spaces and bytes are replaced by what they stand
    for.  by_bytes: whether the characters of this vocabulary stand for bytes."""
    return [
        {
            "text": text if mark else token_text(text, by_bytes),
            "id": id_,
            "kind": "special" if mark else "subword" if text.startswith("##") else "word",
            "segment": segment,
        }
        for text, id_, mark, segment in zip(tokens, ids, special, segments or [0] * len(tokens))
    ]


def is_byte_level(tokens: Sequence[str]) -> bool:
    """Guesses, without a vocabulary, whether the characters of these tokens stand for bytes: all of them can, and
    either some are spaces, or they decode to text without control characters ("čas" does not). Beside such spaces a
    token with "▁" is of another kind, and is ignored."""
    spaces = any(token.startswith("Ġ") for token in tokens)
    letters = "".join(token for token in tokens if not (spaces and "▁" in token))
    if any(letter not in BYTES for letter in letters):
        return False
    text = bytes(BYTES[letter] for letter in letters).decode("utf-8", "replace")
    return spaces or _UNLIKELY.search(text) is None


_UNLIKELY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")
