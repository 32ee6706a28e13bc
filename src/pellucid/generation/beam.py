"""Beam search: for each prompt several texts are followed at a time, and the best of those that end are given.

    followed     a cat        -1.2     Each is continued by every token. The best of all these continuations are
                 the cat      -1.9     followed on; those of them that end are put aside,
    put aside    a cat sat.   -2.4     with -2.4 / 4^length_penalty for a score, 4 being its length in tokens.

A search is over when no text that is followed is likely to become better than those put aside. (Sutskever et al., 2014,
arXiv:1409.3215, section 3.2; Wu et al., 2016, arXiv:1609.08144, section 7, with a length penalty of other form.)
Numbers and ties are those of `_beam_search` in transformers 5.23, `generation/utils.py`, whose lines are named below.
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
from pellucid.generation.checkpoint_settings import start_of
from pellucid.generation.loop import beginning, deadline, ends, room, writer
from pellucid.generation.reader import begin
from pellucid.generation.registry import follow
from pellucid.generation.settings import Settings
from pellucid.machine import inference_mode
from pellucid.models import Decoder, EncoderDecoder

TextJudge = Callable[[int, list[int]], str | None]
"""(which prompt, all tokens chosen for it in one beam)  ->  why the text ends with them, or None where it goes on"""

NOWHERE = -1e9
"""The score of a text that is not there, and what is added to that of one that must not be chosen."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One text that a search found.

    ids: the chosen tokens, an end token included.
    score: the sum of their log-probabilities / how many they are ^ length_penalty.
    log_probabilities: of each token, as the rules left them; what was summed.
    why: it ends: "end" (an end token), "stop", "length" or "time".
    """

    ids: tuple[int, ...]
    score: float
    log_probabilities: tuple[float, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Beams:
    """Texts of several prompts, equally many for each, the best first.

    ids: the chosen tokens, Int[Tensor, "prompts beams new"].
    log_probabilities: of each token, Float[Tensor, "prompts beams new"].
    scores: Float[Tensor, "prompts beams"]; the sum of these, and for a text put aside that sum over its length.
    lengths: tokens of each text put aside, Int[Tensor, "prompts beams"]; 0 for a text that goes on, and for none.
    """

    ids: Tensor
    log_probabilities: Tensor
    scores: Tensor
    lengths: Tensor

    @classmethod
    def none(cls, prompts: int, beams: int, like: Tensor) -> Self:
        """Places for texts, and no text in them."""
        numbers = torch.zeros(prompts, beams, 0, dtype=torch.long, device=like.device)
        scores = torch.full((prompts, beams), NOWHERE, dtype=like.dtype, device=like.device)
        return cls(numbers, numbers.to(like.dtype), scores, torch.zeros_like(scores, dtype=torch.long))

    def pick(self, which: Tensor) -> "Beams":
        """These beams of each prompt, in this order: Int[Tensor, "prompts kept"]"""
        long = which[:, :, None]
        return Beams(
            self.ids.take_along_dim(long, dim=1),
            self.log_probabilities.take_along_dim(long, dim=1),
            self.scores.gather(1, which),
            self.lengths.gather(1, which),
        )

    def of(self, prompts: Tensor) -> "Beams":
        """All beams of these prompts."""
        return Beams(self.ids[prompts], self.log_probabilities[prompts], self.scores[prompts], self.lengths[prompts])

    def beside(self, longer: "Beams") -> "Beams":
        """These, and behind them those of the same prompts that are one token longer."""
        return Beams(
            torch.cat((pad(self.ids, (0, 1)), longer.ids), dim=1),
            torch.cat((pad(self.log_probabilities, (0, 1)), longer.log_probabilities), dim=1),
            torch.cat((self.scores, longer.scores), dim=1),
            torch.cat((self.lengths, longer.lengths), dim=1),
        )


def search(
    loaded: Loaded,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    *,
    judge: TextJudge | None = None,
    until: float | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt its `num_return_sequences` best texts, the best first; fewer or none where rules allow no more.

    prompts: ids, unpadded, of any lengths; of an encoder-decoder, what its encoder reads. Each is searched as if it
        were alone, and leaves the pass when its search is over.
    judge: asked about each text that might be followed; it must answer the same question in the same way.
    until: when time is up, as for `write`.
    Raises InputError for a model that does not write, a prompt that leaves no room, and fewer than two beams.
    """
    if settings.num_beams < 2:
        raise InputError(
            Argument("num_beams"), " is 1, and a search follows 2 beams at least: raise it, or write without a search"
        )
    module = writer(loaded)
    until = deadline(settings) if until is None else until
    rooms = [room(loaded, prompt, settings.max_new_tokens, i) for i, prompt in enumerate(prompts)]
    found: dict[int, list[Hypothesis]] = {}
    for most in sorted(set(rooms)):  # a long prompt beside it leaves a short one no less room
        own = [i for i, fits in enumerate(rooms) if fits == most]
        found |= _Search(module, loaded, [prompts[i] for i in own], settings, most, own, until, judge).run()
    return [found[i] for i in range(len(prompts))]


