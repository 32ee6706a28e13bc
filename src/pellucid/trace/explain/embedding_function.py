"""A model as a function of its embeddings: the number that is asked about, whatever they are."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import among
from pellucid.errors import InputError
from pellucid.machine import no_grad
from pellucid.models import Decoder, Output, evaluating
from pellucid.text import Tokenizer
from pellucid.trace import Recorder
from pellucid.trace.explain.inputs import check_head, given
from pellucid.trace.explain.target import Aim, aim
from pellucid.trace.reading import Reading, batch_of

_READ = {"input_ids", "decoder_input_ids"}


@dataclass(frozen=True)
class Question:
    """Which number of the answer to which text. See `gradient_x_input` for each field."""

    text: str
    target: str | int | None = None
    against: str | int | None = None
    position: int | None = None
    pair: str | None = None
    decoder_text: str | None = None


@dataclass(frozen=True)
class Work:
    """What is explained, of which text.

    points: the embeddings of the input, by the name of the point, Float[Tensor, "1 seq hidden"].
    """

    reading: Reading
    inputs: dict[str, Tensor]
    aim: Aim
    points: dict[str, Tensor]


class Instead:
    """An onlooker who answers with other embeddings."""

    def __init__(self, points: dict[str, Tensor]) -> None:
        self.points = points

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return self.points.get(name, value)

    def wants(self, name: str) -> bool:
        return False


def prepared(loaded: Loaded, question: Question, what: str) -> Work:
    """The text read, its embeddings recorded, and the number found that is asked about."""
    check_head(loaded, what)
    loaded.module.real(what)
    reading = given(loaded, question.text, question.pair, question.decoder_text)
    inputs = batch_of(loaded, [reading])
    points, logits = _embeddings(loaded, inputs)
    where = aim(loaded, reading, logits, question.target, question.against, question.position)
    return Work(reading, inputs, where, points)


@no_grad()
def _embeddings(loaded: Loaded, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The embeddings of a text on each side, and its logits."""
    recorder = Recorder(("*embeddings.output",))
    return recorder.kept, evaluating(loaded.module)(**inputs, watch=recorder)["logits"]


def value_of(loaded: Loaded, work: Work, points: dict[str, Tensor]) -> Tensor:
    """The number that is explained, for other embeddings: Float[Tensor, "rows"]"""
    inputs: dict[str, Any] = dict(work.inputs)
    if isinstance(loaded.module, Decoder) and work.aim.place is not None:
        inputs["logits_to_keep"] = -work.aim.place  # the others are not asked for
    return work.aim.of(answered(loaded, inputs, points)["logits"])


def answered(loaded: Loaded, inputs: dict[str, Any], points: dict[str, Tensor]) -> Output:
    """What the model answers to one text in rows of other embeddings: Float[Tensor, "rows seq hidden"] by point"""
    rows = len(next(iter(points.values())))
    many = {name: ids.expand(rows, -1) if isinstance(ids, Tensor) else ids for name, ids in inputs.items()}
    return evaluating(loaded.module.rows_alike())(**many, watch=Instead(points))


def baseline_of(loaded: Loaded, work: Work, baseline: str) -> dict[str, Tensor]:
    """The embeddings of an input that stands for nothing."""
    among("baseline", baseline, ("zero", "pad", "mask"))
    if baseline == "zero":
        return {name: torch.zeros_like(point) for name, point in work.points.items()}
    empty: dict[str, int] = {}
    for name in _READ & work.inputs.keys():
        words = _words(loaded, name)
        token = words.pad_token_id if baseline == "pad" else words.mask_token_id
        if token is None:
            raise InputError(f"this tokenizer has no {baseline} token: choose another baseline, such as 'zero'")
        empty[name] = token
    return emptied(loaded, work.inputs, empty)


@no_grad()
def emptied(loaded: Loaded, inputs: dict[str, Tensor], empty: dict[str, int]) -> dict[str, Tensor]:
    """The embeddings of the same text where another token stands in place of each that is not special; places are
    those of the text, also where a model counts them by what is no padding.

    empty: that token, by the name of the ids that are replaced.
    """
    module, others = evaluating(loaded.module), dict(inputs)
    for name, token in empty.items():
        words, ids = _words(loaded, name), inputs[name]
        special = torch.tensor(sorted(words.special_ids - {words.unk_token_id}), device=ids.device)
        others[name] = ids.where(torch.isin(ids, special), token)
    tokens = Recorder(("*embeddings.token",))
    module(**others, watch=tokens)
    found = _Replaced(tokens.kept)
    module(**inputs, watch=found)
    return found.kept


class _Replaced(Recorder):
    """Records the embeddings that follow from other rows of the table of tokens."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        super().__init__(("*embeddings.output",))
        self.instead = Instead(rows)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return super().__call__(name, self.instead(name, value))


def _words(loaded: Loaded, name: str) -> Tokenizer:
    """The tokenizer of these ids."""
    return loaded.words if name == "input_ids" else loaded.target_words
