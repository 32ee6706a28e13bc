"""What changes an index: each makes a generation out of the one before, and commits it."""

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.bars import bar, check_shown
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import choice, count
from pellucid.errors import Argument, InputError, Interrupted, PellucidError, counted, near, several
from pellucid.search.building import Builder, Staged, write_numbers
from pellucid.search.condition_checks import check_deletion
from pellucid.search.conditions import Condition
from pellucid.search.corpus import READING, Corpus, Passages
from pellucid.search.encoder import check_files, encoded, encoder_of, places_to_cut
from pellucid.search.entries import write_entries, write_numbered
from pellucid.search.entry import Entry
from pellucid.search.generations import BUILDING, commit, forget, generations, write_segment
from pellucid.search.ids import id_of
from pellucid.search.manifest import ENTRIES, MOST_NUMBERS, Encoder, Manifest, Segment, Settings
from pellucid.search.opened import Generation, Opened, opened
from pellucid.search.progress import expected
from pellucid.search.vectors import FLAT_UP_TO, Unprepared, Vectors
from pellucid.text.cut import whole_characters

log = logging.getLogger("pellucid")

WORN = 0.2
"""From this share of deleted rows on, a segment is written anew."""

MOST_TOLD = 50
"""Of what was left out."""

_GO_ON = "do the same again, and it goes on from there"

MOST_SEGMENTS = 8
"""So many are searched one after the other; then the small ones become one."""


@dataclass(frozen=True)
class Building:
    """How the first texts of an index are read and embedded; see `Index.build`."""

    passage_tokens: int | None = None
    prompt: str = ""
    dtype: Any = None
    on_duplicate: str = "error"
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.passage_tokens is not None:
            count("passage_tokens", self.passage_tokens)
        choice("on_duplicate", self.on_duplicate, ("error", "keep-last"))
        if not isinstance(self.prompt, str):
            raise InputError(Argument("prompt"), f" is {type(self.prompt).__name__}, expected a text")


def created(folder: Path, loaded: Loaded | None, corpus: Corpus, asked: Settings, how: Building) -> Generation:
    """The first generation of an index; where nobody reads, its source is vectors."""
    asked.check()
    if generations(folder):
        raise InputError(f"{folder} holds an index already: add to it, or give the name of a new folder")
    if loaded is None:
        _check_silent(corpus, how)
        return _of_vectors(folder, corpus.source, asked, how.progress)
    encoder = encoder_of(loaded, whole_characters(how.prompt))
    rows = Passages(places_to_cut(loaded, how.passage_tokens, encoder.prompt), how.on_duplicate == "keep-last")
    corpus.taken = rows.places.__contains__
    builder = _builder(folder, loaded, encoder, asked, how.dtype, ())
    segment, settings, made = _written(folder, 1, builder, rows.of(corpus), expected(corpus), how.progress)
    segment = segment.without([row for places in rows.replaced for row in range(*places)])
    _report(corpus, builder.embedded, segment, settings, rows.texts, update=False, replaced=0)
    said = corpus.said() | {"passage_tokens": how.passage_tokens}
    settings = replace(settings, kind=asked.kind)
    manifest = Manifest(1, encoder, settings, (segment,), said, max(rows.texts, corpus.numbered))
    _finish(folder, manifest)
    return opened(folder, manifest, {segment.digest: made})


def added(
    now: Generation, loaded: Loaded, source: Any, update: bool, read: Mapping[str, Any], progress: bool | None
) -> Generation:
    """A generation with more texts. See `Index.add`."""
    check_files(loaded)
    manifest, segments = now.manifest, now.segments
    said = manifest.corpus
    if strange := [name for name in read if name not in READING]:
        known = near(strange[0], READING) or f": texts are read with {', '.join(READING)}"
        raise InputError(f"there is no option {strange[0]!r} of reading texts{known}")
    facts: dict[str, Any] = {name: said.get(name) for name in ("column", "id_column")} | dict(read)
    rows = Passages(places_to_cut(loaded, said.get("passage_tokens"), manifest.encoder.prompt))
    corpus = Corpus(source, **facts, number_from=manifest.numbered + 1)
    corpus.taken = lambda id_: id_ in rows.places or any(one.entries.having([id_]) for one in segments)
    corpus.there = segments.has_id
    settings = manifest.settings if manifest.settings.kind == "flat" else replace(manifest.settings, kind="auto")
    builder = _builder(now.folder, loaded, manifest.encoder, settings, None, segments)
    number = manifest.generation + 1
    segment, settled, _ = _written(now.folder, number, builder, rows.of(corpus), expected(corpus), progress)
    known = [one.having(rows.places) for one in segments]
    if any(known) and not update:
        ids = {entry.id for held, one in zip(known, segments) for entry in one.entries.get(held)}
        raise InputError(
            f"the ids {several(sorted(ids))} are in the index already: pass ",
            Argument("update", True),
            " to replace them",
        )
    filled = [id_ for id_, (start, end) in rows.places.items() if end > start] if any(known) else []
    replaced = sum(len(one.having(filled)) for one in segments)
    _report(corpus, builder.embedded, segment, settled, rows.texts, update, replaced)
    before = [one.without(held) for one, held in zip(manifest.segments, known)]
    numbered = max(manifest.numbered + rows.texts, corpus.numbered)
    manifest = replace(manifest, numbered=numbered, settings=_tuned(manifest, settled))
    return _next(now, manifest, (*before, segment))


