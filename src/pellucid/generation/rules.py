"""The rules of decoding, in the order in which they are applied, which is that of the reference.

A rule is a function of the logits (or log-probabilities) of the next token, Float[Tensor, "rows vocab"], and of the
texts so far. Its options are its keyword arguments, and it is applied if one of them differs from its default. To add a
rule, write the function at its place in the order, and its test.

Rows are independent of each other: -1, the padding of shorter texts, never counts.
"""

from typing import Annotated

import torch
from torch import Tensor

from pellucid.errors import Argument
from pellucid.generation.options import (
    TokenSequences,
    forbidden_sequences,
    number,
    sequence_biases,
    token_biases,
    token_id,
    token_ids,
    whole_number,
)
from pellucid.generation.progress import GenerationProgress
from pellucid.generation.registry import OPTIONS as OPTIONS
from pellucid.generation.registry import Option as Option
from pellucid.generation.registry import Rule as Rule
from pellucid.generation.registry import apply as apply
from pellucid.generation.registry import chain as chain
from pellucid.generation.registry import rule
from pellucid.machine import widest_dtype

FORBIDDEN = -torch.inf

# -- rules of all decoding -------------------------------------------------------------------------------------------


@rule()
def bias(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    sequence_bias: Annotated[tuple[TokenSequences, ...], sequence_biases] = (),
    logit_bias: Annotated[tuple[TokenSequences, ...], token_biases] = (),
) -> Tensor:
    """Adds a bias to a token (`logit_bias`), or to the last token of a sequence after the others (`sequence_bias`)."""
    return _add_bias(logits, progress, (*sequence_bias, *logit_bias))


@rule()
def penalize_repetition(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    repetition_penalty: Annotated[float, number(above=0, maximum=1000)] = 1.0,
) -> Tensor:
    """Divides the logit of every token of the text by the penalty, or multiplies it if negative. Keskar et al., 2019,
    arXiv:1909.05858."""
    ids = torch.where(progress.ids < 0, progress.ids[:, -1:], progress.ids)  # repeats the last token instead of padding
    met = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(met < 0, met * repetition_penalty, met / repetition_penalty))


@rule()
def penalize_counts(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    frequency_penalty: Annotated[float, number(minimum=-2, maximum=2)] = 0.0,
    presence_penalty: Annotated[float, number(minimum=-2, maximum=2)] = 0.0,
) -> Tensor:
    """Subtracts `frequency_penalty` for each time a token was generated, and `presence_penalty` if it was generated at
    all. Tokens of the prompt do not count."""
    chosen = progress.ids[:, progress.prompt_length :]
    ones = torch.ones_like(chosen, dtype=logits.dtype)
    counts = torch.zeros_like(logits).scatter_add_(1, chosen, ones).gather(1, chosen)
    return logits.scatter(1, chosen, logits.gather(1, chosen) - frequency_penalty * counts - presence_penalty)


@rule()
def forbid_repeated_ngrams(
    logits: Tensor, progress: GenerationProgress, *, no_repeat_ngram_size: Annotated[int, whole_number] = 0
) -> Tensor:
    """Forbids tokens that would complete an n-gram of this size that the text already has. Paulus et al., 2017,
    arXiv:1705.04304."""
    ids, size = progress.ids, no_repeat_ngram_size
    if size > ids.shape[1]:
        return logits
    windows, tail = ids.unfold(1, size, 1), ids[:, ids.shape[1] - size + 1 :]
    same = (windows[..., :-1] == tail[:, None]).all(dim=-1) & (windows[..., -1] >= 0)
    rows, positions = same.nonzero(as_tuple=True)
    return logits.index_put((rows, windows[rows, positions, -1]), logits.new_tensor(FORBIDDEN))


@rule()
def forbid_words(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    bad_words_ids: Annotated[tuple[TokenSequences, ...], forbidden_sequences] = (),
) -> Tensor:
    """Forbids the last token of a sequence after the others. A single end token is not forbidden."""
    groups = (group if group.prefix.shape[1] else group.without(progress.end_tokens) for group in bad_words_ids)
    return _add_bias(logits, progress, tuple(groups))


