"""Verification of a checkpoint: its files, the model against itself, and against the reference."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from pellucid.checkpoints.load import open_checkpoint, read_plan
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    InputError,
    PellucidError,
    ResourceError,
    join_names,
    shorten,
)
from pellucid.machine import NARROWER_FLOATS, choose_dtype
from pellucid.streams import use_threads
from pellucid.tasks.consistency import (
    Row,
    check_cache,
    check_fused_attention,
    check_packed_copy,
    check_padding,
    check_saving,
)
from pellucid.tasks.parity import compare_with_reference
from pellucid.tasks.tolerance import TOLERANCES, Check

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Time flies like an arrow; fruit flies like a banana.",
    "Zürich, 東京 and 3.14159!",
)
"""Of unequal lengths, and in several scripts."""

ACCOUNTED = "every tensor accounted for"


def verify(
    name: str | os.PathLike[str],
    *,
    texts: Sequence[str] = TEXTS,
    tokens: int = 10,
    dtype: str | torch.dtype | None = None,
    on_step: Callable[[str], object] = lambda what: None,
) -> Iterator[Check]:
    """Checks a checkpoint, one check after the other.

    name: as for `pellucid.load`.  texts: what is read; without a tokenizer, random ids replace the default texts.
    tokens: how many a language model generates.  on_step: called with the name of each step before it.
    dtype: computed in, and compared with its tolerance: see `tolerance.TOLERANCES`; float64 also detects errors as
        small as a wrong epsilon, at twice the memory.

    Raises InputError, NotFoundError, UnsafeFileError and ResourceError where the verification itself fails.
    """
    use_threads()
    kind = choose_dtype(dtype, torch.float32, torch.device("cpu"))
    tolerance = TOLERANCES[kind]
    on_step("reading the files")
    try:
        check, loaded = _account_check(name), open_checkpoint(name, dtype=kind, alternatives=NARROWER_FLOATS)
    except (CheckpointMismatchError, CorruptFileError) as error:
        yield Check(ACCOUNTED, False, note=str(error))
        return
    rows = input_rows(loaded, texts)
    yield check
    for title, run in _checks(loaded, rows, list(texts), tolerance).items():
        on_step(title)
        yield _run_check(title, run)
    yield from compare_with_reference(loaded, rows, tokens, tolerance, on_step)


def _checks(loaded: Loaded, rows: list[Row], texts: list[str], tolerance: float) -> dict[str, Callable[[], Check]]:
    arguments = (loaded, rows, tolerance)
    checks = {"fused = explicit attention": partial(check_fused_attention, *arguments)}
    if loaded.config.kind != "encoder":
        checks["cached = one full pass"] = partial(check_cache, *arguments)
    return checks | {
        "padded = alone": partial(check_padding, *arguments),
        "packed = plain": partial(check_packed_copy, *arguments),
        "saved = loaded": partial(check_saving, loaded, texts),
    }


def _run_check(title: str, check: Callable[[], Check]) -> Check:
    """Runs a check. Lack of memory is no failure of the checkpoint; any other error of ours is."""
    try:
        return check()
    except PellucidError as error:
        return Check(title, None if isinstance(error, ResourceError) else False, note=str(error))


def _account_check(name: str | os.PathLike[str]) -> Check:
    plan = read_plan(name)
    placed = {location.tensor_name for location in plan.locations.values()} | {
        one.location.tensor_name for one in plan.duplicates
    }
    parts = [f"{len(placed)} placed", f"{len(plan.tied) + len(plan.duplicates)} tied", f"{len(plan.dropped)} dropped"]
    reasons: dict[str, list[str]] = {}
    for tensor, reason in plan.dropped.items():
        reasons.setdefault(reason, []).append(tensor)
    why = "; ".join(f"{join_names(names, 2)}: {reason}" for reason, names in reasons.items())
    return Check(ACCOUNTED, True, note=", ".join(parts) + (f" ({why})" if why else ""))


# -- inputs ------------------------------------------------------------------------------------------------------------


def input_rows(loaded: Loaded, texts: Sequence[str]) -> list[Row]:
    """The module's inputs, one row per text; for models with token types, its second half is a second text."""
    config = loaded.config
    rows = []
    for ids in (
        _random_ids(config) if loaded.tokenizer is None and tuple(texts) == TEXTS else _encode_texts(loaded, texts)
    ):
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if config.kind == "encoder" and config.type_vocab_size > 1:
            row["token_type_ids"] = (torch.arange(ids.shape[1], device="cpu") >= ids.shape[1] // 2).long()[None]
        if config.decoder is not None:
            start = config.decoder.decoder_start_token_id or 0
            row["decoder_input_ids"] = torch.cat(
                (torch.full((1, 1), start, device="cpu"), ids[:, :-1] % config.vocab_size), dim=1
            )
        rows.append(row)
    return rows


def _encode_texts(loaded: Loaded, texts: Sequence[str]) -> Iterator[torch.Tensor]:
    if not texts:
        raise InputError("there is no text to verify with: give at least one")
    for text, row in zip(texts, loaded.required_tokenizer.encode(list(texts), max_length=loaded.max_length)):
        if not row.ids:
            raise InputError(f"the text {shorten(text, 40)!r} has no tokens: give one with words")
        yield torch.tensor([row.ids], device="cpu")


def _random_ids(config: Config) -> Iterator[torch.Tensor]:
    """Random ids, always the same, for a model without a tokenizer; with an end token where it has one."""
    generator = torch.Generator().manual_seed(0)
    own_table = None if config.decoder is None else config.decoder.source_vocab_size
    size = own_table or config.vocab_size
    for length in (17, 12, 5):
        ids = torch.randint(
            min(3, size - 1),
            size,
            (1, min(length, config.max_sequence_length or length)),
            generator=generator,
            device="cpu",
        )
        for end in (token for token in config.end_tokens[:1] if token < size):  # some files name a missing one
            ids[:, -1] = end
        yield ids
