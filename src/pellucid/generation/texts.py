"""Words in, words out: what `Model.generate`, `complete` and `chat` do."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pellucid.bars import bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import count
from pellucid.errors import InputError, short
from pellucid.generation.answers import Completion, Messages, named
from pellucid.generation.beam import search
from pellucid.generation.loop import Judge, deadline, write
from pellucid.generation.prompts import Order, order_chat, order_one, order_texts
from pellucid.generation.score import Seen, seen, weigh
from pellucid.generation.stops import Growing, cut, marks
from pellucid.text import tokens_of

MOST_ALTERNATIVES = 1_000


@dataclass
class Draft:
    """One text that was written: its tokens, why it ends, and what the model said of each token."""

    ids: list[int] = field(default_factory=list)
    why: str = "length"
    seen: list[Seen] = field(default_factory=list)
    score: float | None = None


def generate(
    loaded: Loaded, prompt: str | Sequence[str], *, progress: bool | None = None, **options: Any
) -> str | list[str]:
    """What the model writes behind each prompt. See `Model.generate`."""
    order = order_texts(loaded, [prompt] if isinstance(prompt, str) else prompt, one_each(options))
    texts = [text_of(order, draft)[0] for draft, *_ in drafts_of(order, progress)]
    return texts[0] if isinstance(prompt, str) else texts


def chat(loaded: Loaded, messages: str | Messages, **options: Any) -> str:
    """The next answer of a conversation. See `Model.chat`."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    order = order_chat(loaded, turns, one_each(options))
    ((draft, *_),) = drafts_of(order, False)
    return text_of(order, draft)[0]


def complete(loaded: Loaded, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Completion:
    """An answer with everything that is known of it. See `Model.complete`."""
    return _completions(order_one(loaded, prompt, options), alternatives, False)[0]


def completions(
    loaded: Loaded, prompts: Sequence[str], *, alternatives: int = 0, progress: bool | None = None, **options: Any
) -> list[Completion]:
    """The same for several raw prompts, side by side."""
    return _completions(order_texts(loaded, prompts, options), alternatives, progress)


def _completions(order: Order, alternatives: int, progress: bool | None) -> list[Completion]:
    count("alternatives", alternatives, most=MOST_ALTERNATIVES, least=0)
    found = []
    for drafts in drafts_of(order, progress, look=True, alternatives=alternatives):
        sequences = tuple(_completion(order, draft) for draft in drafts)
        found.append(dataclasses.replace(sequences[0], sequences=sequences))
    return found


def drafts_of(order: Order, progress: bool | None, **looking: Any) -> list[list[Draft]]:
    """The texts behind every prompt, in the order of the prompts."""
    found: dict[int, list[Draft]] = {}
    until = deadline(order.settings)
    with bar("writing", total=len(order.prompts), unit=" texts", shown=progress) as line:
        for group in order.groups():
            found |= zip(group, written(order, group, until=until, **looking))
            line.update(len(group))
    return [found[i] for i in range(len(found))]


def written(
    order: Order, group: list[int], *, until: float | None = None, look: bool = False, alternatives: int = 0
) -> list[list[Draft]]:
    """The texts behind each of these prompts.

    until: when time is up, as for `write`.  look: whether to keep what the model says of each token.
    """
    if order.settings.num_beams > 1:
        return _searched(order, group, until, look, alternatives)
    copies = order.settings.num_return_sequences
    drafts = [Draft() for _ in range(len(group) * copies)]
    prompts, judge = [order.prompts[i] for i in group], judge_of(order, len(drafts))
    for step in write(order.loaded, prompts, order.settings, judge=judge, log_probabilities=look, until=until):
        for row, token in zip(step.rows, step.tokens):
            drafts[row].ids.append(token)
        if step.log_probabilities is not None:
            for row, one in zip(step.rows, seen(step.log_probabilities, step.tokens, alternatives)):
                drafts[row].seen.append(one)
        for row, why in step.finished.items():
            drafts[row].why = why
    return [drafts[i * copies : (i + 1) * copies] for i in range(len(group))]


def text_of(order: Order, draft: Draft) -> tuple[str, str]:
    """The text of what was written, and why it ends."""
    ids = draft.ids[:-1] if draft.why == "end" else draft.ids
    text, stopped = cut(order.words.decode(ids, skip_special_tokens=True), order.settings.stop)
    return text, "stop" if stopped else draft.why


def one_each(options: dict[str, Any]) -> dict[str, Any]:
    """The options of what gives one text for each prompt, whatever the checkpoint says."""
    many = options.get("num_return_sequences")
    if many is not None and not (type(many) is int and many == 1):
        raise InputError(
            f"num_return_sequences is {short(repr(many))}, and this gives one text for each prompt: "
            "complete(...).sequences holds several"
        )
    return options | {"num_return_sequences": 1}


def judge_of(order: Order, texts: int) -> Judge | None:
    """Says of each token of several texts whether a stop is complete with it; None where there are no stops."""
    if not order.settings.stop:
        return None
    growing = [Growing(order.words, order.settings.stop) for _ in range(texts)]
    return lambda row, token: "stop" if growing[row].take(token) else None


def _searched(order: Order, group: list[int], until: float | None, look: bool, alternatives: int) -> list[list[Draft]]:
    """The same by beams. What the model says is asked once the texts are there: beams tell it as the rules left it."""
    prompts, stop = [order.prompts[i] for i in group], order.settings.stop
    ends = marks(order.words, stop)

    def judge(prompt: int, ids: list[int]) -> str | None:
        text = order.words.decode(ids, skip_special_tokens=True)
        return "stop" if ids[-1] in ends or any(one in text for one in stop) else None

    found = search(order.loaded, prompts, order.settings, judge=judge if stop else None, until=until)
    drafts = [[Draft(list(one.ids), one.why, score=one.score) for one in texts] for texts in found]
    for i, prompt, texts in zip(group, prompts, drafts):
        if not texts:
            raise InputError(f"the rules leave no text to be found for prompt {i}: loosen them, or search more beams")
        if look:
            said = weigh(order.loaded, [prompt] * len(texts), [draft.ids for draft in texts], alternatives)
            for draft, one in zip(texts, said):
                draft.seen = one
    return drafts


def _completion(order: Order, draft: Draft) -> Completion:
    text, why = text_of(order, draft)
    return Completion(
        text=text,
        ids=tuple(draft.ids),
        tokens=tokens_of(order.words, draft.ids),
        log_probabilities=tuple(one.log_probability for one in draft.seen),
        finish_reason=why,
        alternatives=tuple(named(order.words, one.likely) for one in draft.seen) if draft.seen[0].likely else (),
        score=draft.score,
    )
