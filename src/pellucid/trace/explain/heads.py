"""Scores of simple attention patterns for every head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count, is_one_of
from pellucid.errors import Argument, InputError, did_you_mean, format_count, shorten
from pellucid.machine import no_grad
from pellucid.models import EncoderDecoder, evaluation_copy
from pellucid.trace import Recorder, Trace
from pellucid.trace.explain.inputs import as_trace, side_of
from pellucid.trace.explain.rollout import weights_of
from pellucid.trace.explain.table import table

NAMES = ("previous", "first", "duplicate", "induction", "entropy")


@dataclass(frozen=True, eq=False)
class HeadScores:
    """Scores of every head, each Float[Tensor, "layers heads"]. All but the entropy lie between 0 and 1: the attention
    weight on certain tokens, averaged over the queries that have such tokens.

    previous: on the token just before.
    first: on the first position, whatever its token; often an attention sink.
    duplicate: on earlier occurrences of the same token.
    induction: on the tokens that followed these: what came next the last time (Olsson et al., 2022, arXiv:2209.11895,
        their prefix matching score).
    entropy: of the weights, in nats: 0 for a single token, ln n for n equally.
    A score is NaN where no token of the text has such tokens.
    """

    previous: Tensor
    first: Tensor
    duplicate: Tensor
    induction: Tensor
    entropy: Tensor

    def strongest(self, name: str, most: int = 5) -> list[tuple[int, int, float]]:
        """The heads with the highest score of this name, as (layer, head, score); empty where all are NaN."""
        if not is_one_of(name, *NAMES):
            unknown = f"{shorten(repr(name))}{did_you_mean(name, NAMES)}"
            raise InputError(f"there is no score {unknown}: choose one of {', '.join(NAMES)}")
        most = check_count("most", most)
        scores = getattr(self, name)
        order = scores.nan_to_num(-1.0).flatten().argsort(descending=True)[:most].tolist()
        found = [divmod(i, scores.shape[1]) for i in order]
        return [(layer, head, float(scores[layer, head])) for layer, head in found if not scores[layer, head].isnan()]

    def __repr__(self) -> str:
        layers, heads = self.previous.shape
        rows = [["", "strongest heads"]]
        for name in NAMES:
            found = ", ".join(f"{layer}.{head} {score:.2f}" for layer, head, score in self.strongest(name, 4))
            rows.append([name, found or "this text has no token to score by"])
        return (
            f"HeadScores({format_count(layers, 'layer')}, {format_count(heads, 'head')})\n{table(rows, left_columns=2)}"
        )


def head_scores(
    loaded: Loaded,
    text: str | Trace | None = None,
    *,
    side: str | None = None,
    length: int | None = None,
    rows: int | None = None,
    seed: int | None = None,
) -> HeadScores:
    """Scores how closely each head of self-attention follows one of five simple patterns. See `HeadScores` for each.

    text: or a trace that holds every `attention.weights`; None for sequences of random tokens, each repeated once, on
        which the paper measures induction: no head can guess the next token except by attending to the repetition.
    length, rows, seed: only for random tokens: how many a sequence has (32), how many sequences (4), and the random
        seed (0).
    side: "encoder" (the default) or "decoder" of an encoder-decoder.

    Special tokens such as `[CLS]` count neither as queries nor as earlier tokens, and the first token, which may see
    only itself, is no query; the weights on them stay in the sums, which are not rescaled. What it does not show: what
    a head is for. A score shows where it attends on these texts, not what it carries nor whether anything later uses
    that; edit the head to find out.
    """
    prefix = side_of(loaded, side, "encoder")
    options = {"length": length, "rows": rows, "seed": seed}
    provided = {name: value for name, value in options.items() if value is not None}
    if text is None:
        defaults = {"length": 32, "rows": 4, "seed": 0}
        return _score_heads(*_repeated_token_attention(loaded, prefix, **defaults | provided))
    for name in provided:
        raise InputError(f"{name} is for random tokens, and a text was given: leave ", Argument(name), " out")
    trace = as_trace(loaded, text, (f"{prefix}layers.*.attention.weights",))
    ids, special = list(trace.ids), list(trace.special)
    if prefix == "decoder.":
        ids, special_ids = list(trace.rows[0].target_ids), loaded.required_target_tokenizer.special_ids
        special = [i == 0 or token in special_ids for i, token in enumerate(ids)]
    real = torch.tensor([not one for one in special], device="cpu")[None]
    return _score_heads(weights_of(trace, prefix), torch.tensor([ids], device="cpu"), real)


def _score_heads(weights: list[Tensor], ids: Tensor, real: Tensor) -> HeadScores:
    """weights: of each layer, Float[Tensor, "rows heads seq seq"]; ids, real: Int and Bool[Tensor, "rows seq"]"""
    is_query = real.clone()
    is_query[:, 0] = False  # the first token of a causal model can only attend to itself
    if not is_query.any():
        raise InputError("the text has one token, expected two at least: a head needs another token to attend to")
    both = is_query[:, :, None] & real[:, None, :]
    earlier = both & torch.ones_like(both[0]).tril(-1)
    same = earlier & (ids[:, :, None] == ids[:, None, :])
    after_same = torch.zeros_like(same)
    after_same[:, :, 1:] = same[:, :, :-1]
    pairs = {
        "previous": earlier & torch.ones_like(earlier[0]).triu(-1),
        "first": is_query[:, :, None] & (torch.arange(ids.shape[1], device="cpu") == 0),
        "duplicate": same,
        "induction": after_same & earlier,
    }
    layers = [layer.cpu() for layer in weights]
    found = {name: torch.stack([_mean_weight(layer, mask) for layer in layers]) for name, mask in pairs.items()}
    spread = [torch.special.entr(layer).sum(dim=-1).transpose(1, 2)[is_query].mean(dim=0) for layer in layers]
    return HeadScores(**found, entropy=torch.stack(spread))


def _mean_weight(weights: Tensor, pairs: Tensor) -> Tensor:
    """The weight on these pairs, summed for each query, averaged over queries with any:
    Float[Tensor, "rows heads seq seq"], Bool[Tensor, "rows seq seq"]  ->  Float[Tensor, "heads"]"""
    queries = pairs.any(dim=-1).sum()
    return (weights * pairs[:, None]).sum(dim=(0, 2, 3)) / queries  # 0 / 0 is NaN, as it should be


@no_grad()
def _repeated_token_attention(
    loaded: Loaded, side: str, length: int, rows: int, seed: int
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Attention on repeated random tokens: the weights of each layer, the ids, and which of them are not special."""
    length = check_count("length", length)
    rows = check_count("rows", rows)
    seed = check_count("seed", seed, maximum=2**63 - 1, minimum=0)
    ids, real = _repeated_sequences(loaded, length, rows, seed)
    limit = loaded.config.max_sequence_length
    if limit is not None and ids.shape[1] > limit:
        raise InputError(f"length {length} makes {ids.shape[1]} tokens, and this model reads {limit}: take less")
    recorder = Recorder((f"{side}layers.*.attention.weights",))
    module = evaluation_copy(loaded.module.require_no_row_edits())
    input_ids = ids.to(loaded.module.device)
    if isinstance(module, EncoderDecoder):
        module(input_ids, decoder_input_ids=module.shift_right(input_ids), observer=recorder)
        if side == "decoder.":
            ids, real = module.shift_right(ids), torch.cat((torch.zeros_like(real[:, :1]), real[:, :-1]), dim=1)
    else:
        module(input_ids, observer=recorder)
    wide = torch.promote_types(next(iter(recorder.recorded.values())).dtype, torch.float32)
    return [weights.to(wide) for weights in recorder.recorded.values()], ids, real


