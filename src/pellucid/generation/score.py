"""Scoring of texts: the log-probability of each token given those before it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import require_list
from pellucid.errors import InputError, Item, format_count
from pellucid.generation.answers import Score
from pellucid.generation.checkpoint_settings import required_start_token
from pellucid.generation.loop import generation_module
from pellucid.generation.prompts import encoded, missing_end_token
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder, check_finite
from pellucid.text import batch_limits, length_batches, tokens_of

POSITIONS_PER_CHUNK = 256
"""Positions whose logits are computed at a time: a vocabulary has up to a quarter of a million tokens."""


class TokenScore(NamedTuple):
    """A model's log-probability of one token, and the likeliest tokens in its place as (id, log-probability)."""

    log_probability: float
    top_tokens: list[tuple[int, float]]


def score(loaded: Loaded, text: str | Sequence[str], target: str | Sequence[str] | None = None) -> Score | list[Score]:
    """Returns the log-probabilities of a text. See `Model.score`."""
    is_encoder_decoder = loaded.config.kind == "encoder-decoder"
    if is_encoder_decoder == (target is None):
        advice = (
            "score(text, target=...) says how likely the target is"
            if is_encoder_decoder
            else "score(text) takes no target"
        )
        raise InputError(f"this model is of kind {loaded.config.kind!r}: {advice}")
    rows = encoded(loaded, [text] if isinstance(text, str) else text)
    if target is None:
        scores = _of_texts(loaded, rows)
    else:
        scores = _of_targets(loaded, rows, [target] if isinstance(target, str) else target)
    return scores[0] if isinstance(text, str) else scores


def score_tokens(
    loaded: Loaded, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], alternatives: int = 0
) -> list[list[TokenScore]]:
    """Scores each token of `continuations`, given `prompts` and the tokens before it.

    prompts: ids that are read first; of an encoder-decoder, by its encoder. At least one per text.
    """
    module = generation_module(loaded)
    start = [required_start_token(loaded)] if isinstance(module, EncoderDecoder) else []
    found: list[list[TokenScore]] = [[] for _ in continuations]
    lengths = [len(first) + len(then) for first, then in zip(prompts, continuations)]
    # an observed pass holds the logits of all positions at once
    for group in (
        length_batches(lengths) if module.is_observed else length_batches(lengths, *batch_limits(module.device.type))
    ):
        tokens = [(i, token) for i in group for token in continuations[i]]
        for part in _log_probabilities(module, [prompts[i] for i in group], [continuations[i] for i in group], start):
            now, tokens = tokens[: len(part)], tokens[len(part) :]
            for (i, _), one in zip(now, token_scores(part, [token for _, token in now], alternatives)):
                found[i].append(one)
    return found


def token_scores(log_probabilities: Tensor, chosen: Sequence[int], alternatives: int = 0) -> list[TokenScore]:
    """Scores of the chosen tokens, each with the `alternatives` likeliest tokens, the likeliest first.

    log_probabilities: Float[Tensor, "rows vocab"].  chosen: a token of each row.
    """
    chosen_ids = torch.tensor(chosen, dtype=torch.long, device=log_probabilities.device)
    each = log_probabilities.gather(1, chosen_ids[:, None]).squeeze(1).tolist()
    if not alternatives:
        return [TokenScore(one, []) for one in each]
    values, ids = log_probabilities.topk(min(alternatives, log_probabilities.shape[1]), dim=1)
    return [TokenScore(one, list(zip(*row))) for one, *row in zip(each, ids.tolist(), values.tolist())]


@inference_mode()
def _log_probabilities(
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    start: list[int],
) -> Iterator[Tensor]:
    """Yields log-probabilities at the positions of all continuations, one text after the other, `POSITIONS_PER_CHUNK`
    positions at a time: Float[Tensor, "positions vocab"]"""
    device, observed = module.device, module.is_observed
    if isinstance(module, EncoderDecoder):
        source, inputs = _padded(prompts).to(device), [[*start, *then[:-1]] for then in continuations]
        batch, side = {"input_ids": source.clamp(min=0), "attention_mask": (source >= 0).long()}, "decoder_"
        starts = [0] * len(continuations)
    else:
        # including the last token, if it has a position, since an observer may count from it
        end, max_length = None if observed else -1, module.embeddings.position.length
        inputs = [[*first, *then[:end]][:max_length] for first, then in zip(prompts, continuations)]
        batch, side = {}, ""
        starts = [len(first) - 1 for first in prompts]
    padded = _padded(inputs).to(device)
    batch[f"{side}input_ids"] = padded.clamp(min=0)
    if observed:  # right padding is never attended to, but an observer may need the ends of texts
        batch[f"{side}attention_mask"] = (padded >= 0).long()
    rows = torch.tensor([row for row, then in enumerate(continuations) for _ in then], device=device)
    positions = torch.tensor(
        [start + i for start, then in zip(starts, continuations) for i in range(len(then))], device=device
    )
    for logits in module.logits_at((rows, positions), batch, POSITIONS_PER_CHUNK):
        yield check_finite(logits, module).log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as Int[Tensor, "rows longest"], right-padded with -1."""
    ids = [torch.tensor(row, dtype=torch.long, device="cpu") for row in rows]
    return pad_sequence(ids, batch_first=True, padding_value=-1)


def _of_texts(loaded: Loaded, rows: list[list[int]]) -> list[Score]:
    for i, row in enumerate(rows):
        if len(row) < 2:
            raise InputError(
                Item(i, "text"),
                f" has {format_count(len(row), 'token')}, expected 2 at least: the first has no probability",
            )
    _check_lengths(loaded, "text", rows)
    found = score_tokens(loaded, [row[:1] for row in rows], [row[1:] for row in rows])
    tokenizer = loaded.required_target_tokenizer
    return [
        Score(tuple(row), tokens_of(tokenizer, row), (None, *(token_score.log_probability for token_score in one)))
        for row, one in zip(rows, found)
    ]


def _of_targets(loaded: Loaded, rows: list[list[int]], targets: Sequence[str]) -> list[Score]:
    targets = require_list("target", targets, "a text or several")
    if len(targets) != len(rows):
        raise InputError(
            f"there are {format_count(len(rows), 'text')} and {format_count(len(targets), 'target')}: each text "
            "needs one"
        )
    tokenizer = loaded.required_target_tokenizer
    end = missing_end_token(loaded)
    target_rows = [[*row.ids, *end] for row in tokenizer.encode(targets, parse_special_tokens=True)]
    for what, ids in (("text", rows), ("target", target_rows)):
        _check_lengths(loaded, what, ids)
        if [] in ids:
            raise InputError(f"{what} {ids.index([])} is empty: there is nothing to score")
    found = score_tokens(loaded, rows, target_rows)
    return [
        Score(tuple(row), tokens_of(tokenizer, row), tuple(token_score.log_probability for token_score in one))
        for row, one in zip(target_rows, found)
    ]


def _check_lengths(loaded: Loaded, what: str, rows: list[list[int]]) -> None:
    max_length = loaded.config.max_sequence_length
    for i, row in enumerate(rows):
        if max_length is not None and len(row) > max_length:
            raise InputError(
                f"{what} {i} has {len(row):,} tokens, and this model reads {max_length:,}: score it in parts"
            )
