"""Checks that the vectors of an index are those that its model computes."""

import numpy as np

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_count
from pellucid.errors import CheckpointMismatchError, shorten
from pellucid.search.encoder import check_files, embed_texts
from pellucid.search.opened_generation import Generation
from pellucid.search.vectors import prepare_vectors

MIN_COSINE = 0.999
"""The least cosine of a stored vector and the recomputed one; those stored in bfloat16 reach it."""


def verify_vectors(loaded: Loaded, generation: Generation, sample: int) -> int:
    """Recomputes the vectors of a fixed sample of rows in each segment; returns how many."""
    check_count("sample", sample)
    check_files(loaded)
    generator, checked = np.random.default_rng(0), 0
    for segment in generation.segments:
        live = np.flatnonzero(~segment.deleted)
        rows = np.sort(generator.choice(live, min(sample, len(live)), replace=False))
        entries = segment.entries.get(rows.tolist())
        recomputed = embed_texts(loaded, [entry.text for entry in entries], generation.manifest.encoder.prompt)
        stored, again = (prepare_vectors(numbers, "cosine") for numbers in (segment.vectors.numbers[rows], recomputed))
        cosines = (stored * again).sum(axis=1)
        if len(cosines) and cosines.min() < MIN_COSINE:
            worst = int(cosines.argmin())
            raise CheckpointMismatchError(
                f"the vector of {shorten(repr(entries[worst].id))} has a cosine of {cosines[worst]:.3f} to the one "
                f"that {generation.manifest.encoder.name} makes now: build the index again"
            )
        checked += len(rows)
    return checked
