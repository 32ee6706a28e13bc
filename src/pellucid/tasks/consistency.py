"""Whether a model agrees with itself: equivalent ways to compute a result must agree. Needs no reference."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.save import save_checkpoint
from pellucid.errors import format_count
from pellucid.files import temporary_folder
from pellucid.machine import no_grad
from pellucid.models import Decoder, Encoder, EncoderDecoder, Network, Output, assemble
from pellucid.tasks.tolerance import Check, Point, check_differences, compare_points, relative_difference

Row = dict[str, Tensor]
"""One text's inputs to the module, each a tensor of [1, seq]."""

STEPS = 64
"""Tokens that are read one by one: enough for every path of the cache, within seconds."""


def shared_weights_copy(loaded: Loaded, attention: str = "fused") -> Network:
    """A second module that shares the weights, at no cost in memory."""
    with torch.device("meta"):
        module = assemble(loaded.config, attention=attention)
    module.load_state_dict(loaded.module.state_dict(), assign=True)
    return module


@no_grad()
def check_fused_attention(loaded: Loaded, rows: list[Row], tolerance: float) -> Check:
    """The fused kernel against explicit scores, softmax and weighted sum."""
    other = shared_weights_copy(loaded, "explicit")
    points = [point for row in rows for point in _output_points(other(**row), loaded.module(**row))]
    return compare_points("fused = explicit attention", points, tolerance)


@no_grad()
def check_packed_copy(loaded: Loaded, rows: list[Row], tolerance: float) -> Check:
    """The packed copy, which tasks run, against the plain module; also where only a part of the output is requested."""
    other, points = shared_weights_copy(loaded).packed_copy(), list[Point]()
    for row in rows:
        expected = loaded.module(**row)
        points += _output_points(other(**row), expected)
        if "logits" in expected:
            points.append(("first alone.logits", other.logits(**row), expected["logits"]))
        if isinstance(other, Encoder):
            points.append(
                ("first alone.last_hidden_state", other.first_states(**row), expected["last_hidden_state"][:, :1])
            )
    return compare_points("packed = plain", points, tolerance)


@no_grad()
def check_cache(loaded: Loaded, rows: list[Row], tolerance: float) -> Check:
    """A decoder that reads token by token with a cache, against one pass over the whole text."""
    module, points, names = loaded.module, list[Point](), ["last_hidden_state"]
    if loaded.config.writes:
        names.append("logits")
    else:  # such a head is for a whole text, and may look for its end in every piece
        module = shared_weights_copy(loaded)
        module.head = None
    for row in rows:
        written = ("decoder_input_ids",) if "decoder_input_ids" in row else ("input_ids", "attention_mask")
        short = row | {name: row[name][:, :STEPS] for name in written}
        full, ids = module(**short), short[written[0]]
        next_pass = cached_pass(module, short, ids.shape[1])
        steps = [next_pass(token) for token in ids.split(1, dim=1)]
        points += [(name, torch.cat([step[name] for step in steps], dim=1), full[name]) for name in names]
    return compare_points("cached = one full pass", points, tolerance)


def cached_pass(module: Network, row: Row, capacity: int) -> Callable[[Tensor], Output]:
    """A pass over the next tokens of a text, Int[Tensor, "1 seq"], which reads those before them from a cache.

    row: the text; of an encoder-decoder its encoder reads it once.  capacity: tokens in all, at most.
    """
    assert isinstance(module, Decoder | EncoderDecoder)  # encoders have no cache
    cache = module.new_cache(capacity)
    if isinstance(module, Decoder):
        return lambda ids: module(ids, cache=cache)
    mask = row["attention_mask"]
    memory = module.states(row["input_ids"], mask)
    return lambda ids: module(memory=memory, attention_mask=mask, decoder_input_ids=ids, cache=cache)


@no_grad()
def check_padding(loaded: Loaded, rows: list[Row], tolerance: float) -> Check:
    """Padded texts in a batch against each text alone; decoders are padded on either side."""
    points: list[Point] = []
    for left in (False, True) if loaded.config.kind == "decoder" else (False,):
        together = loaded.module(
            **padded_batch(rows, loaded.config.pad_token_id or 0, loaded.config.max_sequence_length, left)
        )
        for i, row in enumerate(rows):
            alone = loaded.module(**row)
            for name, expected in alone.items():
                points.append((name, _without_padding(together[name][i : i + 1], expected, left), expected))
    return compare_points("padded = alone", points, tolerance, format_count(len(rows), "text"))


def padded_batch(rows: list[Row], pad: int, max_positions: int | None, left: bool = False) -> Row:
    """Rows as one batch, three positions wider than the longest where the model has room for them.

    pad: the id that fills ids; the mask and the types are filled with 0.  max_positions: the model's limit.
    """
    batch: Row = {}
    for name in rows[0]:
        max_width = max(row[name].shape[1] for row in rows)
        width = max(max_width, min(max_width + 3, max_positions or max_width + 3))
        blank = pad if name.endswith("input_ids") else 0
        batch[name] = torch.cat([_pad(row[name], width, blank, left) for row in rows])
    return batch


def _pad(row: Tensor, width: int, blank: int, left: bool) -> Tensor:
    missing = width - row.shape[1]
    return torch.nn.functional.pad(row, (missing, 0) if left else (0, missing), value=blank)


def _without_padding(actual: Tensor, expected: Tensor, left: bool) -> Tensor:
    """The real positions of an output that has positions; an output for a whole text unchanged."""
    if actual.dim() < 3:
        return actual
    length = expected.shape[1]
    return actual[:, actual.shape[1] - length :] if left else actual[:, :length]


def check_saving(loaded: Loaded, texts: list[str]) -> Check:
    """Saved to a folder and loaded again: configuration, ids of the texts, and every weight, bit for bit."""
    kind = loaded.module.dtype
    with temporary_folder() as folder:
        reopened = open_checkpoint(save_checkpoint(loaded, folder / "saved"), dtype=kind)
    differences = {"config": 0.0 if reopened.config == loaded.config else math.inf}
    if loaded.tokenizer is not None:
        differences["tokenizer"] = 0.0 if _token_ids(reopened, texts) == _token_ids(loaded, texts) else math.inf
    actual, expected = reopened.module.state_dict(), loaded.module.state_dict()
    for name in expected | actual:
        differences[name] = (
            _bitwise_difference(actual[name], expected[name]) if name in actual and name in expected else math.inf
        )
    return check_differences("saved = loaded", differences, 0.0, f"{len(expected)} tables, bit by bit")


def _token_ids(loaded: Loaded, texts: list[str]) -> list[list[int]] | None:
    return None if loaded.tokenizer is None else [row.ids for row in loaded.tokenizer.encode(texts)]


def _bitwise_difference(actual: Tensor, expected: Tensor) -> float:
    if actual.shape == expected.shape and torch.equal(_bytes(actual), _bytes(expected)):
        return 0.0
    return relative_difference(actual, expected) or math.inf  # equal values with other bits, such as -0


def _bytes(table: Tensor) -> Tensor:
    return table.detach().contiguous().view(torch.uint8)


def _output_points(actual: Output, expected: Output) -> list[Point]:
    return [(name, actual[name], expected[name]) for name in expected]
