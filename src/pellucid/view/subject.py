"""What a page is about: tokens, and between them attentions, each with the numbers that its weights come from."""

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
    """One attention: who looks at whom.

    name: its path in the model.  layer: its number there.
    kind: "self" or "cross".  side: "", "encoder" or "decoder".
    queries, keys: places of their tokens in `Subject.sequences`.
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
        """Heads of query."""
        some = self.weights if self.query is None else self.query
        return 0 if some is None else some.shape[0]

    @property
    def key_heads(self) -> int:
        """Heads of key; as many as of query where only weights are known."""
        return self.heads if self.key is None else self.key.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        if self.query is not None and self.key is not None:
            return self.query.shape[1], self.key.shape[1]
        assert self.weights is not None  # an attention has one or the other
        return self.weights.shape[1], self.weights.shape[2]

    @property
    def cells(self) -> int:
        """How many weights it has."""
        return self.heads * self.shape[0] * self.shape[1]

    def recomputed_weights(self, head: int, rows: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The weights of some queries of one head as the browser computes them from these query and key, in float64.

        ->  Float64[Tensor, "rows keys"]
        """
        head_keys = key[head * len(key) // len(query)]
        attention_mask = visible_keys(self.mask, self.window, rows, len(head_keys))
        bias = None if self.bias is None else self.bias[head]
        return attention_weights(query[head], head_keys, rows, attention_mask, self.scale, bias, self.rotation)


@dataclass(frozen=True)
class Subject:
    """texts: as they were given; of an encoder-decoder the last is what its decoder reads.
    sequences: their tokens, {"name", "tokens"} each, and how many more were "cut".  model: facts for the manifest.

    attentions: the attentions, in the order of the page.  label: what it is called beside another one.
    edits: what was changed in this run, as a person reads it.
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
    """Tokens for the manifest. `##` of WordPiece is kept; the signs for a space and for bytes become what they stand
    for.  by_bytes: whether the letters of this vocabulary stand for bytes."""
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
    """Whether the letters of these tokens seem to stand for bytes, where no vocabulary is there to say it: all of them
    could, and either spaces are among them, or they are a text with nothing that steers a terminal ("čas" is none).
    Beside such spaces a token with "▁" is of another kind, and says nothing of the others."""
    spaces = any(token.startswith("Ġ") for token in tokens)
    letters = "".join(token for token in tokens if not (spaces and "▁" in token))
    if any(letter not in BYTES for letter in letters):
        return False
    text = bytes(BYTES[letter] for letter in letters).decode("utf-8", "replace")
    return spaces or _UNLIKELY.search(text) is None


_UNLIKELY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")