@rule()
def hold_back_the_end(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    min_length: Annotated[int, whole_number] = 0,
    min_new_tokens: Annotated[int | None, whole_number] = None,
) -> Tensor:
    """Forbids the end tokens before `min_new_tokens`; else in texts shorter than `min_length`, prompts included."""
    if min_new_tokens is None:
        early = _lengths(progress) < min_length
    else:
        early = torch.full_like(progress.ids[:, 0], progress.new < min_new_tokens, dtype=torch.bool)
    valid_ends = [end for end in progress.end_tokens if end < logits.shape[1]]
    ends = torch.tensor(valid_ends, dtype=torch.long, device=logits.device)
    return logits.index_copy(1, ends, logits[:, ends].masked_fill(early[:, None], FORBIDDEN))


@rule()
def force_first(
    logits: Tensor, progress: GenerationProgress, *, forced_bos_token_id: Annotated[int | None, token_id] = None
) -> Tensor:
    """Allows only one token if the text has a single one: the first choice after a decoder's start token."""
    if forced_bos_token_id is None or progress.new:
        return logits
    return torch.where(_lengths(progress)[:, None] == 1, _forced(logits, (forced_bos_token_id,)), logits)


@rule()
def force_last(
    logits: Tensor, progress: GenerationProgress, *, forced_eos_token_id: Annotated[tuple[int, ...], token_ids] = ()
) -> Tensor:
    """Allows only these tokens in the last choice that there is room for."""
    last = [left == 1 for left in progress.left or (progress.max_new_tokens - progress.new,) * len(logits)]
    if not any(last):
        return logits
    return torch.where(torch.tensor(last, device=logits.device)[:, None], _forced(logits, forced_eos_token_id), logits)


@rule()
def suppress(
    logits: Tensor, progress: GenerationProgress, *, suppress_tokens: Annotated[tuple[int, ...], token_ids] = ()
) -> Tensor:
    """Forbids these tokens."""
    return logits.index_fill(1, torch.tensor(suppress_tokens, device=logits.device), FORBIDDEN)


@rule()
def suppress_at_begin(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    begin_suppress_tokens: Annotated[tuple[int, ...], token_ids] = (),
    forced_bos_token_id: int | None = None,
) -> Tensor:
    """Forbids these tokens in the first choice, or in the second if `forced_bos_token_id` determines the first."""
    if progress.new > 1:
        return logits
    taken = (_lengths(progress) - progress.new == 1) & (forced_bos_token_id is not None)
    begins = taken.long() == progress.new
    fewer = logits.index_fill(1, torch.tensor(begin_suppress_tokens, device=logits.device), FORBIDDEN)
    return torch.where(begins[:, None], fewer, logits)


# -- rules of sampling; each keeps at least one token ----------------------------------------------------------------

GREEDY = (
    "; to take the likeliest token, leave ",
    Argument("temperature"),
    " out and pass ",
    Argument("do_sample", False),
)


@rule(sampling=True)
def divide_by_temperature(
    logits: Tensor,
    progress: GenerationProgress,
    *,
    temperature: Annotated[float, number(minimum=1e-30, maximum=1000, advice=GREEDY)] = 1.0,
) -> Tensor:
    """Divides the logits by the temperature: below 1, likely tokens become likelier; above 1, less likely."""
    return logits / temperature


@rule(sampling=True)
def keep_top_k(logits: Tensor, progress: GenerationProgress, *, top_k: Annotated[int, whole_number] = 0) -> Tensor:
    """Keeps the k likeliest tokens, and ties with the last of them. Fan et al., 2018, arXiv:1805.04833."""
    min_logit = logits.topk(min(top_k, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < min_logit, FORBIDDEN)


@rule(sampling=True)
def keep_top_p(
    logits: Tensor, progress: GenerationProgress, *, top_p: Annotated[float, number(above=0, maximum=1)] = 1.0
) -> Tensor:
    """Keeps the fewest tokens whose probabilities sum to `top_p`, with ties in the order of ids. Holtzman et al., 2020,
    arXiv:1904.09751."""
    min_logit, rank = _top_mass(logits, logits.softmax(dim=-1), top_p)
    likelier, alike = logits > min_logit, logits == min_logit
    room = rank + 1 - likelier.sum(dim=1, keepdim=True)
    if bool((alike.sum(dim=1, keepdim=True) > room).any()):
        alike &= alike.cumsum(dim=1) <= room
    return logits.masked_fill(~(likelier | alike), FORBIDDEN)


@rule(sampling=True)
def keep_min_p(
    logits: Tensor, progress: GenerationProgress, *, min_p: Annotated[float, number(minimum=0, maximum=1)] = 0.0
) -> Tensor:
    """Keeps the tokens whose probability is at least `min_p` times the greatest one. arXiv:2407.01082."""
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), FORBIDDEN)


