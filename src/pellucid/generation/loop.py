"""The generation loop: read the prompt, choose the next token, read that one, and so on."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pellucid.blocks import Observer
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, InputError, Item, shorten
from pellucid.generation.checkpoint_settings import decoder_start_token, required_start_token
from pellucid.generation.progress import GenerationProgress
from pellucid.generation.reader import DecodingState, prefill
from pellucid.generation.rules import apply
from pellucid.generation.sample import generators, greedy_tokens, sample_tokens
from pellucid.generation.settings import Settings
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder, evaluation_copy

Judge = Callable[[int, int], str | None]
"""(index of the text, token chosen for it)  ->  why the text ends with it, or None if it continues"""


@dataclass(frozen=True, slots=True)
class Step:
    """One more token of every unfinished text.

    rows: indices of the texts.  tokens: the token of each.  finished: for those that end with it, the reason: "end" (an
        end token), "stop", "length" or "time".
    log_probabilities: of the model, before any rule, Float[Tensor, "rows vocab"].
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
    new_observer: Callable[[], Observer] | None = None,
    deadline_time: float | None = None,
) -> Iterator[Step]:
    """Generates token after token for each prompt until all texts are finished; finished ones leave the batch.

    prompts: ids, unpadded, of any lengths; of an encoder-decoder, the input of its encoder. Each is continued
        `num_return_sequences` times; text r belongs to prompt r // num_return_sequences.
    judge: called for each chosen token.  log_probabilities: whether steps hold them.
    new_observer: returns an observer for each pass; then the plain blocks run, not the packed copy.
    deadline_time: the result of `deadline`, if this is part of something begun earlier; by default, counted from now.
    Raises InputError for a model that cannot generate, a prompt that leaves no room, beams, and stop texts without a
    judge that finds them.
    """
    module = generation_module(loaded, packed=new_observer is None)
    _check_supported(settings, judge)
    budgets = [token_budget(loaded, prompt, settings.max_new_tokens, i) for i, prompt in enumerate(prompts)]
    if not prompts:
        return iter(())
    deadline_time = deadline(settings) if deadline_time is None else deadline_time
    state, logits = prefill(module, prompts, max(budgets), new_observer, decoder_start_token(loaded))
    return _TokenLoop(
        loaded, state, logits, prompts, budgets, settings, judge, log_probabilities, deadline_time
    ).steps()


def deadline(settings: Settings) -> float:
    """The time, by `time.monotonic`, at which `max_time` from now is over; inf without a limit."""
    return math.inf if settings.max_time is None else time.monotonic() + settings.max_time


def check_no_beams(settings: Settings, reason: str, more: str = "") -> None:
    """Refuses beam search.  reason: the reason, and the start of the advice.  more: further advice."""
    if settings.num_beams > 1:
        raise InputError(
            Argument("num_beams"), f" is {settings.num_beams}, and {reason}", Argument("num_beams", 1), more
        )


def _check_supported(settings: Settings, judge: Judge | None) -> None:
    """Refuses settings that would otherwise be silently ignored."""
    check_no_beams(settings, "beam search has its texts only at the end: pass ")
    if settings.stop and judge is None:
        raise InputError(
            f"stop is {shorten(repr(settings.stop))}, and ids are not text: give a judge that finds the end, or pass ",
            Argument("stop_token_ids"),
        )


def generation_module(loaded: Loaded, *, packed: bool = True) -> Decoder | EncoderDecoder:
    """Returns the module for generation, a packed copy if `packed`.

    Raises InputError for a model that cannot generate.
    """
    head = loaded.config.head
    module = loaded.module
    if not loaded.config.writes or not isinstance(module, Decoder | EncoderDecoder):
        kind = f"of kind {loaded.config.kind!r} with {head.name if head else 'no'} head"
        raise InputError(f"this model is {kind}; to generate text, a decoder needs a head for the next token")
    if isinstance(module, EncoderDecoder):
        required_start_token(loaded)
    return module.packed_copy() if packed else evaluation_copy(module.require_no_row_edits())


def token_budget(loaded: Loaded, prompt: Sequence[int], max_new_tokens: int, prompt_index: int = 0) -> int:
    """How many tokens can follow this prompt, at most `max_new_tokens`; the last one needs no position.

    Raises InputError for an empty prompt and for one that is too long.
    """
    max_length, is_encoder_decoder = loaded.config.max_sequence_length, loaded.config.kind == "encoder-decoder"
    if not len(prompt):
        raise InputError(Item(prompt_index, "prompt"), " is empty: a model needs a token to begin with")
    if max_length is None:
        return max_new_tokens
    if len(prompt) > max_length:
        raise InputError(
            Item(prompt_index, "prompt"),
            f" has {len(prompt):,} tokens, and this model reads {max_length:,} in all: cut it",
        )
    return min(max_new_tokens, max_length if is_encoder_decoder else max_length + 1 - len(prompt))