def removed(now: Generation, ids: list[Any] | None, conditions: Sequence[Condition]) -> Generation:
    """A generation without some texts. See `Index.delete`."""
    manifest, segments = now.manifest, now.segments
    if ids is not None:
        ids = [id_of(one, segments.has_id) for one in ids]
        held = [one.having(ids) for one in segments]
        found = {entry.id for rows, one in zip(held, segments) for entry in one.entries.get(rows)}
        if missing := [one for one in ids if one not in found]:
            raise InputError(f"no text has the id {several(map(repr, missing))}: nothing was deleted")
    else:
        fitting = [one.alive(conditions) for one in segments]
        check_deletion(segments, conditions, fitting)
        held = [[] if rows is None else np.flatnonzero(rows).tolist() for rows in fitting]
    if not any(held):
        return now
    return _next(now, manifest, [one.without(rows) for one, rows in zip(manifest.segments, held)])


def compacted(now: Generation, progress: bool | None) -> Generation:
    """A generation with one segment, without what was deleted. See `Index.compact`."""
    check_shown(progress)
    if len(now.segments) == 1 and not now.segments[0].dead.any():
        return now
    return now.to(_joined(now, range(len(now.segments)), progress))


# -- parts ------------------------------------------------------------------------------------------------------------


def _check_silent(corpus: Corpus, how: Building) -> None:
    """Refuses texts where nobody reads, and what is said of texts where vectors were given."""
    first = corpus.source
    for kinds in (list | tuple, tuple):  # a list of texts, of mappings, or of pairs of id and text
        first = first[-1] if isinstance(first, kinds) and first else first
    if isinstance(first, str | os.PathLike | Mapping):
        raise InputError(Argument("model"), " is None, and texts were given: name a model")
    silent = vars(Corpus(())) | vars(Building(progress=how.progress))
    for name in (*READING, *vars(how)):
        value = (vars(corpus) | vars(how))[name]
        if type(value) is not type(silent[name]) or value != silent[name]:
            raise InputError(Argument(name), " is of texts, and vectors were given: leave it out, or name a model")


def _of_vectors(folder: Path, source: Any, asked: Settings, progress: bool | None) -> Generation:
    """An index of vectors that somebody has; their ids count them from 1."""
    numbers = Unprepared(source, asked.metric)
    if not len(numbers):
        raise InputError("there is nothing to put into the index: no vectors were given")
    count("dimension", numbers.shape[1], MOST_NUMBERS)
    segment, settings, made = _of_numbers(
        folder, 1, numbers, asked, lambda path: write_numbered(len(numbers), path), progress
    )
    encoder = Encoder("vectors that were given", "", numbers.shape[1])
    manifest = Manifest(1, encoder, replace(settings, kind=asked.kind), (segment,), numbered=len(numbers))
    _finish(folder, manifest)
    return opened(folder, manifest, {segment.digest: made})


def _of_numbers(
    folder: Path, number: int, vectors: Any, asked: Settings, entries: Callable[[Path], object], progress: bool | None
) -> tuple[Segment, Settings, Vectors | None]:
    """A segment of vectors that are there, with a bar while their graph is built; see `write_numbers` for the rest.

    number: of the generation that it comes with.  entries: writes what belongs to the vectors.
    """

    def write(place: Path) -> tuple[int, Settings, Vectors | None]:
        entries(place / ENTRIES)
        with bar("building the graph", total=len(vectors), unit=" rows", shown=progress) as graph:
            return len(vectors), *write_numbers(vectors, asked, place, graph.update)

    return write_segment(folder, number, write)


