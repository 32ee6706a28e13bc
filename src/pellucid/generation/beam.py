"""Beam search: several texts are followed for each prompt, and the best of those that end are returned.

    running      a cat        -1.2     Each is continued by every token. The best of all these continuations run
                 the cat      -1.9     on; those of them that end join the finished ones,
    finished     a cat sat.   -2.4     with a score of -2.4 / 4^length_penalty, 4 being their length in tokens.

A search is over when no running text is likely to become better than the finished ones. (Sutskever et al., 2014,
arXiv:1409.3215, section 3.2; Wu et al., 2016, arXiv:1609.08144, section 7, with another form of length penalty.) Scores
and ties are those of `_beam_search` in transformers 5.23, `generation/utils.py`, whose lines are cited below.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import Argument, InputError
from pellucid.generation.checkpoint_settings import decoder_start_token
from pellucid.generation.loop import deadline, end_tokens, generation_module, initial_progress, token_budget
from pellucid.generation.reader import prefill
from pellucid.generation.registry import apply_with_max
from pellucid.generation.settings import Settings
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder

TextJudge = Callable[[int, list[int]], str | None]
"""(index of the prompt, all tokens chosen for it in one beam)  ->  why the text ends, or None if it continues"""

EXCLUDED_SCORE = -1e9
"""The sum of an empty running beam, and what is added to that of a text that must not be continued."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One text that a search found.

    ids: the chosen tokens, including an end token.
    score: the sum of their log-probabilities / their number ^ length_penalty.
    log_probabilities: of each token, after the rules; the terms of the sum.
    finish_reason: "end" (an end token), "stop", "length" or "time".
    """

    ids: tuple[int, ...]
    score: float
    log_probabilities: tuple[float, ...]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class Beams:
    """Texts of several prompts, equally many for each, the best first.

    ids: the chosen tokens, Int[Tensor, "prompts beams new"].
    log_probabilities: of each token, Float[Tensor, "prompts beams new"].
    scores: Float[Tensor, "prompts beams"]; the sum of these, or for a finished text its length-penalised score.
    lengths: tokens of each finished text, Int[Tensor, "prompts beams"]; 0 for running texts and empty beams.
    """

    ids: Tensor
    log_probabilities: Tensor
    scores: Tensor
    lengths: Tensor

    @classmethod
    def empty(cls, prompts: int, beams: int, score: float, like: Tensor) -> Self:
        """Beams without texts."""
        numbers = torch.zeros(prompts, beams, 0, dtype=torch.long, device=like.device)
        scores = torch.full((prompts, beams), score, dtype=like.dtype, device=like.device)
        return cls(numbers, numbers.to(like.dtype), scores, torch.zeros_like(scores, dtype=torch.long))

    def select(self, indices: Tensor) -> "Beams":
        """Selects beams of each prompt, in this order: Int[Tensor, "prompts kept"]"""
        token_indices = indices[:, :, None]
        return Beams(
            self.ids.take_along_dim(token_indices, dim=1),
            self.log_probabilities.take_along_dim(token_indices, dim=1),
            self.scores.gather(1, indices),
            self.lengths.gather(1, indices),
        )

    def of_prompts(self, prompts: Tensor) -> "Beams":
        """All beams of these prompts."""
        return Beams(self.ids[prompts], self.log_probabilities[prompts], self.scores[prompts], self.lengths[prompts])

    def concatenate(self, longer: "Beams") -> "Beams":
        """These beams, followed by those of the same prompts that are one token longer."""
        return Beams(
            torch.cat((pad(self.ids, (0, 1)), longer.ids), dim=1),
            torch.cat((pad(self.log_probabilities, (0, 1)), longer.log_probabilities), dim=1),
            torch.cat((self.scores, longer.scores), dim=1),
            torch.cat((self.lengths, longer.lengths), dim=1),
        )


def beam_search(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    *,
    judge: TextJudge | None = None,
    deadline_time: float | None = None,
) -> list[list[Hypothesis]]:
    """Returns the `num_return_sequences` best texts of each prompt, the best first; fewer if rules allow no more.

    prompts: ids, unpadded, of any lengths; of an encoder-decoder, the input of its encoder. Each is searched
        independently, and leaves the batch when its search is over.
    judge: called for each text that might be followed; it must return the same for the same text.
    deadline_time: the deadline, as for `write`.
    Raises InputError for a model that cannot generate, a prompt that leaves no room, and fewer than two beams.
    """
    if settings.num_beams < 2:
        raise InputError(
            Argument("num_beams"), " is 1, and beam search needs at least 2 beams: raise it, or leave it out"
        )
    module = generation_module(loaded)
    deadline_time = deadline(settings) if deadline_time is None else deadline_time
    budgets = [token_budget(loaded, prompt, settings.max_new_tokens, i) for i, prompt in enumerate(prompts)]
    found: dict[int, list[Hypothesis]] = {}
    for max_new_tokens in sorted(set(budgets)):  # by budget: a long prompt leaves a short one no less room
        group = [i for i, fits in enumerate(budgets) if fits == max_new_tokens]
        found |= _Search(
            module, loaded, [prompts[i] for i in group], settings, max_new_tokens, group, deadline_time, judge
        ).run()
    return [found[i] for i in range(len(prompts))]


class _Search:
    """The search for several prompts side by side; row `prompt * beams + beam` of the state reads that beam.

    prompt_numbers: indices of these prompts in the call.  max_new_tokens: tokens to choose at most.
    deadline_time: the deadline, as for `write`.
    """

    @inference_mode()
    def __init__(
        self,
        module: Decoder | EncoderDecoder,
        loaded: Loaded,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        max_new_tokens: int,
        prompt_numbers: list[int],
        deadline_time: float,
        judge: TextJudge | None,
    ) -> None:
        self.settings, self.max_new_tokens, self.deadline_time, self.judge = (
            settings,
            max_new_tokens,
            deadline_time,
            judge,
        )
        self.prompt_numbers = prompt_numbers
        self.beams, self.length = settings.num_beams, 0
        self.length_penalty = float(settings.length_penalty)  # the power of an integer may be too large for a tensor
        self.limit_reason: str | None = None
        self.ends = list(end_tokens(loaded, settings))
        state, logits = prefill(module, prompts, max_new_tokens, start=decoder_start_token(loaded))
        rows = torch.arange(len(prompts), device="cpu").repeat_interleave(self.beams)
        self.state, self.logits = state.select_rows(rows), logits[rows]
        self.prompt_slots = self.shared_slots = state.cache.filled  # slots that all beams of a prompt share
        self.progress = initial_progress(loaded, prompts, max_new_tokens, settings)
        wide = logits.new_empty(0, dtype=torch.promote_types(logits.dtype, torch.float32))
        self.finished = Beams.empty(len(prompts), self.beams, -torch.inf, wide)
        self.running = Beams.empty(len(prompts), self.beams, EXCLUDED_SCORE, wide)
        self.running.scores[:, 0] = 0  # all beams of a prompt begin alike, so one of them is enough

    @inference_mode()
    def run(self) -> dict[int, list[Hypothesis]]:
        """The best texts of each prompt, by its index."""
        found: dict[int, list[Hypothesis]] = {}
        while self.prompt_numbers:
            candidates, origins = self.expand()
            stopped = self.ended(candidates)
            self.add_finished(candidates, stopped)
            origins = origins.gather(1, self.select_running(candidates, stopped))
            over = self.is_done(stopped)
            for i in over.nonzero().flatten().tolist():
                found[self.prompt_numbers[i]] = self.best_hypotheses(i)
            self.advance((~over).nonzero().flatten(), origins)
        return found

    # -- the steps ----------------------------------------------------------------------------------------------------

    def expand(self) -> tuple[Beams, Tensor]:
        """The best continuations of all beams of a prompt by all tokens, and which beam each continues.

        There are enough of them to fill all beams even if every candidate that can end does (line 3644).
        """
        self.length += 1
        log_probabilities = self.next_log_probabilities().unflatten(0, (-1, self.beams))  # [prompts, beams, vocab]
        vocabulary = log_probabilities.shape[2]
        sums = (log_probabilities + self.running.scores[:, :, None]).flatten(1)
        num_candidates = max(2, 1 + len(self.ends)) * self.beams
        scores, indices = sums.topk(min(num_candidates, sums.shape[1]))
        origins, tokens = indices // vocabulary, indices % vocabulary
        texts = self.running.select(origins)
        each = log_probabilities.flatten(1).gather(1, indices)
        ids = torch.cat((texts.ids, tokens[:, :, None]), dim=2)
        history = torch.cat((texts.log_probabilities, each[:, :, None]), dim=2)
        return Beams(ids, history, scores, texts.lengths), origins

    def next_log_probabilities(self) -> Tensor:
        """Log-probabilities of the next token, after the rules: Float[Tensor, "rows vocab"]"""
        log_probabilities = self.logits.log_softmax(dim=-1, dtype=self.running.scores.dtype)
        if self.settings.rules:
            before = self.progress.ids.repeat_interleave(self.beams, dim=0)
            ids = torch.cat((before, self.running.ids.flatten(0, 1)), dim=1)
            log_probabilities, _ = apply_with_max(
                self.settings.rules, log_probabilities, replace(self.progress, ids=ids)
            )
        return log_probabilities

    def ended(self, candidates: Beams) -> Tensor:
        """Which candidates end here: Bool[Tensor, "prompts candidates"]"""
        late = time.monotonic() >= self.deadline_time
        self.limit_reason = "time" if late else "length" if self.length == self.max_new_tokens else None
        last = candidates.ids[:, :, -1]
        if self.limit_reason is not None:
            return torch.ones_like(last, dtype=torch.bool)
        stopped = torch.isin(last, torch.tensor(self.ends, dtype=last.dtype, device=last.device))
        if self.judge is not None:
            has_reason = [
                [self.finish_reason(i, ids) is not None for ids in texts]
                for i, texts in enumerate(candidates.ids.tolist())
            ]
            stopped = stopped | torch.tensor(has_reason, device=last.device)
        return stopped

    def finish_reason(self, i: int, ids: list[int]) -> str | None:
        """Why a text of the i-th prompt ends; None if it continues."""
        if ids[-1] in self.ends:
            return "end"
        judged = None if self.judge is None else self.judge(self.prompt_numbers[i], ids)
        return judged or self.limit_reason

    def add_finished(self, candidates: Beams, stopped: Tensor) -> None:
        """Keeps the best of the finished texts and those that end now, as many as beams; a text that is not among the
        best when it ends is lost (line 3545), and one that continues an empty beam is the copy of another."""
        is_best = torch.arange(stopped.shape[1], device=stopped.device) < self.beams
        stopped = stopped & is_best & (candidates.scores > EXCLUDED_SCORE / 2)
        scores = (candidates.scores / self.length**self.length_penalty).masked_fill(~stopped, -torch.inf)
        both = self.finished.concatenate(replace(candidates, scores=scores, lengths=stopped * self.length))
        self.finished = both.select(both.scores.topk(self.beams).indices)

    def select_running(self, candidates: Beams, stopped: Tensor) -> Tensor:
        """Continues the best candidates that do not end.  ->  their indices, Int[Tensor, "prompts beams"]"""
        scores, indices = (candidates.scores + stopped * EXCLUDED_SCORE).topk(self.beams)
        self.running = replace(candidates.select(indices), scores=scores)
        return indices

    def is_done(self, stopped: Tensor) -> Tensor:
        """For which prompts the search is over: Bool[Tensor, "prompts"]

        Unless early_stopping is "never", a text is scored as if it ended now, though with a length penalty it may still
        become better (line 3413).
        """
        early, penalty = self.settings.early_stopping, self.length_penalty
        final_length = self.max_new_tokens if early == "never" and penalty > 0 else self.length
        best_score = self.running.scores[:, 0] / final_length**penalty
        hopeless = ~(best_score > self.finished.scores.amin(dim=1))  # -inf while a beam is empty
        hopeless |= self.running.scores[:, 0] < EXCLUDED_SCORE / 2  # only copies of other texts continue
        enough = (self.finished.lengths > 0).all(dim=1) & (early is True)
        return hopeless | enough | stopped.all(dim=1)

    def advance(self, prompts: Tensor, origins: Tensor) -> None:
        """Reads the last tokens of the running texts, for the prompts whose search is not over."""
        leave = len(prompts) < len(self.prompt_numbers)
        self.prompt_numbers = [self.prompt_numbers[i] for i in prompts.tolist()]
        if not self.prompt_numbers:
            return
        rows = (origins + torch.arange(len(origins), device=origins.device)[:, None] * self.beams)[prompts].flatten()
        if leave:
            self.running, self.finished = self.running.of_prompts(prompts), self.finished.of_prompts(prompts)
            self.progress = replace(self.progress, ids=self.progress.ids[prompts])
        self.state.select_rows(rows, since=0 if leave else self.shared_slots)
        self.logits = self.state.next(self.running.ids[:, :, -1].flatten())
        self.shared_slots = self.prompt_slots + _common_prefix_length(self.running.ids)

    def best_hypotheses(self, i: int) -> list[Hypothesis]:
        """The best texts of the i-th prompt."""
        texts, found = self.finished, []
        for rank in range(self.settings.num_return_sequences):
            length, score = int(texts.lengths[i, rank]), float(texts.scores[i, rank])
            ids, each = texts.ids[i, rank, :length].tolist(), texts.log_probabilities[i, rank, :length].tolist()
            if length:
                found.append(Hypothesis(tuple(ids), score, tuple(each), self.finish_reason(i, ids) or "length"))
        return found


def _common_prefix_length(ids: Tensor) -> int:
    """Length of the common prefix of all beams, over all prompts. Int[Tensor, "prompts beams new"]"""
    same = (ids == ids[:, :1]).all(dim=1).all(dim=0)
    return int(same.long().cumprod(dim=0).sum())