def _repeated_sequences(loaded: Loaded, length: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens twice over between the special tokens of a text: the ids, and which of them are not special."""
    tokenizer, generator = loaded.tokenizer, torch.Generator().manual_seed(seed)
    facts = loaded.config
    size = facts.decoder.source_vocab_size if facts.decoder and facts.decoder.source_vocab_size else facts.vocab_size
    size = min(size, facts.vocab_size)
    excluded = {facts.pad_token_id, facts.bos_token_id, *facts.end_tokens}
    start = facts.bos_token_id if facts.kind == "decoder" else None
    prefix: list[int] = [] if start is None or start >= size else [start]
    suffix: list[int] = []
    if tokenizer is not None:
        excluded |= tokenizer.special_ids
        (row,) = tokenizer.encode(["a"])
        first = next((i for i, s in enumerate(row.special) if not s), (len(row.ids) + 1) // 2)
        prefix, suffix = row.ids[:first], [one for one, s in zip(row.ids[first:], row.special[first:]) if s]
    plain = torch.tensor([i for i in range(size) if i not in excluded], device="cpu")
    draws = [plain[torch.randint(len(plain), (length,), generator=generator, device="cpu")] for _ in range(rows)]
    if len(plain) >= length:
        draws = [plain[torch.randperm(len(plain), generator=generator, device="cpu")[:length]] for _ in range(rows)]
    ends = [torch.tensor(some, dtype=torch.long, device="cpu") for some in (prefix, suffix)]
    ids = torch.stack([torch.cat((ends[0], one, one, ends[1])) for one in draws])
    real = torch.zeros_like(ids, dtype=torch.bool)
    real[:, len(prefix) : len(prefix) + 2 * length] = True
    return ids, real
