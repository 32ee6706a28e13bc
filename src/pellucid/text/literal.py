"""A tokenizer that reads special tokens in a text as plain characters, whatever its model."""

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models


def literal_copy(backend: tokenizers.Tokenizer, mask: str | None) -> tokenizers.Tokenizer:
    """A copy of `backend` that never returns the id of a special token except the mask, which users write on purpose.

    Not matching special tokens is not enough: a model of whole words or pieces finds `</s>` in its own vocabulary, even
    if only normalisation produces it (`＜/s＞`), and merges may assemble it from its characters.
    """
    state: dict[str, Any] = json.loads(backend.to_str())
    tokens = {token["content"] for token in state["added_tokens"] if token["special"]} - {mask}
    for token in state["added_tokens"]:
        if token["content"] == mask:
            token["special"] = False  # still matched
    model = state["model"]
    if model["type"] == "BPE":
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) not in tokens]
    else:
        _rename(state, tokens - {model.get("unk_token")})
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    copy.encode_special_tokens = True
    return copy


def _rename(state: dict[str, Any], tokens: set[str | None]) -> None:
    """Renames the special tokens to contain a space, which no text does once it is split or its spaces are U+2581."""
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
    """Whether normalisation may produce any of `tokens` from a text that does not contain it."""
    if backend.normalizer is None or isinstance(backend.model, models.Unigram):
        return backend.normalizer is not None
    contents = set(tokens)
    found = [token for token in backend.get_added_tokens_decoder().values() if token.content in contents]
    return any(token.normalized or _model_yields(backend, token.content) for token in found)


def _model_yields(backend: tokenizers.Tokenizer, word: str) -> bool:
    """Whether the model has a token for a whole word and would return it without matching added tokens."""
    model, before = backend.model, backend.pre_tokenizer
    if model.token_to_id(word) is None:
        return False
    if isinstance(model, models.BPE):
        return [token.value for token in model.tokenize(word)] == [word]
    return before is None or any(part == word for part, _ in before.pre_tokenize_str(word))
