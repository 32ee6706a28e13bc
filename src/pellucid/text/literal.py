"""A tokenizer for which special tokens that somebody typed are plain characters, whatever model stands below."""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models


def literal_copy(backend: tokenizers.Tokenizer, mask: str | None) -> tokenizers.Tokenizer:
    """A copy of `backend` that gives the id of no special token but the mask, which people write on purpose.

    Not to look for special tokens is not enough: a model of whole words or pieces finds `</s>` in its own vocabulary,
    also where only normalisation makes it (`＜/s＞`), and merges may put it together from its characters.
    """
    state: dict[str, Any] = json.loads(backend.to_str())
    tokens = {token["content"] for token in state["added_tokens"] if token["special"]} - {mask}
    for token in state["added_tokens"]:
        if token["content"] == mask:
            token["special"] = False  # still looked for
    model = state["model"]
    if model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in tokens]
    else:
        _rename(state, tokens - {model.get("unk_token")})
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


def _rename(state: dict[str, Any], tokens: set[str | None]) -> None:
    """Gives the special tokens names with a space, which no text holds once it is split or spaces are U+2581."""
    vocab = state["model"]["vocab"]
    if isinstance(vocab, dict):
        state["model"]["vocab"] = {f" {i} " if piece in tokens else piece: i for piece, i in vocab.items()}
    else:
        state["model"]["vocab"] = [
            [f" {i} " if piece in tokens else piece, score] for i, (piece, score) in enumerate(vocab)
        ]
    for token in state["added_tokens"]:
        if token["content"] in tokens:
            token["content"] = f" {token['id']} "


def may_come_from_normalizing(backend: tokenizers.Tokenizer, tokens: Sequence[str]) -> bool:
    """Whether `tokens` may be found in a text that does not hold their letters before it is normalised."""
    if backend.normalizer is None or isinstance(backend.model, models.Unigram):
        return backend.normalizer is not None
    found = [token for token in backend.get_added_tokens_decoder().values() if token.content in tokens]
    return any(token.normalized or _model_yields(backend, token.content) for token in found)


def _model_yields(backend: tokenizers.Tokenizer, word: str) -> bool:
    """Whether the model has a token for a whole word and would come to it without looking for added tokens."""
    model, before = backend.model, backend.pre_tokenizer
    if model.token_to_id(word) is None:
        return False
    if isinstance(model, models.BPE):
        return [token.value for token in model.tokenize(word)] == [word]
    return before is None or any(part == word for part, _ in before.pre_tokenize_str(word))