def _builder(
    folder: Path, loaded: Loaded, encoder: Encoder, settings: Settings, dtype: Any, segments: Sequence[Opened]
) -> Builder:
    """What makes a segment; vectors that the index has are looked up."""

    def found(text: bytes) -> np.ndarray | None:
        for one in segments:
            if (row := one.by_hash.get(text)) is not None:
                return one.vectors.numbers[row]
        return None

    made = hashlib.sha256(repr((encoder, settings.metric, str(dtype))).encode()).hexdigest()
    return Builder(
        settings=settings,
        dimension=encoder.dimension,
        encode=lambda texts, told: encoded(loaded, texts, encoder.prompt, dtype=dtype, told=told),
        found=found,
        staged=Staged(folder / BUILDING, made),
    )


def _written(
    folder: Path, number: int, builder: Builder, entries: Iterable[Entry], many: int | None, progress: bool | None
) -> tuple[Segment, Settings, Vectors | None]:
    """A segment of these entries, with a bar while they are embedded and one while their graph is built.

    many: about so many entries are to be expected.
    """
    rows: dict[str, Any] = {"unit": " rows", "shown": progress}
    with bar("embedding", total=many, **rows) as texts, bar("building the graph", **rows) as graph:
        builder.told, builder.told_of_graph = texts.update, graph.update
        try:
            return write_segment(folder, number, lambda place: builder.write(entries, place))
        except KeyboardInterrupt as stop:
            if not (kept := builder.staged.kept):
                raise
            raise Interrupted(f"interrupted; {kept:,} embedded texts are kept: {_GO_ON}") from stop


def _report(
    corpus: Corpus, embedded: int, segment: Segment, settings: Settings, texts: int, update: bool, replaced: int
) -> None:
    """Says what was settled on, what was left out, how much was known already, and how many rows were replaced."""
    kind = "exact search" if settings.kind == "flat" else f"a graph, M {settings.M}, efSearch {settings.efSearch}"
    old = f", {counted(replaced, 'row')} replaced" if replaced else ""
    log.info("%s, %d embedded%s, %s", counted(segment.alive, "row"), embedded, old, kind)
    if corpus.delimiter is not None:
        log.info("delimiter %r", corpus.delimiter)
    if corpus.empty:
        gone = "; the texts that had their ids are deleted" if update else ""
        log.warning("left out: %d of %d texts, which are empty%s", corpus.empty, texts, gone)
    for said in corpus.skipped[:MOST_TOLD]:
        log.warning("left out: %s", said)
    if (more := len(corpus.skipped) - MOST_TOLD) > 0:
        log.warning("left out: %d more", more)


def _tuned(manifest: Manifest, settings: Settings) -> Settings:
    """The settings of an index after a segment was written: efSearch is the largest that was needed."""
    return replace(manifest.settings, efSearch=max(manifest.settings.efSearch, settings.efSearch))


def _next(now: Generation, manifest: Manifest, segments: Iterable[Segment]) -> Generation:
    """Commits the next generation; where its segments are worn or many, they are written anew."""
    held = tuple(segments)
    changed = replace(manifest, generation=manifest.generation + 1, segments=held)
    _finish(now.folder, changed)
    worn = [i for i, one in enumerate(held) if one.rows - one.alive > WORN * one.rows]
    small = [i for i, one in enumerate(held) if one.rows < FLAT_UP_TO]
    which = worn if worn else small if len(held) > MOST_SEGMENTS else []
    try:
        changed = _joined(now.to(changed), which) if which else changed
    except (PellucidError, MemoryError) as error:  # what was asked for is done, and to do it again would do it twice
        log.warning("done, but segments could not be written anew: %s", str(error) or "memory is too small")
    return now.to(changed)


def _joined(now: Generation, which: Collection[int], progress: bool | None = None) -> Manifest:
    """Commits a generation in which some segments are one, without what was deleted."""
    manifest, merged = now.manifest, [now.segments[i] for i in which]
    segments = [one for i, one in enumerate(manifest.segments) if i not in which]
    number, settings = manifest.generation + 1, manifest.settings
    living = [one.vectors.numbers[~one.dead] for one in merged]
    if any(map(len, living)):
        entries = (entry for one in merged for entry in one.living())
        segment, settings, _ = _of_numbers(
            now.folder, number, np.concatenate(living), settings, lambda path: write_entries(entries, path), progress
        )
        segments.append(segment)
    changed = replace(manifest, generation=number, segments=tuple(segments), settings=_tuned(manifest, settings))
    commit(now.folder, changed)
    return changed


def _finish(folder: Path, manifest: Manifest) -> None:
    commit(folder, manifest)
    forget(folder)