class _Search:
    """The search for several prompts side by side; row `prompt * beams + beam` of the reader reads that beam.

    names: what each prompt is called.  most: tokens to choose at most.  until: when time is up.
    """

    @inference_mode()
    def __init__(
        self,
        module: Decoder | EncoderDecoder,
        loaded: Loaded,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        most: int,
        names: list[int],
        until: float | None,
        judge: TextJudge | None,
    ) -> None:
        self.settings, self.most, self.names, self.until, self.judge = settings, most, names, until, judge
        self.beams, self.length = settings.num_beams, 0
        self.limit: str | None = None
        self.ends = list(ends(loaded, settings))
        reader, logits = begin(module, prompts, most, start=start_of(loaded))
        rows = torch.arange(len(prompts), device="cpu").repeat_interleave(self.beams)
        self.reader, self.logits = reader.choose(rows), logits[rows]
        self.prompt = self.common = reader.cache.filled  # slots that all beams of a prompt fill alike
        self.given = beginning(loaded, prompts, most, settings)
        wide = logits.new_empty(0, dtype=torch.promote_types(logits.dtype, torch.float32))
        self.aside = Beams.none(len(prompts), self.beams, wide)
        self.followed = Beams.none(len(prompts), self.beams, wide)
        self.followed.scores[:, 0] = 0  # all beams of a prompt begin alike, and one of them is enough

    @inference_mode()
    def run(self) -> dict[int, list[Hypothesis]]:
        """The best texts of each prompt by its name."""
        found: dict[int, list[Hypothesis]] = {}
        while self.names:
            candidates, origins = self.continued()
            stopped = self.stopped(candidates)
            self.put_aside(candidates, stopped)
            origins = origins.gather(1, self.follow(candidates, stopped))
            over = self.over(stopped)
            for i in over.nonzero().flatten().tolist():
                found[self.names[i]] = self.best(i)
            self.go_on((~over).nonzero().flatten(), origins)
        return found

    # -- the steps ----------------------------------------------------------------------------------------------------

    def continued(self) -> tuple[Beams, Tensor]:
        """The best continuations of all beams of a prompt by all tokens, and which beam each continues.

        They are so many that as many as beams are left when all that can end do (line 3644).
        """
        self.length += 1
        said = self.said().unflatten(0, (-1, self.beams))  # [prompts, beams, vocab]
        vocabulary = said.shape[2]
        sums = (said + self.followed.scores[:, :, None]).flatten(1)
        wanted = max(2, 1 + len(self.ends)) * self.beams
        scores, places = sums.topk(min(wanted, sums.shape[1]))
        origins, tokens = places // vocabulary, places % vocabulary
        texts = self.followed.pick(origins)
        each = said.flatten(1).gather(1, places)
        ids = torch.cat((texts.ids, tokens[:, :, None]), dim=2)
        log_probabilities = torch.cat((texts.log_probabilities, each[:, :, None]), dim=2)
        return Beams(ids, log_probabilities, scores, texts.lengths), origins

    def said(self) -> Tensor:
        """Log-probabilities of the next token, after the rules: Float[Tensor, "rows vocab"]"""
        said = self.logits.log_softmax(dim=-1, dtype=self.followed.scores.dtype)
        if self.settings.rules:
            before = self.given.ids.repeat_interleave(self.beams, dim=0)
            ids = torch.cat((before, self.followed.ids.flatten(0, 1)), dim=1)
            said, _ = follow(self.settings.rules, said, replace(self.given, ids=ids))
        return said

    def stopped(self, candidates: Beams) -> Tensor:
        """Which of them end here: Bool[Tensor, "prompts candidates"]"""
        late = self.until is not None and time.monotonic() >= self.until
        self.limit = "time" if late else "length" if self.length == self.most else None
        last = candidates.ids[:, :, -1]
        if self.limit is not None:
            return torch.ones_like(last, dtype=torch.bool)
        stopped = torch.isin(last, torch.tensor(self.ends, dtype=last.dtype, device=last.device))
        if self.judge is not None:
            judged = [
                [self.why(i, ids) is not None for ids in texts] for i, texts in enumerate(candidates.ids.tolist())
            ]
            stopped = stopped | torch.tensor(judged, device=last.device)
        return stopped

    def why(self, i: int, ids: list[int]) -> str | None:
        """Why a text of the i-th prompt ends."""
        if ids[-1] in self.ends:
            return "end"
        judged = None if self.judge is None else self.judge(self.names[i], ids)
        return judged or self.limit

    def put_aside(self, candidates: Beams, stopped: Tensor) -> None:
        """Of the texts put aside before and those that end now, as many as beams; a text that is not among the best
        when it ends is lost (line 3545)."""
        stopped = stopped & (torch.arange(stopped.shape[1], device=stopped.device) < self.beams)
        scores = candidates.scores / self.length**self.settings.length_penalty + ~stopped * NOWHERE
        both = self.aside.beside(replace(candidates, scores=scores, lengths=stopped * self.length))
        self.aside = both.pick(both.scores.topk(self.beams).indices)

    def follow(self, candidates: Beams, stopped: Tensor) -> Tensor:
        """Follows the best that do not end. ->  which they are, Int[Tensor, "prompts beams"]"""
        scores, which = (candidates.scores + stopped * NOWHERE).topk(self.beams)
        self.followed = replace(candidates.pick(which), scores=scores)
        return which

    def over(self, stopped: Tensor) -> Tensor:
        """For which prompts the search is over: Bool[Tensor, "prompts"]

        Unless early_stopping is "never", a text is judged as if it ended now, though with a length penalty it may still
        become better (line 3413).
        """
        early, penalty = self.settings.early_stopping, self.settings.length_penalty
        hoped = self.most if early == "never" and penalty > 0 else self.length
        likely = self.followed.scores[:, 0] / hoped**penalty
        hopeless = ~(likely > self.aside.scores.amin(dim=1))  # NOWHERE or less while a place is empty
        enough = (self.aside.lengths > 0).all(dim=1) & (early is True)
        return hopeless | enough | stopped.all(dim=1)

    def go_on(self, prompts: Tensor, origins: Tensor) -> None:
        """Reads the last tokens of the texts that are followed, for the prompts whose search is not over."""
        leave = len(prompts) < len(self.names)
        self.names = [self.names[i] for i in prompts.tolist()]
        if not self.names:
            return
        rows = (origins + torch.arange(len(origins), device=origins.device)[:, None] * self.beams)[prompts].flatten()
        if leave:
            self.followed, self.aside = self.followed.of(prompts), self.aside.of(prompts)
            self.given = replace(self.given, ids=self.given.ids[prompts])
        self.reader.choose(rows, since=0 if leave else self.common)
        self.logits = self.reader.next(self.followed.ids[:, :, -1].flatten())
        self.common = self.prompt + _alike(self.followed.ids)

    def best(self, i: int) -> list[Hypothesis]:
        """The best texts of the i-th prompt."""
        texts = self.aside.of(torch.tensor([i], device="cpu"))
        found = []
        for place in range(self.settings.num_return_sequences):
            length, score = int(texts.lengths[0, place]), float(texts.scores[0, place])
            ids, each = texts.ids[0, place, :length].tolist(), texts.log_probabilities[0, place, :length].tolist()
            if length and score * length**self.settings.length_penalty > NOWHERE / 2:  # there, and no beam's copy
                found.append(Hypothesis(tuple(ids), score, tuple(each), self.why(i, ids) or "length"))
        return found


def _alike(ids: Tensor) -> int:
    """How many tokens all beams of each prompt begin with alike. Int[Tensor, "prompts beams new"]"""
    same = (ids == ids[:, :1]).all(dim=1).all(dim=0)
    return int(same.long().cumprod(dim=0).sum())
