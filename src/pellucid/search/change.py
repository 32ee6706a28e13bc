"""Changes of an index: each creates a generation from the one before, and commits it."""

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.bars import check_progress, progress_bar
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import check_choice, check_count
from pellucid.errors import Argument, InputError, Interrupted, PellucidError, did_you_mean, format_count, join_names
from pellucid.search.building import SegmentBuilder, StagedVectors, write_vector_files
from pellucid.search.condition_checks import check_deletion
from pellucid.search.conditions import Condition
from pellucid.search.corpus import READ_OPTIONS, Corpus, PassageSplitter
from pellucid.search.encoder import check_files, embed_texts, encoder_of, passage_span_function
from pellucid.search.entries import write_entries, write_numbered_entries
from pellucid.search.generations import BUILDING, commit, manifest_paths, remove_staged, write_segment
from pellucid.search.ids import id_of
from pellucid.search.manifest import ENTRIES, MAX_DIMENSION, Encoder, Manifest, Segment, Settings
from pellucid.search.opened_generation import Generation, OpenSegment, open_generation
from pellucid.search.progress import estimated_rows
from pellucid.search.vectors import FLAT_UP_TO, LazyVectors, Vectors
from pellucid.text.truncation import replace_surrogates

log = logging.getLogger("pellucid")

MAX_DELETED_SHARE = 0.2
"""The share of deleted rows above which a segment is rewritten."""

MAX_REPORTED = 50
"""Skipped items that are logged one by one."""

_RESUME_ADVICE = "run the same again to continue from there"

MAX_SEGMENTS = 8
"""Segments, which are searched one after the other; where there are more, the small ones are merged."""


@dataclass(frozen=True)
class BuildOptions:
    """How the first texts of an index are read and embedded; see `Index.build`."""

    passage_tokens: int | None = None
    prompt: str = ""
    dtype: Any = None
    on_duplicate: str = "error"
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.passage_tokens is not None:
            check_count("passage_tokens", self.passage_tokens)
        check_choice("on_duplicate", self.on_duplicate, ("error", "keep-last"))
        if not isinstance(self.prompt, str):
            raise InputError(Argument("prompt"), f" is {type(self.prompt).__name__}, expected a text")


def create_generation(
    folder: Path, loaded: Loaded | None, corpus: Corpus, requested: Settings, options: BuildOptions
) -> Generation:
    """The first generation of an index; without a model, its source is vectors."""
    requested.check()
    if manifest_paths(folder):
        raise InputError(f"{folder} holds an index already: add to it, or give the name of a new folder")
    if loaded is None:
        _check_vector_arguments(corpus, options)
        return _create_from_vectors(folder, corpus.source, requested, options.progress)
    encoder = encoder_of(loaded, replace_surrogates(options.prompt))
    spans = passage_span_function(loaded, options.passage_tokens, encoder.prompt)
    splitter = PassageSplitter(spans, options.on_duplicate == "keep-last")
    corpus.is_taken = splitter.rows_by_id.__contains__
    builder = _builder(folder, loaded, encoder, requested, options.dtype, ())
    segment, settings, made = _write_text_segment(folder, 1, builder, splitter, corpus, options.progress)
    segment = segment.without(splitter.replaced)
    _report(corpus, builder.embedded, segment, settings, splitter.texts, update=False, replaced=0)
    facts = corpus.manifest_facts() | {"passage_tokens": options.passage_tokens}
    settings = replace(settings, kind=requested.kind)
    manifest = Manifest(1, encoder, settings, (segment,), facts, max(splitter.texts, corpus.numbered))
    _finish(folder, manifest)
    return open_generation(folder, manifest, {segment.digest: made})


def add_texts(
    generation: Generation, loaded: Loaded, source: Any, update: bool, options: Mapping[str, Any], progress: bool | None
) -> Generation:
    """A generation with more texts. See `Index.add`."""
    check_files(loaded)
    manifest, segments = generation.manifest, generation.segments
    if strange := [name for name in options if name not in READ_OPTIONS]:
        known = did_you_mean(strange[0], READ_OPTIONS) or f": texts are read with {', '.join(READ_OPTIONS)}"
        raise InputError(f"there is no option {strange[0]!r} of reading texts{known}")
    facts = manifest.corpus
    columns: dict[str, Any] = {name: facts.get(name) for name in ("column", "id_column")}
    splitter = PassageSplitter(passage_span_function(loaded, facts.get("passage_tokens"), manifest.encoder.prompt))
    rows_by_id = splitter.rows_by_id
    corpus = Corpus(source, **columns | dict(options), number_from=manifest.numbered + 1)
    corpus.is_taken = lambda id_: id_ in rows_by_id or any(one.entries.rows_with_ids([id_]) for one in segments)
    corpus.has_id = segments.has_id
    settings = manifest.settings if manifest.settings.kind == "flat" else replace(manifest.settings, kind="auto")
    builder = _builder(generation.folder, loaded, manifest.encoder, settings, None, segments)
    number = manifest.generation + 1
    segment, settled, _ = _write_text_segment(generation.folder, number, builder, splitter, corpus, progress)
    known = [one.rows_with_ids(rows_by_id) for one in segments]
    if any(known) and not update:
        ids = sorted({entry.id for rows, one in zip(known, segments) for entry in one.entries.get(rows)})
        subject, verb = ("id", "is") if len(ids) == 1 else ("ids", "are")
        advice = ": pass ", Argument("update", True), " to replace what is there"
        raise InputError(f"the {subject} {join_names(ids)} {verb} in the index already", *advice)
    filled = [id_ for id_, rows in rows_by_id.items() if rows] if any(known) else []
    replaced = sum(len(one.rows_with_ids(filled)) for one in segments)
    _report(corpus, builder.embedded, segment, settled, splitter.texts, update, replaced)
    before = [one.without(rows) for one, rows in zip(manifest.segments, known)]
    numbered = max(manifest.numbered + splitter.texts, corpus.numbered)
    manifest = replace(manifest, numbered=numbered, settings=_with_larger_ef(manifest, settled))
    return _commit_next(generation, manifest, (*before, segment))


