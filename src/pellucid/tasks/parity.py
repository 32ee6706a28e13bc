"""Our numbers against the reference's: layer by layer, and token by token."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import PellucidError, format_count
from pellucid.machine import no_grad
from pellucid.tasks.consistency import Row, cached_pass, shared_weights_copy
from pellucid.tasks.reference import NoReference, open_reference, reference_forward, version
from pellucid.tasks.tolerance import Check, Point, check_differences, compare_points
from pellucid.trace.aliases import aliases
from pellucid.trace.record import Recorder

GROUPS = {
    "hidden states": ("embeddings.output", "residual.post", "norm.output"),
    "attention weights": ("attention.weights",),
    "pooled vector": ("pooled",),
    "logits": ("logits",),
}
"""What is compared, with the endings of its points' names."""

SAME_TOKENS = "transformers: same tokens"


def compare_with_reference(
    loaded: Loaded, rows: list[Row], tokens: int, tolerance: float, on_step: Callable[[str], object]
) -> Iterator[Check]:
    """Compares all tensors that both expose, layer by layer, and the first tokens that both would generate.

    rows: one text each.  tokens: how many to generate.  on_step: called with the name of each step before it.
    The first check names the first point of a pass where the two differ; the others are its parts.
    """
    title = "transformers"
    try:
        title = f"transformers {version()}"
        on_step(f"opening the checkpoint in {title}")
        model, remark = open_reference(loaded)
        on_step(f"comparing with {title}")
        points = [point for row in rows for point in _points(loaded, model, row)]
    except (NoReference, PellucidError) as reason:
        yield Check(title, None, note=str(reason))
        return
    whole_check = compare_points(title, points, tolerance, f"{type(model).__name__}{remark}")
    yield whole_check
    for name, endings in GROUPS.items():
        part = {point_name: difference for point_name, difference in whole_check.points if point_name.endswith(endings)}
        if part:
            yield check_differences(
                f"transformers: {name}", part, tolerance, f"at {len(part)} of {len(whole_check.points)} points"
            )
    if tokens and loaded.config.writes:
        on_step(f"writing {format_count(tokens, 'token')} with both")
        try:
            yield check_same_tokens(loaded, model, rows[0], tokens, tolerance)
        except NoReference as reason:
            yield Check(SAME_TOKENS, None, note=str(reason))


# -- one pass ----------------------------------------------------------------------------------------------------------


def _points(loaded: Loaded, model: Any, row: Row) -> list[Point]:
    """Every point that both expose, in the order of the pass."""
    recorder = Recorder(tuple(f"*{ending}" for endings in GROUPS.values() for ending in endings))
    with no_grad():
        shared_weights_copy(loaded, "explicit")(**row, observer=recorder)
    expected = _reference_outputs(
        reference_forward(model, **row, output_hidden_states=True, output_attentions=True), loaded.config
    )
    order = {name: i for i, name in enumerate(recorder.recorded)}
    missing = torch.empty(0, device="cpu")
    return [
        (name, recorder.recorded.get(name, missing), expected[name])
        for name in sorted(expected, key=lambda name: order.get(name, len(order)))
    ]


def _reference_outputs(out: Any, config: Config) -> dict[str, Tensor]:
    """The reference's output under our names of points; one that we lack keeps its own."""
    own_names = aliases(config)
    sides = ("encoder_", "decoder_") if config.kind == "encoder-decoder" else ("",)
    layered = [f"{side}{name}" for side in sides for name in ("hidden_states", "attentions")]
    found: dict[str, Tensor] = {}
    for name in (*layered, "cross_attentions"):
        for i, tensor in enumerate(out.get(name) or ()):
            reference_name = f"{name}[{i}]"
            found[own_names.get(reference_name, reference_name)] = tensor
    if "start_logits" in out:
        found["logits"] = torch.stack((out["start_logits"], out["end_logits"]), dim=-1)
    if "logits" in out:
        found["logits"] = out["logits"]
    if "pooler_output" in out and config.pools:
        found["pooled"] = out["pooler_output"]
    return found


# -- token by token ----------------------------------------------------------------------------------------------------


def check_same_tokens(loaded: Loaded, model: Any, row: Row, tokens: int, tolerance: float) -> Check:
    """The most likely next token, again and again: ours with its cache, the reference's without.

    Where the two choose differently, the difference is how much lower our choice is in the reference's logits: tokens
    that differ by rounding alone are no mistake. What follows such a token is not compared.
    """
    room = (loaded.config.max_sequence_length or 10**9) - tokens
    row = {name: ids if "decoder_input_ids" in row else ids[:, : max(room, 1)] for name, ids in row.items()}
    tokens = min(tokens, (loaded.config.max_sequence_length or 10**9) - 1)
    expected, logits = _reference_tokens(model, row, tokens)
    actual = _our_tokens(loaded, row, tokens)
    note = "" if loaded.tokenizer is None else repr(loaded.required_target_tokenizer.decode(actual))
    for i, (actual_token, expected_token) in enumerate(zip(actual, expected)):
        if actual_token != expected_token:
            logit_gap = float(logits[i][expected_token] - logits[i][actual_token]) / max(
                float(logits[i].abs().max()), 1.0
            )
            return check_differences(SAME_TOKENS, {f"token {i + 1}": logit_gap}, tolerance, note)
    return check_differences(SAME_TOKENS, {"tokens": 0.0}, tolerance, f"{len(actual)} of {tokens} agree {note}".strip())


def _reference_tokens(model: Any, row: Row, tokens: int) -> tuple[list[int], list[Tensor]]:
    name = "decoder_input_ids" if "decoder_input_ids" in row else "input_ids"
    ids, chosen, logits = _first_ids(row), [], []
    for _ in range(tokens):
        inputs = row | {name: ids} | ({"attention_mask": torch.ones_like(ids)} if name == "input_ids" else {})
        logits.append(reference_forward(model, **inputs)["logits"][0, -1].double())
        chosen.append(int(logits[-1].argmax()))
        ids = torch.cat((ids, torch.tensor([chosen[-1:]], device="cpu")), dim=1)
    return chosen, logits


@no_grad()
def _our_tokens(loaded: Loaded, row: Row, tokens: int) -> list[int]:
    ids, chosen = _first_ids(row), []
    next_pass = cached_pass(loaded.module, row, ids.shape[1] + tokens)
    for _ in range(tokens):
        chosen.append(int(next_pass(ids)["logits"][0, -1].argmax()))
        ids = torch.tensor([chosen[-1:]], device="cpu")
    return chosen


def _first_ids(row: Row) -> Tensor:
    """The ids that are continued: the text, or the decoder's start token."""
    return row["decoder_input_ids"][:, :1] if "decoder_input_ids" in row else row["input_ids"]
