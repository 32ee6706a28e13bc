"""A model as a function of its embeddings: the number that is asked about, whatever they are."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.models import Decoder, evaluating
from pellucid.trace import Recorder
from pellucid.trace.explain.aim import Aim, aim
from pellucid.trace.explain.given import check_head, given, source_words, target_words
from pellucid.trace.reading import Reading, batch_of


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


@torch.no_grad()
def _embeddings(loaded: Loaded, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The embeddings of a text on each side, and its logits."""
    recorder = Recorder(("*embeddings.output",))
    return recorder.kept, evaluating(loaded.module)(**inputs, watch=recorder)["logits"]


def value_of(loaded: Loaded, work: Work, points: dict[str, Tensor]) -> Tensor:
    """The number that is explained, for other embeddings: Float[Tensor, "rows"]"""
    rows = len(next(iter(points.values())))
    inputs: dict[str, Any] = {name: ids.expand(rows, -1) for name, ids in work.inputs.items()}
    if isinstance(loaded.module, Decoder) and work.aim.place is not None:
        inputs["logits_to_keep"] = -work.aim.place  # the others are not asked for
    return work.aim.of(evaluating(loaded.module)(**inputs, watch=Instead(points))["logits"])


def baseline_of(loaded: Loaded, work: Work, baseline: str) -> dict[str, Tensor]:
    """The embeddings of an input that stands for nothing."""
    if baseline == "zero":
        return {name: torch.zeros_like(point) for name, point in work.points.items()}
    if baseline not in ("pad", "mask"):
        raise InputError(f"baseline is {baseline!r}, expected 'zero', 'pad' or 'mask'")
    inputs = dict(work.inputs)
    keep = {"input_ids": torch.tensor(work.reading.special)}
    if "decoder_input_ids" in inputs:
        special = torch.tensor(sorted(target_words(loaded).special_ids), device=inputs["decoder_input_ids"].device)
        keep["decoder_input_ids"] = torch.isin(inputs["decoder_input_ids"][0], special)
    for name, kept in keep.items():
        words = source_words(loaded) if name == "input_ids" else target_words(loaded)
        empty = words.pad_token_id if baseline == "pad" else words.mask_token_id
        if empty is None:
            raise InputError(f"this tokenizer has no {baseline} token: choose another baseline, such as 'zero'")
        inputs[name] = inputs[name].masked_fill(~kept.to(inputs[name].device), empty)
    return _embeddings(loaded, inputs)[0]