def delete_texts(generation: Generation, ids: list[Any] | None, conditions: Sequence[Condition]) -> Generation:
    """A generation without some texts. See `Index.delete`."""
    manifest, segments = generation.manifest, generation.segments
    if ids is not None:
        ids = [id_of(one, segments.has_id) for one in ids]
        chosen = [one.rows_with_ids(ids) for one in segments]
        found = {entry.id for rows, one in zip(chosen, segments) for entry in one.entries.get(rows)}
        if missing := [one for one in ids if one not in found]:
            raise InputError(f"no text has the id {join_names(map(repr, missing))}: nothing was deleted")
    else:
        check_deletion(segments, conditions)
        chosen = [np.flatnonzero(one.matching_mask(conditions)).tolist() for one in segments]
    if not any(chosen):
        return generation
    return _commit_next(generation, manifest, [one.without(rows) for one, rows in zip(manifest.segments, chosen)])


def compact_generation(generation: Generation, progress: bool | None) -> Generation:
    """A generation with one segment, without deleted rows. See `Index.compact`."""
    check_progress(progress)
    if len(generation.segments) == 1 and not generation.segments[0].deleted.any():
        return generation
    return generation.with_manifest(_commit_merged(generation, range(len(generation.segments)), progress))


# -- parts ------------------------------------------------------------------------------------------------------------


def _check_vector_arguments(corpus: Corpus, options: BuildOptions) -> None:
    """Raises InputError for texts without a model, and for options of texts where vectors were given."""
    first = corpus.source
    for kinds in (list | tuple, tuple):  # a list of texts, mappings, or pairs of id and text
        first = first[-1] if isinstance(first, kinds) and first else first
    if isinstance(first, str | os.PathLike | Mapping):
        raise InputError(Argument("model"), " is None, and texts were given: name a model")
    defaults = vars(Corpus(())) | vars(BuildOptions(progress=options.progress))
    for name in (*READ_OPTIONS, *vars(options)):
        value = (vars(corpus) | vars(options))[name]
        if type(value) is not type(defaults[name]) or value != defaults[name]:
            raise InputError(Argument(name), " is for texts, and vectors were given: leave it out, or name a model")


def _create_from_vectors(folder: Path, source: Any, requested: Settings, progress: bool | None) -> Generation:
    """An index of given vectors; their ids count from 1."""
    vectors = LazyVectors(source, requested.metric)
    if not len(vectors):
        raise InputError("there is nothing to put into the index: no vectors were given")
    check_count("dimension", vectors.shape[1], MAX_DIMENSION)
    segment, settings, made = _write_vector_segment(
        folder, 1, vectors, requested, lambda path: write_numbered_entries(len(vectors), path), progress
    )
    encoder = Encoder("vectors that were given", "", vectors.shape[1])
    manifest = Manifest(1, encoder, replace(settings, kind=requested.kind), (segment,), numbered=len(vectors))
    _finish(folder, manifest)
    return open_generation(folder, manifest, {segment.digest: made})


def _write_vector_segment(
    folder: Path,
    number: int,
    vectors: Any,
    requested: Settings,
    write_rows: Callable[[Path], object],
    progress: bool | None,
) -> tuple[Segment, Settings, Vectors | None]:
    """Writes a segment of existing vectors, with a progress bar for their graph; see `write_vector_files`.

    number: of the new generation.  write_rows: writes the entries that belong to the vectors.
    """

    def write(target: Path) -> tuple[int, Settings, Vectors | None]:
        write_rows(target / ENTRIES)
        with progress_bar("building the graph", total=len(vectors), unit=" rows", shown=progress) as graph:
            return len(vectors), *write_vector_files(vectors, requested, target, graph.update)

    return write_segment(folder, number, write)


