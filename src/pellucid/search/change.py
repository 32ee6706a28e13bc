"""What changes an index: each makes a generation out of the one before, and commits it."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.bars import bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import choice, count
from pellucid.errors import Argument, InputError, Interrupted, PellucidError, counted, several
from pellucid.search.building import Builder, Staged, write_numbers
from pellucid.search.corpus import READING, Corpus, Passages
from pellucid.search.encoder import check_files, encoded, encoder_of, places_to_cut
from pellucid.search.entries import Entry, write_entries, write_numbered
from pellucid.search.generations import BUILDING, commit, forget, generations, write_segment
from pellucid.search.hits import bits
from pellucid.search.ids import id_of
from pellucid.search.manifest import ENTRIES, MOST_NUMBERS, Encoder, Manifest, Segment, Settings
from pellucid.search.meant import check_deletion
from pellucid.search.opened import Known, Opened, has_id, known, opened
from pellucid.search.progress import expected
from pellucid.search.vectors import FLAT_UP_TO, Unprepared
from pellucid.search.where import Condition
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


def created(
    folder: Path, loaded: Loaded | None, corpus: Corpus, asked: Settings, how: Building
) -> tuple[Manifest, Known]:
    """The first generation of an index, and what of it is held; where nobody reads, its source is vectors."""
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
    segment = _written(folder, name_of(1), builder, rows.of(corpus), expected(corpus), how.progress)
    segment = segment.without(bits(segment.rows, rows.replaced))
    _report(corpus, builder, segment, rows.texts)
    said = corpus.said() | {"passage_tokens": how.passage_tokens}
    settings = replace(builder.settings, kind=asked.kind)
    manifest = Manifest(1, encoder, settings, (segment,), said, max(rows.texts, corpus.numbered))
    _finish(folder, manifest)
    return manifest, known(builder.made, segment)


def added(
    folder: Path,
    manifest: Manifest,
    segments: Sequence[Opened],
    loaded: Loaded,
    source: Any,
    update: bool,
    read: Mapping[str, Any],
    progress: bool | None,
) -> Manifest:
    """A generation with more texts. See `Index.add`."""
    check_files(loaded)
    said = manifest.corpus
    for name in read:
        choice("read", name, READING)
    facts: dict[str, Any] = {name: said.get(name) for name in ("column", "id_column")} | dict(read)
    rows = Passages(places_to_cut(loaded, said.get("passage_tokens"), manifest.encoder.prompt))
    corpus = Corpus(source, **facts, number_from=manifest.numbered + 1)
    corpus.taken = lambda id_: id_ in rows.places or any(one.entries.having([id_]) for one in segments)
    corpus.there = partial(has_id, segments)
    settings = manifest.settings if manifest.settings.kind == "flat" else replace(manifest.settings, kind="auto")
    builder = _builder(folder, loaded, manifest.encoder, settings, None, segments)
    name = name_of(manifest.generation + 1)
    segment = _written(folder, name, builder, rows.of(corpus), expected(corpus), progress)
    there = [one.entries.having(rows.places) for one in segments]
    known = [[row for row in held if not one.dead[row]] for held, one in zip(there, segments)]
    if any(known) and not update:
        ids = {entry.id for held, one in zip(known, segments) for entry in one.entries.get(held)}
        raise InputError(
            f"the ids {several(sorted(ids))} are in the index already: ", Argument("update", True), " takes their place"
        )
    _report(corpus, builder, segment, rows.texts, update)
    before = [one.without(_with(opened_.dead, held)) for one, opened_, held in zip(manifest.segments, segments, known)]
    numbered = max(manifest.numbered + rows.texts, corpus.numbered)
    manifest = replace(manifest, numbered=numbered, settings=_tuned(manifest, builder.settings))
    return _next(folder, manifest, (*before, segment))


def removed(
    folder: Path,
    manifest: Manifest,
    segments: Sequence[Opened],
    ids: list[Any] | None,
    conditions: Sequence[Condition],
) -> Manifest:
    """A generation without some texts. See `Index.delete`."""
    if ids is not None:
        ids = [id_of(one, partial(has_id, segments)) for one in ids]
        held = [[row for row in one.entries.having(ids) if not one.dead[row]] for one in segments]
        found = {entry.id for rows, one in zip(held, segments) for entry in one.entries.get(rows)}
        if missing := [one for one in ids if one not in found]:
            raise InputError(f"no text has the id {several(missing)}: nothing was deleted")
    else:
        fitting = [one.alive(conditions) for one in segments]
        check_deletion(segments, conditions, fitting)
        held = [[] if rows is None else np.flatnonzero(rows).tolist() for rows in fitting]
    if not any(held):
        return manifest
    rest = [one.without(_with(opened_.dead, rows)) for one, opened_, rows in zip(manifest.segments, segments, held)]
    return _next(folder, manifest, rest)


def compacted(
    folder: Path, manifest: Manifest, segments: Sequence[Opened], progress: bool | None = None, *, which: Any = None
) -> Manifest:
    """A generation in which some segments are one, without what was deleted; all of them by default."""
    chosen = [i for i in range(len(segments)) if which is None or i in which]
    merged, rest = [segments[i] for i in chosen], [s for i, s in enumerate(manifest.segments) if i not in chosen]
    if which is None and len(segments) == 1 and not segments[0].dead.any():
        return manifest
    living = [one.vectors.numbers[~one.dead] for one in merged]
    vectors = np.concatenate(living) if living else np.empty((0, manifest.encoder.dimension), np.float32)
    settings = manifest.settings

    def write(place: Path) -> tuple[int, str]:
        write_entries((entry for one in merged for entry in one.living()), place / ENTRIES)
        with bar("building the graph", total=len(vectors), unit=" rows", shown=progress) as graph:
            nonlocal settings
            settings, _ = write_numbers(vectors, settings, place, graph.update)
        return len(vectors), settings.kind

    made = [write_segment(folder, name_of(manifest.generation + 1), write)] if len(vectors) else []
    changed = replace(
        manifest, generation=manifest.generation + 1, segments=(*rest, *made), settings=_tuned(manifest, settings)
    )
    commit(folder, changed)
    return changed


def name_of(generation: int) -> str:
    """The folder of the segment that a generation adds."""
    return f"{generation:06}"


# -- parts ------------------------------------------------------------------------------------------------------------


def _check_silent(corpus: Corpus, how: Building) -> None:
    """Refuses what is said of texts where vectors were given."""
    silent = vars(Corpus(())) | vars(Building(progress=how.progress))
    for name in (*READING, *vars(how)):
        value = (vars(corpus) | vars(how))[name]
        if type(value) is not type(silent[name]) or value != silent[name]:
            raise InputError(Argument(name), " is of texts, and vectors were given: leave it out, or name a model")


def _of_vectors(folder: Path, source: Any, asked: Settings, progress: bool | None) -> tuple[Manifest, Known]:
    """An index of vectors that somebody has; their ids count them from 1."""
    numbers = Unprepared(source, asked.metric)
    settings, made = asked, None
    if not len(numbers):
        raise InputError("there is nothing to put into the index: no vectors were given")
    count("dimension", numbers.shape[1], MOST_NUMBERS)

    def write(place: Path) -> tuple[int, str]:
        nonlocal settings, made
        write_numbered(len(numbers), place / ENTRIES)
        with bar("building the graph", total=len(numbers), unit=" rows", shown=progress) as graph:
            settings, made = write_numbers(numbers, asked, place, graph.update)
        return len(numbers), settings.kind

    segment = write_segment(folder, name_of(1), write)
    encoder = Encoder("vectors that were given", "", numbers.shape[1])
    manifest = Manifest(1, encoder, replace(settings, kind=asked.kind), (segment,), numbered=len(numbers))
    _finish(folder, manifest)
    return manifest, known(made, segment)


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
    folder: Path, name: str, builder: Builder, entries: Iterable[Entry], many: int | None, progress: bool | None
) -> Segment:
    """A segment of these entries, with a bar while they are embedded and one while their graph is built.

    many: about so many entries are to be expected.
    """
    rows: dict[str, Any] = {"unit": " rows", "shown": progress}
    with bar("embedding", total=many, **rows) as texts, bar("building the graph", **rows) as graph:
        builder.told, builder.told_of_graph = texts.update, graph.update
        try:
            return write_segment(folder, name, lambda place: builder.write(entries, place))
        except KeyboardInterrupt as stop:
            if not (kept := builder.staged.kept):
                raise
            raise Interrupted(f"interrupted; {kept:,} embedded texts are kept: {_GO_ON}") from stop


def _report(corpus: Corpus, builder: Builder, segment: Segment, texts: int, update: bool = False) -> None:
    """Says what was settled on, what was left out, and how much was known already."""
    settings = builder.settings
    kind = "each compared" if settings.kind == "flat" else f"a graph, M {settings.M}, efSearch {settings.efSearch}"
    rows = counted(segment.rows - int(segment.deleted().sum()), "row")
    log.info("%s, %d embedded, %s", rows, builder.embedded, kind)
    if corpus.delimiter is not None:
        log.info("fields stand between %r", corpus.delimiter)
    if corpus.empty:
        gone = "; what stood under their ids is taken away" if update else ""
        log.warning("left out: %d of %d texts, which are empty%s", corpus.empty, texts, gone)
    for said in corpus.skipped[:MOST_TOLD]:
        log.warning("left out: %s", said)
    if (more := len(corpus.skipped) - MOST_TOLD) > 0:
        log.warning("left out: %d more", more)


def _with(dead: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    more = dead.copy()
    more[list(rows)] = True
    return more


def _tuned(manifest: Manifest, settings: Settings) -> Settings:
    """The settings of an index after a segment was written: efSearch is the largest that was needed."""
    return replace(manifest.settings, efSearch=max(manifest.settings.efSearch, settings.efSearch))


def _next(folder: Path, manifest: Manifest, segments: Iterable[Segment]) -> Manifest:
    """Commits the next generation; where its segments are worn or many, they are written anew."""
    held = tuple(segments)
    changed = replace(manifest, generation=manifest.generation + 1, segments=held)
    _finish(folder, changed)
    worn = [i for i, one in enumerate(held) if int(one.deleted().sum()) > WORN * one.rows]
    small = [i for i, one in enumerate(held) if one.rows < FLAT_UP_TO]
    which = worn if worn else small if len(held) > MOST_SEGMENTS else []
    try:
        return compacted(folder, changed, opened(folder, changed), which=which) if which else changed
    except (PellucidError, MemoryError) as error:  # what was asked for is done, and to do it again would do it twice
        log.warning("done, but segments could not be written anew: %s", str(error) or "memory is too small")
        return changed


def _finish(folder: Path, manifest: Manifest) -> None:
    commit(folder, manifest)
    forget(folder)
