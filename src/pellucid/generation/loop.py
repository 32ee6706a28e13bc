"""The loop: read what stands there, choose the next token, read that one, and so on."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.models import Decoder, EncoderDecoder, Network, evaluating


def greedy(
    loaded: Loaded, input_ids: Tensor, attention_mask: Tensor | None = None, *, max_new_tokens: int = 20
) -> Iterator[Tensor]:
    """The likeliest next token of each text, then the one after it, until all texts have ended.

    input_ids: Int[Tensor, "rows seq"]; attention_mask: the same shape, 1 = word, 0 = padding, on either side.
    Each pass reads the new tokens alone; what came before is remembered.  ->  Int[Tensor, "rows"], token by token;
    a text that has ended goes on with its end token.
    """
    head = loaded.config.head
    if loaded.config.kind == "encoder" or head is None or head.name not in ("causal-lm", "sequence-to-sequence-lm"):
        said = f"of kind {loaded.config.kind!r} with {head.name if head else 'no'} head"
        raise InputError(f"this model is {said}; to write, a decoder needs a head for the next token")
    return _write(loaded, input_ids, attention_mask, max_new_tokens)


def _write(loaded: Loaded, ids: Tensor, mask: Tensor | None, most: int) -> Iterator[Tensor]:
    ends = torch.tensor(loaded.config.end_tokens, dtype=torch.long, device=ids.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    with torch.inference_mode():
        logits, step = _begin(evaluating(loaded.module), ids, mask, most)
    for _ in range(most):
        with torch.inference_mode():  # not around the yield: what the caller does between is his own business
            token = logits.argmax(dim=-1)
            token = torch.where(ended, ends[:1], token) if len(ends) else token
            ended = ended | torch.isin(token, ends)
        yield token
        if bool(ended.all()):
            return
        with torch.inference_mode():
            logits = step(token[:, None])


def _begin(module: Network, ids: Tensor, mask: Tensor | None, most: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The first logits, and the pass that gives the next ones from one more token: Float[Tensor, "rows vocab"]"""
    if isinstance(module, EncoderDecoder):
        cache = module.new_cache(most + 1)
        start = module.shifted(ids)[:, :1]
        first = module(ids, mask, start, cache=cache)
        memory = first.encoder_last_hidden_state
        return first.logits[:, -1], lambda token: module(None, mask, token, memory=memory, cache=cache).logits[:, -1]
    assert isinstance(module, Decoder)  # an encoder was refused
    cache = module.new_cache(ids.shape[1] + most)
    first = module(ids, mask, cache=cache)
    last = -1 if mask is None else mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
    return first.logits[torch.arange(len(ids)), last], lambda token: module(token, cache=cache).logits[:, -1]