def _builder(
    folder: Path, loaded: Loaded, encoder: Encoder, settings: Settings, dtype: Any, segments: Sequence[OpenSegment]
) -> SegmentBuilder:
    """A builder of segments that reuses the vectors of the index."""

    def find_vector(text_hash: bytes) -> np.ndarray | None:
        for one in segments:
            if (row := one.row_by_hash.get(text_hash)) is not None:
                return one.vectors.numbers[row]
        return None

    digest = hashlib.sha256(repr((encoder, settings.metric, str(dtype))).encode()).hexdigest()
    return SegmentBuilder(
        settings=settings,
        dimension=encoder.dimension,
        encode=lambda texts, report: embed_texts(loaded, texts, encoder.prompt, dtype=dtype, on_progress=report),
        find_vector=find_vector,
        staged=StagedVectors(folder / BUILDING, digest),
    )


def _write_text_segment(
    folder: Path, number: int, builder: SegmentBuilder, splitter: PassageSplitter, corpus: Corpus, progress: bool | None
) -> tuple[Segment, Settings, Vectors | None]:
    """Writes a segment of a corpus, with progress bars for embedding its rows and building their graph."""
    rows: dict[str, Any] = {"unit": " rows", "shown": progress}
    with (
        progress_bar("embedding", total=estimated_rows(corpus), **rows) as texts,
        progress_bar("building the graph", **rows) as graph,
    ):
        builder.on_embedded, builder.on_graph_rows = texts.update, graph.update
        try:
            return write_segment(folder, number, lambda place: builder.write(splitter.split(corpus), place))
        except KeyboardInterrupt as stop:
            if not (stored := builder.staged.num_stored):
                raise
            raise Interrupted(f"interrupted; {stored:,} embedded texts are kept: {_RESUME_ADVICE}") from stop


def _report(
    corpus: Corpus, embedded: int, segment: Segment, settings: Settings, texts: int, update: bool, replaced: int
) -> None:
    """Logs what was chosen and what was skipped, and how many rows were embedded and replaced."""
    kind = "exact search" if settings.kind == "flat" else f"a graph, M {settings.M}, efSearch {settings.efSearch}"
    old = f", {format_count(replaced, 'row')} replaced" if replaced else ""
    log.info("%s, %d embedded%s, %s", format_count(segment.alive, "row"), embedded, old, kind)
    if corpus.delimiter is not None:
        log.info("delimiter %r", corpus.delimiter)
    if corpus.empty:
        gone = "; the texts that had their ids are deleted" if update else ""
        log.warning("left out: %d of %d texts, which are empty%s", corpus.empty, texts, gone)
    for skipped in corpus.skipped[:MAX_REPORTED]:
        log.warning("left out: %s", skipped)
    if (more := len(corpus.skipped) - MAX_REPORTED) > 0:
        log.warning("left out: %d more", more)


def _with_larger_ef(manifest: Manifest, settings: Settings) -> Settings:
    """The settings of an index after a segment was written, with the largest efSearch needed."""
    return replace(manifest.settings, efSearch=max(manifest.settings.efSearch, settings.efSearch))


def _commit_next(generation: Generation, manifest: Manifest, segments: Iterable[Segment]) -> Generation:
    """Commits the next generation, then merges segments with many deleted rows, or small ones where there are many."""
    segments = tuple(segments)
    changed = replace(manifest, generation=manifest.generation + 1, segments=segments)
    _finish(generation.folder, changed)
    mostly_deleted = [i for i, one in enumerate(segments) if one.rows - one.alive > MAX_DELETED_SHARE * one.rows]
    small = [i for i, one in enumerate(segments) if one.rows < FLAT_UP_TO]
    which = mostly_deleted if mostly_deleted else small if len(segments) > MAX_SEGMENTS else []
    try:
        changed = _commit_merged(generation.with_manifest(changed), which) if which else changed
    except (PellucidError, MemoryError) as error:  # the change is committed, and a retry would repeat it
        log.warning("done, but segments could not be rewritten: %s", str(error) or "memory is too small")
    return generation.with_manifest(changed)


def _commit_merged(generation: Generation, which: Collection[int], progress: bool | None = None) -> Manifest:
    """Commits a generation in which some segments are merged, without deleted rows."""
    manifest, merged = generation.manifest, [generation.segments[i] for i in which]
    segments = [one for i, one in enumerate(manifest.segments) if i not in which]
    number, settings = manifest.generation + 1, manifest.settings
    live = [one.vectors.numbers[~one.deleted] for one in merged]
    if any(map(len, live)):
        entries = (entry for one in merged for entry in one.live_entries())
        vectors = np.concatenate(live)
        segment, settings, _ = _write_vector_segment(
            generation.folder, number, vectors, settings, lambda path: write_entries(entries, path), progress
        )
        segments.append(segment)
    settings = _with_larger_ef(manifest, settings)
    changed = replace(manifest, generation=number, segments=tuple(segments), settings=settings)
    commit(generation.folder, changed)
    return changed


def _finish(folder: Path, manifest: Manifest) -> None:
    commit(folder, manifest)
    remove_staged(folder)
