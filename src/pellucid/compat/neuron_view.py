"""BertViz's view of one attention head step by step: query, key, their products, and the weights."""

import os
from typing import Any

import torch

from pellucid.compat.attention import Page, answer, theme
from pellucid.errors import InputError, join_names
from pellucid.machine import dtype_name, no_grad
from pellucid.model import Model, load
from pellucid.trace import Trace, resolve
from pellucid.trace.record import kept_names
from pellucid.view import View, view

TOLERANCE = 1e-3
"""Largest relative difference between the last hidden states of the reference's model and ours."""


def show(
    model: Any,
    model_type: str | None = None,
    tokenizer: Any = None,
    sentence_a: str | None = None,
    sentence_b: str | None = None,
    display_mode: str = "dark",
    layer: int | None = None,
    head: int | None = None,
    html_action: str = "view",
) -> View | Page:
    """How the weights of one head are computed, for any model that can be opened here.

    model: a pellucid `Model`, a name or folder, or a model of the reference, which is reopened from its source; one
        whose weights have changed since then is an error.
    model_type: the family, such as "bert"; checked, and may be None.
    tokenizer: checked, if it is an object that tokenizes; the model's own is used.
    sentence_a, sentence_b: the text, or the two texts of a pair.
    display_mode: "dark" or "light".  layer, head: what is shown first; 0 where None.
    html_action: "view" returns a `View`, "return" a `Page`, whose `data` is the HTML.
    """
    if not sentence_a:
        raise InputError("sentence_a is empty: there is nothing to show")
    ours = _open_model(model)
    family = ours.config.family
    if model_type is not None and model_type != family:
        raise InputError(
            f"model_type is {model_type!r}, and this model is of the family {family!r}: give that, or None"
        )
    (last,) = resolve("last_hidden_state", ours.config)
    trace = ours.trace(sentence_a, sentence_b or None, keep=[*kept_names(ours.config, "view"), last])
    if not isinstance(model, Model | str | os.PathLike):
        _check_numbers(model, trace, last)
    _check_tokens(tokenizer, trace, sentence_a)
    page = view(trace, layer=layer, heads=[head or 0], show="neuron", theme=theme(display_mode))
    return answer(page, html_action)


def _open_model(model: Any) -> Model:
    """The model itself, or the one opened by its name."""
    model = getattr(model, "pellucid", model)
    if isinstance(model, Model):
        return model
    if isinstance(model, str | os.PathLike):
        return load(model)
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    if not isinstance(model, torch.nn.Module) or not name:
        raise InputError(
            f"this {type(model).__name__} does not say where it came from, so it cannot be opened here: give a name or "
            "a folder; model.save_pretrained(folder) makes one"
        )
    kind = dtype_name(next(model.parameters()).dtype)
    return load(name, dtype=kind)


@no_grad()
def _check_numbers(reference_model: torch.nn.Module, trace: Trace, last: str) -> None:
    """Raises InputError where the model in memory differs from the one opened, since old weights would be shown."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([trace.ids], device="cpu")}
    if any(trace.segments):
        inputs["token_type_ids"] = torch.tensor([trace.segments], device="cpu")
    if trace.rows[0].target_ids:
        inputs["decoder_input_ids"] = torch.tensor([trace.rows[0].target_ids], device="cpu")
    parameter = next(reference_model.parameters())
    training_modules = [part for part in reference_model.modules() if part.training]
    reference_model.eval()
    try:
        output = reference_model(
            **{name: ids.to(parameter.device) for name, ids in inputs.items()}, output_hidden_states=True
        )
    finally:
        for part in training_modules:  # each by itself: some parts may be frozen
            part.training = True
    states = getattr(output, "decoder_hidden_states", None) or output.hidden_states
    actual, expected = states[-1].float().cpu(), trace[last].float().cpu()
    near_enough = TOLERANCE if parameter.dtype in (torch.float32, torch.float64) else 50 * TOLERANCE
    if actual.shape != expected.shape or (actual - expected).abs().max() > near_enough * expected.abs().max():
        raise InputError(
            f"this {type(reference_model).__name__} computes other numbers than the files of {trace.model}, so it "
            "was changed since then: save_pretrained(folder) writes it, and show takes the folder"
        )


def _check_tokens(tokenizer: Any, trace: Trace, text: str) -> None:
    """Raises InputError for a tokenizer that splits the text differently."""
    if not hasattr(tokenizer, "tokenize"):
        return
    tokens = list(tokenizer.tokenize(text))
    starts = range(len(trace.tokens) - len(tokens) + 1)
    if not any(trace.tokens[start : start + len(tokens)] == tokens for start in starts):
        raise InputError(
            f"this tokenizer splits the text into {join_names(tokens)}, and the model's own into "
            f"{join_names(trace.tokens)}: leave it out, or give the model that it belongs to"
        )
