"""Rows held out from training, to measure the model on data that it has not seen."""

import logging
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace

import numpy as np

from pellucid.errors import Argument, InputError, Placeholder
from pellucid.training.data import Data, Record, digest_of_rows, is_blank

log = logging.getLogger("pellucid")


def split(
    data: Data,
    share: float,
    seed: int,
    stratum_of: Callable[[Record], Hashable] = lambda row: None,
    labels_of: Callable[[Record], Collection[str]] = lambda row: (),
    *,
    ordered: bool = False,
) -> tuple[Data, Data]:
    """Splits rows into training rows and held-out rows, both in their order; deterministic in the seed.

    share: of all rows to hold out, above 0 and below 1; at least one row is held out, and at least one is not.
    stratum_of: the group of a row; the same share of each group is held out, as nearly as whole rows allow, and each
        group keeps at least one training row.
    labels_of: the labels of a row; each label keeps at least one training row.
    ordered: the rows are one text, whose end is held out.
    ->  the first with the digest of all rows, which resuming needs again; the second with its own
    Raises InputError for a single row, and where each row has a label of its own.
    """
    rows = data.rows
    if len(rows) < 2:
        raise InputError(f"{data.name} holds one row, expected at least 2: one to learn from, and one to hold out")
    num_held_out = min(max(round(share * len(rows)), 1), len(rows) - 1)
    chosen = (
        set(range(len(rows) - num_held_out, len(rows)))
        if ordered
        else _draw_stratified(rows, num_held_out, seed, stratum_of)
    )
    training_labels = {label for i, row in enumerate(rows) if i not in chosen for label in labels_of(row)}
    for i in sorted(chosen):
        if not training_labels.issuperset(new := labels_of(rows[i])):
            chosen.remove(i)
            training_labels.update(new)
    if not chosen:
        alone = f"each of {len(rows)} rows has a label of its own, so none can be held out: pass "
        raise InputError(alone, Argument("validation", Placeholder("FILE")))
    rest = [row for i, row in enumerate(rows) if i not in chosen]
    held_out = [row for i, row in enumerate(rows) if i in chosen]
    return replace(data, rows=rest), replace(data, rows=held_out, digest=digest_of_rows(held_out))


def warn_of_overlap(data: Data, held_out: Data) -> None:
    """Warns of held-out rows that are also training rows, with their number."""
    training_digests = set(map(_row_digest, data.rows))
    num_shared = sum(
        _row_digest(row) in training_digests for row in held_out.rows if not all(map(is_blank, row.values()))
    )
    if num_shared:
        message = "%d of %d held-out rows are among those that are learned from: their scores flatter the model"
        log.warning(message, num_shared, len(held_out))


def _row_digest(row: Record) -> bytes:
    return bytes.fromhex(digest_of_rows([row]))


def _draw_stratified(
    rows: Sequence[Record], num_held_out: int, seed: int, stratum_of: Callable[[Record], Hashable]
) -> set[int]:
    """The indices of `num_held_out` rows, or of fewer, since each stratum keeps one."""
    groups: dict[Hashable, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(stratum_of(row), []).append(i)
    members = list(groups.values())
    exact = [num_held_out * len(one) / len(rows) for one in members]
    parts = [min(int(part), len(one) - 1) for part, one in zip(exact, members)]
    order = sorted(range(len(members)), key=lambda i: parts[i] - exact[i])  # largest remainder first
    for i in order * 2:
        if sum(parts) < num_held_out and parts[i] < len(members[i]) - 1:
            parts[i] += 1
    generator = np.random.default_rng((seed, len(rows)))
    return {one[i] for part, one in zip(parts, members) for i in generator.permutation(len(one))[:part].tolist()}