def end_tokens(loaded: Loaded, settings: Settings) -> tuple[int, ...]:
    """The end tokens of the model and the requested `stop_token_ids`."""
    return tuple(sorted({*loaded.config.end_tokens, *settings.stop_token_ids}))


def initial_progress(
    loaded: Loaded, prompts: Sequence[Sequence[int]], max_new_tokens: int, settings: Settings
) -> GenerationProgress:
    """The input of the rules before the first choice: the prompts, or the start token of a decoder with an encoder."""
    if isinstance(loaded.module, EncoderDecoder):
        prompts = [[required_start_token(loaded)]] * len(prompts)
    max_length = max(map(len, prompts))
    ids = torch.tensor([[-1] * (max_length - len(prompt)) + list(prompt) for prompt in prompts], device="cpu")
    return GenerationProgress(ids.to(loaded.module.device), max_length, max_new_tokens, end_tokens(loaded, settings))


class _TokenLoop:
    """Generates texts side by side; row i of everything belongs to text `rows[i]`."""

    def __init__(
        self,
        loaded: Loaded,
        state: DecodingState,
        logits: Tensor,
        prompts: Sequence[Sequence[int]],
        budgets: list[int],
        settings: Settings,
        judge: Judge | None,
        log_probabilities: bool,
        deadline_time: float,
    ) -> None:
        copies = settings.num_return_sequences
        self.settings, self.judge, self.log_probabilities, self.deadline_time = (
            settings,
            judge,
            log_probabilities,
            deadline_time,
        )
        self.rows = list(range(len(prompts) * copies))
        self.tokens_left = [budgets[row // copies] for row in self.rows]
        self.ends = frozenset(end_tokens(loaded, settings))
        self.generators = generators(_seeds(settings, len(self.rows)))
        self.state, self.logits = state, logits
        if copies > 1:
            prompt_indices = torch.arange(len(prompts), device="cpu").repeat_interleave(copies)
            self.state, self.logits = self.state.select_rows(prompt_indices), self.logits[prompt_indices]
        texts = [prompts[row // copies] for row in self.rows]
        self.progress = initial_progress(loaded, texts, max(budgets), settings) if settings.rules else None

    def steps(self) -> Iterator[Step]:
        while self.rows:
            with inference_mode():  # not around the yield, where the caller's code runs
                log_probabilities = self.logits.log_softmax(dim=-1) if self.log_probabilities else None
                tokens = self._choose_tokens()
            chosen = tokens.tolist()
            finished = self._finish_reasons(chosen)
            yield Step(self.rows, chosen, finished, log_probabilities)
            with inference_mode():
                self._advance(tokens, finished)

    def _choose_tokens(self) -> Tensor:
        logits = self.logits
        if self.progress is not None:
            tokens_left = tuple(self.tokens_left[row] for row in self.rows)
            logits = apply(self.settings.rules, logits, replace(self.progress, left=tokens_left))
        if not self.settings.do_sample:
            return greedy_tokens(logits)
        return sample_tokens(logits, [self.generators[row] for row in self.rows])

    def _finish_reasons(self, chosen: list[int]) -> dict[int, str]:
        late = time.monotonic() >= self.deadline_time
        finished: dict[int, str] = {}
        for row, token in zip(self.rows, chosen):
            self.tokens_left[row] -= 1
            reason = "end" if token in self.ends else self.judge(row, token) if self.judge else None
            reason = reason or ("length" if not self.tokens_left[row] else "time" if late else None)
            if reason is not None:
                finished[row] = reason
        return finished

    def _advance(self, tokens: Tensor, finished: dict[int, str]) -> None:
        """Reads the chosen tokens; finished texts leave the batch."""
        if self.progress is not None:
            self.progress = replace(self.progress, ids=torch.cat((self.progress.ids, tokens[:, None]), dim=1))
        if finished:
            stay = [i for i, row in enumerate(self.rows) if row not in finished]
            self.rows = [self.rows[i] for i in stay]
            if not stay:
                return
            remaining = torch.tensor(stay, device=tokens.device)
            tokens, self.state = tokens[remaining], self.state.select_rows(remaining)
            if self.progress is not None:
                self.progress = replace(self.progress, ids=self.progress.ids[remaining])
        self.logits = self.state.next(tokens)


def _seeds(settings: Settings, texts: int) -> list[int | None]:
    """The seed of each text. From an integer, all prompts get the same seed and their copies different ones."""
    seed, copies = settings.seed, settings.num_return_sequences
    if isinstance(seed, torch.Generator):
        return torch.randint(2**63 - 1, (texts,), generator=seed, device="cpu").tolist()
    if seed is None:
        return [None] * texts
    return [(seed + row % copies * 0x9E3779B97F4A7C15) % 2**63 for row in range(texts)]
