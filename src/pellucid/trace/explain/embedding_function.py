"""A model as a function from its embeddings to the output that is explained."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_one_of
from pellucid.errors import InputError
from pellucid.machine import no_grad
from pellucid.models import Decoder, Output, evaluation_copy
from pellucid.text import Tokenizer
from pellucid.trace import Recorder
from pellucid.trace.explain.inputs import check_head, read_one_text
from pellucid.trace.explain.target import Target, find_target
from pellucid.trace.reading import Reading, batch_of

_TOKEN_INPUTS = {"input_ids", "decoder_input_ids"}


@dataclass(frozen=True)
class AttributionTask:
    """The text that was read, and the output to explain.

    embeddings: the embeddings of the input, by the name of the point, Float[Tensor, "1 seq hidden"].
    """

    reading: Reading
    inputs: dict[str, Tensor]
    target: Target
    embeddings: dict[str, Tensor]


class EmbeddingReplacer(Recorder):
    """An observer that replaces embeddings, and records those that the layers then read."""

    def __init__(self, embeddings: dict[str, Tensor]) -> None:
        super().__init__(("*embeddings.output",))
        self.embeddings = embeddings

    def __call__(self, name: str, value: Tensor) -> Tensor:
        return super().__call__(name, self.embeddings.get(name, value))


def prepare(
    loaded: Loaded,
    method: str,
    text: str,
    target: str | int | None,
    against: str | int | None,
    position: int | None,
    pair: str | None,
    decoder_text: str | None,
) -> AttributionTask:
    """Reads the text, records its embeddings, and finds the output to explain. See `gradient_x_input`."""
    check_head(loaded, method)
    loaded.module.require_float(method)
    reading = read_one_text(loaded, text, pair, decoder_text)
    inputs = batch_of(loaded, [reading])
    embeddings, logits = _embeddings(loaded, inputs)
    return AttributionTask(reading, inputs, find_target(loaded, reading, logits, target, against, position), embeddings)


@no_grad()
def _embeddings(loaded: Loaded, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The embeddings of a text on each side, and its logits."""
    recorder = Recorder(("*embeddings.output",))
    return recorder.recorded, evaluation_copy(loaded.module)(**inputs, observer=recorder)["logits"]


def target_value(loaded: Loaded, task: AttributionTask, embeddings: dict[str, Tensor]) -> Tensor:
    """The explained output for other embeddings: Float[Tensor, "rows"]"""
    inputs: dict[str, Any] = dict(task.inputs)
    if isinstance(loaded.module, Decoder) and task.target.position is not None:
        inputs["logits_to_keep"] = -task.target.position  # the others are not needed
    return task.target.value_of(output_for_embeddings(loaded, inputs, embeddings)["logits"])


def output_for_embeddings(loaded: Loaded, inputs: dict[str, Any], embeddings: dict[str, Tensor]) -> Output:
    """The model's output for several rows of embeddings of one text: Float[Tensor, "rows seq hidden"] by point"""
    rows = len(next(iter(embeddings.values())))
    expanded_inputs = {name: ids.expand(rows, -1) if isinstance(ids, Tensor) else ids for name, ids in inputs.items()}
    return evaluation_copy(loaded.module.require_no_row_edits())(
        **expanded_inputs, observer=EmbeddingReplacer(embeddings)
    )


def baseline_of(loaded: Loaded, task: AttributionTask, baseline: str) -> dict[str, Tensor]:
    """The embeddings of the baseline input."""
    check_one_of("baseline", baseline, ("zero", "pad", "mask"))
    if baseline == "zero":
        return {name: torch.zeros_like(point) for name, point in task.embeddings.items()}
    replacements: dict[str, int] = {}
    for name in _TOKEN_INPUTS & task.inputs.keys():
        tokenizer = _tokenizer_of(loaded, name)
        token = tokenizer.pad_token_id if baseline == "pad" else tokenizer.mask_token_id
        if token is None:
            raise InputError(f"this tokenizer has no {baseline} token: choose another baseline, such as 'zero'")
        replacements[name] = token
    return baseline_embeddings(loaded, task.inputs, replacements)


@no_grad()
def baseline_embeddings(loaded: Loaded, inputs: dict[str, Tensor], replacements: dict[str, int]) -> dict[str, Tensor]:
    """The embeddings of the same text with every token that is not special replaced; positions stay those of the
    original text, also in models that count them by the padding.

    replacements: the new token, by the name of the ids that are replaced.
    """
    module, replaced = evaluation_copy(loaded.module), dict(inputs)
    for name, token in replacements.items():
        tokenizer, ids = _tokenizer_of(loaded, name), inputs[name]
        special = torch.tensor(sorted(tokenizer.special_ids - {tokenizer.unk_token_id}), device=ids.device)
        replaced[name] = ids.where(torch.isin(ids, special), token)
    tokens = Recorder(("*embeddings.token",))
    module(**replaced, observer=tokens)
    recorder = EmbeddingReplacer(tokens.recorded)
    module(**inputs, observer=recorder)
    return recorder.recorded


def _tokenizer_of(loaded: Loaded, name: str) -> Tokenizer:
    """The tokenizer of the ids of this name."""
    return loaded.required_tokenizer if name == "input_ids" else loaded.required_target_tokenizer
