"""The public class of the search room. Each method calls the part of this room that does the work."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded, storage_versions
from pellucid.checkpoints.model_or_name import resolve_model
from pellucid.config.checks import check_bool, plain_number, require_list
from pellucid.errors import Argument, InputError, format_count, join_names
from pellucid.paths import path_of
from pellucid.search.change import BuildOptions, add_texts, compact_generation, create_generation, delete_texts
from pellucid.search.conditions import parse_conditions
from pellucid.search.copying import copy_generation
from pellucid.search.corpus import Corpus
from pellucid.search.encoder import check_encoder, embed_texts, load_encoder
from pellucid.search.evaluate import Evaluation, evaluate_search
from pellucid.search.generations import change_lock, newest_manifest, writer_lock
from pellucid.search.manifest import Manifest, Settings
from pellucid.search.opened_generation import Generation, Segments, open_newest
from pellucid.search.queries import as_query_list, is_single, prepare_queries
from pellucid.search.recall_curve import Curve, measure_curve
from pellucid.search.retrieval import SearchRequest, search_queries
from pellucid.search.temporary import build_folder, remove_with
from pellucid.search.vectors import prepare_vectors
from pellucid.search.verify import verify_vectors
from pellucid.search.why import Match, match
from pellucid.trace.edit import with_active_edits

Where = Mapping[str, Any] | str | list[str] | None


class Index:
    """Texts that can be searched by meaning and by their words.

    >>> index = Index.build("all-MiniLM-L6-v2", "companies.csv", column="name", out="companies.index")  # doctest: +SKIP
    >>> index.search("Apple", k=3)[0]["text"]                                                           # doctest: +SKIP
    'Apple Inc.'

    It is a folder of generations (`search/generations.py`): a change creates a new one; readers of the old one keep it.
    """

    def __init__(self, generation: Generation, loaded: Loaded | None) -> None:
        """See `build` and `open`."""
        self._generation, self._loaded, self._checked = generation, loaded, loaded and storage_versions(loaded.module)

    # -- make and open ------------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        model: Any,
        source: Any,
        out: str | os.PathLike[str] | None = None,
        *,
        column: str | None = None,
        id_column: str | None = None,
        metric: str = "cosine",
        kind: str = "auto",
        M: int = 32,  # noqa: N803 - the field's own names
        efConstruction: int = 40,  # noqa: N803
        efSearch: int = 16,  # noqa: N803
        passage_tokens: int | None = None,
        prompt: str = "",
        dtype: Any = None,
        encoding: str = "utf-8",
        skip_bad: bool = False,
        on_duplicate: str = "error",
        progress: bool | None = None,
    ) -> "Index":
        """Reads a corpus, embeds it and writes an index.

        model: a model or its name; None where `source` is an array of vectors, Float[ndarray, "rows dimension"].
        source: a .csv, .tsv or .jsonl file with its `column`; text files by a path, a pattern or a folder; a data
            frame; or an iterable of texts, pairs of id and text, or mappings with a `column`. Empty texts, and hidden
            files of a folder, are skipped.
        out: the folder to write, which must hold nothing else; None keeps the index as long as this object, see `save`.
        id_column: the column of the ids; by default texts are numbered from 1.
        metric: "cosine", "dot" or "euclidean".
        kind: "flat", "hnsw", or "auto": a graph from 50,000 rows on. M, efConstruction, efSearch: of the graph; the
            last is raised, and logged, until at least 95 of 100 true neighbours of displaced rows are found; of queries
            far from all rows fewer may be found: measure yours by `index.curve(queries)`.
        passage_tokens: longer texts are split into passages of so many tokens; by default the model's maximum length.
        prompt: a prefix of every text.  dtype: the dtype to compute in; "bfloat16" or "auto" for speed.
        encoding: of files.  skip_bad: skips invalid rows.  on_duplicate: "error", or "keep-last" of an id.

        An interrupted build is resumed by calling it again.
        """
        settings = Settings(metric, kind, *map(plain_number, (M, efConstruction, efSearch)))
        options = BuildOptions(plain_number(passage_tokens), prompt, dtype, on_duplicate, progress)
        loaded = None if model is None else resolve_model(model, head=None)
        corpus = Corpus(source, column, id_column, encoding, skip_bad)
        with build_folder(out) as folder, writer_lock(folder, new=True):
            index = cls(create_generation(folder, loaded, corpus, settings, options), loaded)
        if out is None:
            remove_with(index, folder)
        return index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], model: Any = None) -> "Index":
        """Opens the newest generation of an index.

        model: the model that embeds queries; by default the one that embedded the texts, loaded by name when needed.
        Raises InputError for another model, CorruptFileError where a file has changed since it was written.
        """
        generation = open_newest(path_of(folder).absolute())
        loaded = None if model is None else resolve_model(model, head=None)
        if loaded is not None:
            check_encoder(generation.manifest.encoder, loaded)
        return cls(generation, loaded)

    # -- search -------------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str | Sequence[str] | np.ndarray | Tensor,
        k: int = 10,
        *,
        where: Where = None,
        mode: str = "hybrid",
        rerank: Any = None,
    ) -> Any:
        """The k texts that match best: `Hits` for one query, a list of them for several.

        query: a text, several texts, or vectors, Float[ndarray, "queries dimension"].
        where: conditions on the other columns, such as {"sector": "Financials"}, {"founded": {">=": 2000}}, or "founded
            >= 2000". A row without the column matches none, "!=" included.
        mode: "dense" compares vectors, "words" ranks by words (BM25), "hybrid" fuses both rankings (more of each with k
            above 50, which may change the first hits); a word in no text is replaced by the nearest one. The rarest
            words are searched for, up to 50,000 rows in all; the others only by "words", where no row matches.
        rerank: a model, or its name, that reorders the best 50: one with a sequence-classification head of one label
            reads query and text together, any other compares their vectors.
        """
        request = SearchRequest(plain_number(k), mode, tuple(parse_conditions(where)), rerank)
        if isinstance(query := as_query_list(query), list) and not query:
            return []
        generation = self._generation  # another thread may replace it meanwhile
        found = search_queries(generation, self.encode, prepare_queries(query, generation.manifest), request)
        return found[0] if is_single(query) else found

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of queries, prepared for comparison: Float32[ndarray, "texts dimension"]"""
        return prepare_vectors(embed_texts(self.loaded, texts), self.manifest.settings.metric, "queries")

    def why(self, query: str, hit: Mapping[str, Any]) -> Match:
        """Which words of a query matched which words of the text of a hit."""
        return match(self.loaded, query, hit, self.manifest.encoder.prompt)

    # -- measure ------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        queries: Iterable[str],
        answers: Iterable[Any],
        k: int | Sequence[int] = (1, 5, 10),
        *,
        by: str | None = None,
        unlisted: str = "error",
        where: Where = None,
        mode: str = "hybrid",
        rerank: Any = None,
    ) -> Evaluation:
        """Recall, MRR and nDCG at each k, on queries with known right answers, and the queries that missed.

        answers: for each query the right id, several, or ids with grades, such as {"AAPL": 2, "MSFT": 1}.
        by: a column instead of ids; null is no value, a list is '["a","b"]', a date with a zone is not one without.
        unlisted: what to do with a query none of whose right answers is in the index, "error" or "skip".
        where, mode, rerank: as for `search`.
        """
        options = {"where": where, "mode": mode, "rerank": rerank}
        return evaluate_search(self, queries, answers, k, by, unlisted, options)

    def curve(
        self,
        queries: Sequence[str] | np.ndarray | Tensor | None = None,
        k: int = 10,
        efSearch: Sequence[int] | None = None,  # noqa: N803
    ) -> Curve:
        """The share of the true k neighbours that the graph finds, and the time it takes, at several values of
        `efSearch`; of the vectors only, without words. `svg` and `png` draw it.

        queries: texts or vectors, preferably not those of the index, since a vertex is easier to find than a point
            between vertices; by default 200 of its own rows.
        """
        return measure_curve(self, None if queries is None else self._vectors(queries), plain_number(k), efSearch)

    def _vectors(self, queries: Any) -> np.ndarray:
        """Several queries as vectors: Float32[ndarray, "queries dimension"]"""
        prepared = prepare_queries(as_query_list(queries), self.manifest)
        return prepared if isinstance(prepared, np.ndarray) else self.encode(prepared)

    # -- change -------------------------------------------------------------------------------------------------------

    def add(self, source: Any, *, update: bool = False, progress: bool | None = None, **read: Any) -> int:
        """Adds texts; returns by how many rows the index has grown.

        source, read: as for `build`; `column` and `id_column` are by default those of the build.
        update: replaces texts with the same ids; else an existing id is an error.
        """
        check_bool("update", update)
        with change_lock(self.folder, self._reload):
            before = len(self)
            self._generation = add_texts(self._generation, self.loaded, source, update, read, progress)
            return len(self) - before

    def update(self, source: Any, **read: Any) -> int:
        """As `add`, replacing texts with the same ids; an empty text among others deletes its id."""
        return self.add(source, update=True, **read)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: Where = None) -> int:
        """Deletes texts by their ids or by their other columns; returns the number of rows deleted.

        Raises InputError for an id that does not exist; then nothing is deleted.
        """
        if (ids is None) == (where is None):
            raise InputError("say what to delete: ids, or ", Argument("where"), ", and not both")
        ids = [ids] if isinstance(ids, str) else ids
        ids = None if ids is None else require_list("ids", ids, "a text or several")
        conditions = parse_conditions(where)
        if ids is None and not conditions:
            raise InputError(Argument("where"), " holds no condition: say which rows to delete")
        with change_lock(self.folder, self._reload):
            before = len(self)
            self._generation = delete_texts(self._generation, ids, conditions)
            return before - len(self)

    def compact(self, *, progress: bool | None = None) -> None:
        """Rewrites all rows as one segment, without deleted ones."""
        with change_lock(self.folder, self._reload):
            self._generation = compact_generation(self._generation, progress)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copies this index to a new folder, which must not exist; a killed copy may leave a hidden one beside it."""
        return copy_generation(self.folder, self.manifest, path_of(folder).absolute())

    def verify(self, sample: int = 256) -> int:
        """Recomputes some vectors and compares them with the stored ones; returns how many. All files were checked
        against their digests when the index was opened. Raises CheckpointMismatchError where a vector differs."""
        return verify_vectors(self.loaded, self._generation, sample)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded:
        """The model that embeds queries, with active edits. Raises InputError where its weights were changed."""
        if self._loaded is None:
            self._loaded = load_encoder(self.manifest.encoder)  # which has checked it
            self._checked = storage_versions(self._loaded.module)
        if (versions := storage_versions(self._loaded.module)) != self._checked:
            check_encoder(self.manifest.encoder, self._loaded)
            self._checked = versions
        return with_active_edits(self._loaded)

    @property
    def folder(self) -> Path:
        """The folder of the index."""
        return self._generation.folder

    @property
    def manifest(self) -> Manifest:
        """The manifest of the current generation."""
        return self._generation.manifest

    @property
    def segments(self) -> Segments:
        """The segments of the current generation."""
        return self._generation.segments

    def info(self) -> dict[str, Any]:
        """The facts of this index, as a dict."""
        parts = [{"rows": s.rows, "deleted": s.rows - s.alive, "kind": s.kind} for s in self.manifest.segments]
        facts = asdict(replace(self.manifest, segments=()))
        return {"folder": str(self.folder), "rows": len(self), **facts, "segments": parts}

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        kinds = join_names(dict.fromkeys(segment.kind for segment in self.manifest.segments))
        facts = f"{format_count(len(self), 'row')}, {kinds or 'empty'}, {self.manifest.settings.metric}"
        return f"Index({str(self.folder)!r}, {facts}, by {self.manifest.encoder.name})"

    def _reload(self) -> None:
        """Reads the changes that another writer has made meanwhile."""
        manifest = newest_manifest(self.folder)
        if manifest != self.manifest:
            if (manifest.encoder, manifest.settings.metric) != (self.manifest.encoder, self.manifest.settings.metric):
                by = f"{manifest.encoder.name}, for {manifest.settings.metric!r}"
                raise InputError(f"{self.folder} was rebuilt by {by} meanwhile: open it again")
            self._generation = self._generation.with_manifest(manifest)

    def __reduce__(self) -> Any:
        """Unpickles by opening the folder; only a model that was not loaded from files is pickled with it."""
        loaded = self._loaded if self._loaded is not None and self._loaded.source is None else None
        return Index.open, (self.folder, loaded)