@rule(sampling=True)
def keep_typical(
    logits: Tensor, progress: GenerationProgress, *, typical_p: Annotated[float, number(above=0, maximum=1)] = 1.0
) -> Tensor:
    """Keeps the tokens whose information is nearest to the entropy until their probabilities sum to `typical_p`, and
    ties with the last. Meister et al., 2022, arXiv:2202.00666."""
    logarithms = logits.log_softmax(dim=-1)
    probabilities = logarithms.exp()
    typicality = -(-logarithms - _entropy(logarithms)).abs()
    return logits.masked_fill(typicality < _top_mass(typicality, probabilities, typical_p)[0], FORBIDDEN)


@rule(sampling=True)
def keep_above_epsilon(
    logits: Tensor, progress: GenerationProgress, *, epsilon_cutoff: Annotated[float, number(minimum=0, below=1)] = 0.0
) -> Tensor:
    """Keeps the tokens of at least this probability, and the likeliest. Hewitt et al., 2022, arXiv:2210.15191."""
    return _keep_probable(logits, logits.softmax(dim=-1), epsilon_cutoff)


@rule(sampling=True)
def keep_above_eta(
    logits: Tensor, progress: GenerationProgress, *, eta_cutoff: Annotated[float, number(minimum=0, below=1)] = 0.0
) -> Tensor:
    """Keeps tokens as `keep_above_epsilon` does, with a lower threshold where the entropy is high. Hewitt et al., 2022,
    arXiv:2210.15191, section 3.2."""
    logarithms = logits.log_softmax(dim=-1)
    min_probability = (eta_cutoff**0.5 * (-_entropy(logarithms)).exp()).clamp(max=eta_cutoff)
    return _keep_probable(logits, logarithms.exp(), min_probability)


# -- helpers ---------------------------------------------------------------------------------------------------------


def _lengths(progress: GenerationProgress) -> Tensor:
    """Number of tokens of each text, Int[Tensor, "rows"]."""
    return (progress.ids >= 0).sum(dim=1)


def _add_bias(logits: Tensor, progress: GenerationProgress, groups: tuple[TokenSequences, ...]) -> Tensor:
    logits = logits.clone()
    for group in groups:
        extra = torch.where(group.next_completes(progress.ids), group.bias.to(logits), 0.0)
        logits.scatter_add_(1, group.last.to(logits.device).expand(len(logits), -1), extra)
    return logits


def _forced(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    return torch.full_like(logits, FORBIDDEN).index_fill_(1, torch.tensor(ids, device=logits.device), 0.0)


def _entropy(logarithms: Tensor) -> Tensor:
    """Entropy in nats: Float[Tensor, "rows 1"]."""
    return -(logarithms * logarithms.exp()).nansum(dim=-1, keepdim=True)


def _keep_probable(logits: Tensor, probabilities: Tensor, min_probability: Tensor | float) -> Tensor:
    """Keeps tokens of at least this probability, and in any case the likeliest."""
    return logits.masked_fill(
        (probabilities < min_probability) & (logits < logits.amax(dim=-1, keepdim=True)), FORBIDDEN
    )


def _top_mass(order: Tensor, probabilities: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Sums probabilities in descending `order` until they reach `mass`.

    Two Float[Tensor, "rows vocab"]  ->  the order of the last one summed, Float[Tensor, "rows 1"], and the number
    before it. Usually few are needed, so not all are sorted.
    """
    vocab = order.shape[1]
    for k in (256, 4096, vocab):
        best, indices = order.topk(min(k, vocab))
        summed = probabilities.gather(1, indices).cumsum(dim=1, dtype=widest_dtype(order.device))
        if bool((summed[:, -1] >= mass).all()):
            break
    rank = (summed < mass).sum(dim=1, keepdim=True).clamp(max=best.shape[1] - 1)
    return best.gather(1, rank), rank
