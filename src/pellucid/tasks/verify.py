"""May this checkpoint be trusted here? Question by question: the files, the model against itself, the reference."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from pellucid.checkpoints.load import account, open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    InputError,
    PellucidError,
    ResourceError,
    several,
    short,
)
from pellucid.machine import REAL, choose_dtype
from pellucid.streams import use_threads
from pellucid.tasks.consistency import (
    Row,
    cached_is_full,
    fused_is_explicit,
    packed_is_plain,
    padded_is_alone,
    saved_is_loaded,
)
from pellucid.tasks.parity import against_reference
from pellucid.tasks.tolerance import TOLERANCES, Check

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "Time flies like an arrow; fruit flies like a banana.",
    "Zürich, 東京 and 3.14159!",
)
"""Of unequal length, and not all of it in one alphabet."""

ACCOUNTED = "every tensor accounted for"


def verify(
    name: str | os.PathLike[str],
    *,
    texts: Sequence[str] = TEXTS,
    tokens: int = 10,
    dtype: str | torch.dtype | None = None,
    begin: Callable[[str], object] = lambda what: None,
) -> Iterator[Check]:
    """Asks a checkpoint one question after the other.

    name: as for `pellucid.load`.  texts: what is read; where the checkpoint has no tokenizer, ids are drawn in place of
        the usual ones.
    tokens: how many a language model is made to write.  begin: told what begins, before it begins.
    dtype: computed in, and so measured by: see `tolerance.TOLERANCES`; float64 also shows mistakes as small as a wrong
        epsilon, and takes twice the memory.

    Raises InputError, NotFoundError, UnsafeFileError and ResourceError where the question itself fails.
    """
    use_threads()
    kind = choose_dtype(dtype, torch.float32, torch.device("cpu"))
    tolerance = TOLERANCES[kind]
    begin("reading the files")
    try:
        check, loaded = _account(name), open_checkpoint(name, dtype=kind, narrower=REAL)
    except (CheckpointMismatchError, CorruptFileError) as error:
        yield Check(ACCOUNTED, False, note=str(error))
        return
    rows = read(loaded, texts)
    yield check
    for title, ask in _questions(loaded, rows, list(texts), tolerance).items():
        begin(title)
        yield _asked(title, ask)
    yield from against_reference(loaded, rows, tokens, tolerance, begin)


def _questions(loaded: Loaded, rows: list[Row], texts: list[str], tolerance: float) -> dict[str, Callable[[], Check]]:
    given = (loaded, rows, tolerance)
    asked = {"fused = explicit attention": partial(fused_is_explicit, *given)}
    if loaded.config.kind != "encoder":
        asked["cached = one full pass"] = partial(cached_is_full, *given)
    return asked | {
        "padded = alone": partial(padded_is_alone, *given),
        "packed = plain": partial(packed_is_plain, *given),
        "saved = loaded": partial(saved_is_loaded, loaded, texts),
    }


def _asked(title: str, ask: Callable[[], Check]) -> Check:
    """A check that cannot be done for want of room is no fault of the checkpoint; any other error of ours is."""
    try:
        return ask()
    except PellucidError as error:
        return Check(title, None if isinstance(error, ResourceError) else False, note=str(error))


def _account(name: str | os.PathLike[str]) -> Check:
    plan = account(name)
    held = {place.theirs for place in plan.placed.values()} | {one.place.theirs for one in plan.doubled}
    parts = [f"{len(held)} placed", f"{len(plan.tied) + len(plan.doubled)} tied", f"{len(plan.dropped)} dropped"]
    reasons: dict[str, list[str]] = {}
    for theirs, reason in plan.dropped.items():
        reasons.setdefault(reason, []).append(theirs)
    why = "; ".join(f"{several(names, 2)}: {reason}" for reason, names in reasons.items())
    return Check(ACCOUNTED, True, note=", ".join(parts) + (f" ({why})" if why else ""))


# -- what is read ------------------------------------------------------------------------------------------------------


def read(loaded: Loaded, texts: Sequence[str]) -> list[Row]:
    """The texts as the module takes them, one by one; where it tells texts apart, the second half is a second text."""
    config = loaded.config
    rows = []
    for ids in _drawn(config) if loaded.tokenizer is None and tuple(texts) == TEXTS else _read(loaded, texts):
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


def _read(loaded: Loaded, texts: Sequence[str]) -> Iterator[torch.Tensor]:
    if not texts:
        raise InputError("there is no text to verify with: give at least one")
    for text, row in zip(texts, loaded.words.encode(list(texts), max_length=loaded.longest)):
        if not row.ids:
            raise InputError(f"the text {short(text, 40)!r} has no tokens: give one with words")
        yield torch.tensor([row.ids], device="cpu")


def _drawn(config: Config) -> Iterator[torch.Tensor]:
    """Ids by chance, always the same, for a model that came without a tokenizer; an end token where it knows one."""
    chance = torch.Generator().manual_seed(0)
    own_table = None if config.decoder is None else config.decoder.source_vocab_size
    size = own_table or config.vocab_size
    for length in (17, 12, 5):
        ids = torch.randint(
            min(3, size - 1), size, (1, min(length, config.longest or length)), generator=chance, device="cpu"
        )
        for end in (token for token in config.end_tokens[:1] if token < size):  # some files name one that they lack
            ids[:, -1] = end
        yield ids
