"""The subject of a page: tokens, and the attentions between them, each with the tensors that its weights come from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pellucid.text.spelling import BYTES, token_text
from pellucid.trace.long_text import Sample
from pellucid.view.arithmetic import attention_weights, visible_keys


@dataclass(frozen=True)
class AttentionData:
    """One attention between two sequences of tokens.

    name: its path in the model.  layer: its index there.
    kind: "self" or "cross".  side: "", "encoder" or "decoder".
    queries, keys: indices of their tokens in `Subject.sequences`.
    query: Float[Tensor, "heads queries size"] before rotation; key: Float[Tensor, "key_heads keys size"]; or None.
    weights: Float[Tensor, "heads queries keys"], the model's own, or None.  sample: of a long text, some of them.
    scale, mask, window: as in the manifest.
    bias: Float[Tensor, "heads queries+keys-1"], by distance.  rotation: Float[Tensor, "2 positions size/2"], cosines
        and sines.
    """

    name: str
    layer: int
    queries: int
    keys: int
    query: Tensor | None
    key: Tensor | None
    weights: Tensor | None
    kind: str = "self"
    side: str = ""
    scale: float = 1.0
    mask: str = "full"
    window: int | None = None
    bias: Tensor | None = None
    rotation: Tensor | None = None
    sample: Sample | None = None

    @property
    def heads(self) -> int:
        """The number of query heads."""
        some = self.weights if self.query is None else self.query
        return 0 if some is None else some.shape[0]

    @property
    def key_heads(self) -> int:
        """The number of key heads; as many as query heads where only weights are known."""
        return self.heads if self.key is None else self.key.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        if self.query is not None and self.key is not None:
            return self.query.shape[1], self.key.shape[1]
        assert self.weights is not None  # an attention has queries and keys, or weights
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def cells(self) -> int:
        """The number of weights."""
        return self.heads * self.shape[0] * self.shape[1]

    def recomputed_weights(self, head: int, rows: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The weights of some queries of one head as the browser computes them from this query and key, in float64.

        ->  Float64[Tensor, "rows keys"]
        """
        head_keys = key[head * len(key) // len(query)]
        attention_mask = visible_keys(self.mask, self.window, rows, len(head_keys))
        bias = None if self.bias is None else self.bias[head]
        return attention_weights(query[head], head_keys, rows, attention_mask, self.scale, bias, self.rotation)


@dataclass(frozen=True)
class Subject:
    """texts: the texts as given; the last one of an encoder-decoder is what its decoder reads.
    sequences: their tokens, each {"name", "tokens"}, and how many were "cut".  model: facts for the manifest.

    attentions: the attentions, in the order of the page.  label: its name beside a second subject.
    edits: the edits of this run, as displayed.
    """

    texts: list[str]
    sequences: list[dict[str, Any]]
    model: dict[str, Any]
    attentions: list[AttentionData]
    label: str = ""
    edits: tuple[str, ...] = ()


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
