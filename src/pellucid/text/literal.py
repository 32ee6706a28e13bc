"""A tokenizer for which special tokens that somebody typed are plain characters, whatever model stands below."""

import json
from typing import Any

import tokenizers


def literal_twin(backend: tokenizers.Tokenizer, mask: str | None) -> tokenizers.Tokenizer:
    """A copy of `backend` that gives the id of no special token but the mask, which people write on purpose.

    Not to look for special tokens is not enough: a unigram model finds `</s>` in its own vocabulary, also where only
    normalisation makes it (`＜/s＞`), and merges may put it together from its characters.
    """
    page: dict[str, Any] = json.loads(backend.to_str())
    words = {token["content"] for token in page["added_tokens"] if token["special"]} - {mask}
    for token in page["added_tokens"]:
        if token["content"] == mask:
            token["special"] = False  # still looked for
    model = page["model"]
    if model["type"] == "Unigram":
        _rename(page, words)
    elif model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in words]
    twin = tokenizers.Tokenizer.from_str(json.dumps(page))
    twin.encode_special_tokens = True
    return twin


def _rename(page: dict[str, Any], words: set[str | None]) -> None:
    """Gives the special pieces names with a space, which no text holds once spaces have become U+2581."""
    for i, entry in enumerate(page["model"]["vocab"]):
        if entry[0] in words:
            entry[0] = f" {i} "
    for token in page["added_tokens"]:
        if token["content"] in words:
            token["content"] = f" {token['id']} "
