"""The loop: read what stands there, choose the next token, read that one, and so on."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.generation.reader import begin
from pellucid.generation.sample import draw, generators
from pellucid.generation.settings import Settings
from pellucid.generation.written import Written
from pellucid.models import Decoder, EncoderDecoder

Judge = Callable[[int, int], str | None]
"""(which text, the token chosen for it)  ->  why it ends with it, or None where it goes on"""


@dataclass(frozen=True, slots=True)
class Step:
    """One token more in every text that is not finished.

    rows: which texts.  tokens: the token of each.  finished: for those that end with it, why: "end" (an end token),
    "stop", "length" or "time".
    log_probabilities: what the model said before any rule, Float[Tensor, "rows vocab"].
    """

    rows: list[int]
    tokens: list[int]
    finished: dict[int, str]
    log_probabilities: Tensor | None = None


def write(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    *,
    judge: Judge | None = None,
    log_probabilities: bool = False,
) -> Iterator[Step]:
    """Chooses token after token for each prompt until all texts are finished; those that are leave the pass.

    prompts: ids, unpadded, of any lengths; of an encoder-decoder, what its encoder reads. Each is written
        `num_return_sequences` times; text r belongs to prompt r // num_return_sequences.
    judge: asked about each chosen token.  log_probabilities: whether steps hold them.
    Raises InputError for a model that does not write and a prompt that leaves no room.
    """
    module = writer(loaded)
    most = room(loaded, prompts, settings.max_new_tokens)
    return _write(loaded, module, prompts, settings, most, judge, log_probabilities)


def writer(loaded: Loaded) -> Decoder | EncoderDecoder:
    """The module, ready for writing at speed."""
    head = loaded.config.head
    module = loaded.module
    wrong = head is None or head.name not in ("causal-lm", "sequence-to-sequence-lm")
    if wrong or not isinstance(module, Decoder | EncoderDecoder):
        said = f"of kind {loaded.config.kind!r} with {head.name if head else 'no'} head"
        raise InputError(f"this model is {said}; to write, a decoder needs a head for the next token")
    return module.swift()


def room(loaded: Loaded, prompts: Sequence[Sequence[int]], asked: int) -> int:
    """How many tokens can be written behind these prompts, `asked` at most."""
    longest = loaded.config.longest
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {i} is empty: a model needs a token to begin with")
        if longest is not None and len(prompt) >= longest + (loaded.config.kind == "encoder-decoder"):
            raise InputError(f"prompt {i} has {len(prompt):,} tokens, and this model reads {longest:,} in all: cut it")
    if longest is None:
        return asked
    taken = 1 if loaded.config.kind == "encoder-decoder" else max(map(len, prompts), default=1)
    return min(asked, longest - taken)


def _write(
    loaded: Loaded,
    module: Decoder | EncoderDecoder,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    most: int,
    judge: Judge | None,
    log_probabilities: bool,
) -> Iterator[Step]:
    if not prompts:
        return
    until = None if settings.max_time is None else time.monotonic() + settings.max_time
    copies = settings.num_return_sequences
    reader, logits = begin(module, prompts, most)
    rows = list(range(len(prompts) * copies))
    if copies > 1:
        which = torch.arange(len(prompts)).repeat_interleave(copies)
        reader, logits = reader.choose(which), logits[which]
    sources = generators([_seed(settings.seed, row % copies) for row in rows]) if settings.do_sample else []
    ends = frozenset((*loaded.config.end_tokens, *settings.stop_token_ids))
    written = beginning(loaded, [prompts[row // copies] for row in rows], most) if settings.rules else None
    for new in range(1, most + 1):
        with torch.inference_mode():  # not around the yield: what the caller does between is his own business
            said = logits.float().log_softmax(dim=-1) if log_probabilities else None
            tokens = _choose(logits, settings, written, [sources[row] for row in rows] if sources else [])
        chosen = tokens.tolist()
        late = until is not None and time.monotonic() >= until
        finished: dict[int, str] = {}
        for row, token in zip(rows, chosen):
            why = "end" if token in ends else judge(row, token) if judge else None
            why = why or ("time" if late else "length" if new == most else None)
            if why is not None:
                finished[row] = why
        yield Step(rows, chosen, finished, said)
        stay = [i for i, row in enumerate(rows) if row not in finished]
        if not stay:
            return
        with torch.inference_mode():
            if written is not None:
                written = on(written, tokens)
            if len(stay) < len(rows):
                kept = torch.tensor(stay)
                rows, tokens, reader = [rows[i] for i in stay], tokens[kept], reader.choose(kept)
                if written is not None:
                    written = Written(written.ids[kept], written.given, most, written.end_tokens)
            logits = reader.next(tokens)


def beginning(loaded: Loaded, prompts: Sequence[Sequence[int]], most: int) -> Written:
    """What the rules are told before the first choice: the prompts, or the start token that a decoder begins with."""
    if isinstance(loaded.module, EncoderDecoder):
        prompts = [[loaded.module.start_token_id or 0]] * len(prompts)
    given = max(map(len, prompts))
    ids = torch.tensor([[-1] * (given - len(prompt)) + list(prompt) for prompt in prompts])
    return Written(ids.to(loaded.module.embeddings.token.weight.device), given, most, loaded.config.end_tokens)


def on(written: Written, tokens: Tensor) -> Written:
    """The same, one token further."""
    ids = torch.cat((written.ids, tokens[:, None]), dim=1)
    return Written(ids, written.given, written.most, written.end_tokens)


def _choose(logits: Tensor, settings: Settings, written: Written | None, sources: list[torch.Generator]) -> Tensor:
    if written is not None:
        for rule in settings.rules:
            logits = rule(logits, written)
    return draw(logits, sources) if sources else logits.argmax(dim=-1)


def _seed(seed: int | None, copy: int) -> int | None:
    """The seed of the `copy`-th text of a prompt."""
    return None if seed is None else (seed + copy * 0x9E3779B97F4A7C15) % 2**63
