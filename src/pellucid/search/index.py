"""What a person holds: an index of texts. Each method hands over to the part of this room that answers."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded, stands
from pellucid.checkpoints.model_or_name import held
from pellucid.config.checks import listed, plain_number, truth
from pellucid.errors import Argument, InputError, counted, several
from pellucid.files import path_of
from pellucid.search.change import Building, added, compacted, created, removed
from pellucid.search.conditions import conditions
from pellucid.search.copying import copy
from pellucid.search.corpus import Corpus
from pellucid.search.curve import Curve, measured
from pellucid.search.encoder import check, encoded, reopened
from pellucid.search.evaluate import Evaluation, evaluated
from pellucid.search.generations import changing, newest, writing
from pellucid.search.manifest import Manifest, Settings
from pellucid.search.opened import Generation, Segments, newest_opened
from pellucid.search.queries import gathered, is_single, understood
from pellucid.search.retrieval import Asked, seek
from pellucid.search.temporary import goes_with, place
from pellucid.search.vectors import prepared
from pellucid.search.verify import verified
from pellucid.search.why import Match, match
from pellucid.trace.edit import present

Where = Mapping[str, Any] | str | list[str] | None


class Index:
    """Texts, to be found by what they mean and by their words.

    >>> index = Index.build("all-MiniLM-L6-v2", "companies.csv", column="name", out="companies.index")  # doctest: +SKIP
    >>> index.search("Apple", k=3)[0]["text"]                                                           # doctest: +SKIP
    'Apple Inc.'

    It is a folder of generations (`search/generations.py`): a change makes a new one; who reads the old one keeps it.
    """

    def __init__(self, now: Generation, loaded: Loaded | None) -> None:
        """See `build` and `open`."""
        self._now, self._loaded, self._checked = now, loaded, loaded and stands(loaded.module)

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
        source: a .csv, .tsv or .jsonl file with its `column`, files of text by a path, a pattern or a folder, a data
            frame, or what yields texts, pairs of id and text, or mappings with a `column`. What is empty is left out,
            and what is hidden in a folder.
        out: the folder to write, where nothing else may be; None keeps the index as long as this object, see `save`.
        id_column: which column holds the ids; by default texts are numbered from 1.
        metric: "cosine", "dot" or "euclidean".
        kind: "flat", "hnsw", or "auto": a graph from 50,000 rows on. M, efConstruction, efSearch: of the graph; the
            last is raised, and said, until 95 of 100 true neighbours of rows moved aside are found; of queries that lie
            otherwise, as far from every row, fewer may be: `index.curve(queries)` measures your own.
        passage_tokens: longer texts are divided into passages of so many tokens; by default of what the model reads.
        prompt: stands before every text.  dtype: compute in this; "bfloat16" or "auto" is for speed.
        encoding: of files.  skip_bad: leaves out rows that are wrong.  on_duplicate: "error", or "keep-last" of an id.

        A build that was broken off goes on where it was, when it is asked for again.
        """
        asked = Settings(metric, kind, *map(plain_number, (M, efConstruction, efSearch)))
        how = Building(plain_number(passage_tokens), prompt, dtype, on_duplicate, progress)
        loaded = None if model is None else held(model, head=None)
        corpus = Corpus(source, column, id_column, encoding, skip_bad)
        with place(out) as folder, writing(folder, new=True):
            index = cls(created(folder, loaded, corpus, asked, how), loaded)
        if out is None:
            goes_with(index, folder)
        return index

    @classmethod
    def open(cls, folder: str | os.PathLike[str], model: Any = None) -> "Index":
        """Opens the newest generation of an index.

        model: who reads the queries; by default the one that made the vectors, by its name, loaded when it is needed.
        Raises InputError for another model, CorruptFileError where a file was changed since it was written.
        """
        now = newest_opened(path_of(folder).absolute())
        loaded = None if model is None else held(model, head=None)
        if loaded is not None:
            check(now.manifest.encoder, loaded)
        return cls(now, loaded)

    # -- ask ----------------------------------------------------------------------------------------------------------

    def search(
        self,
        query: str | Sequence[str] | np.ndarray | Tensor,
        k: int = 10,
        *,
        where: Where = None,
        mode: str = "hybrid",
        rerank: Any = None,
    ) -> Any:
        """The k texts that fit best: `Hits` for one query, a list of them for several.

        query: a text, several texts, or vectors, Float[ndarray, "queries dimension"].
        where: what their other columns must be, such as {"sector": "Financials"}, {"founded": {">=": 2000}},
            or "founded >= 2000". A row without the column fits nothing, "!=" neither.
        mode: "dense" compares vectors, "words" counts words (BM25), "hybrid" does both and joins the two orders (more
            of each with k above 50, which may move the first); a word that stands nowhere is taken for the nearest that
            does. The rarest words are looked for, of 50,000 rows together, and the others by "words" where no row fits.
        rerank: a model, or its name, that orders the best 50 anew: one with a sequence-classification head of one label
            reads query and text together, any other compares their vectors.
        """
        asked = Asked(plain_number(k), mode, tuple(conditions(where)), rerank)
        if isinstance(query := gathered(query), list) and not query:
            return []
        now = self._now  # another thread may change it meanwhile
        found = seek(now, self.encode, understood(query, now.manifest), asked)
        return found[0] if is_single(query) else found

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of queries, as they are compared: Float32[ndarray, "texts dimension"]"""
        return prepared(encoded(self.loaded, texts), self.manifest.settings.metric, "queries")

    def why(self, query: str, hit: Mapping[str, Any]) -> Match:
        """Which words of a query matched which words of a text that was found."""
        return match(self.loaded, query, hit, self.manifest.encoder.prompt)

    # -- judge --------------------------------------------------------------------------------------------------------

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
        """Recall, MRR and nDCG at each k, on queries whose right answers are known, and which queries went wrong.

        answers: for each query the right id, several, or ids with how right each is, such as {"AAPL": 2, "MSFT": 1}.
        by: a column in place of ids; null is no value, a list is '["a","b"]', a date with a zone is not one without.
        unlisted: what becomes of a query none of whose right answers is in the index, "error" or "skip".
        where, mode, rerank: as for `search`.
        """
        return evaluated(self, queries, answers, k, by, unlisted, {"where": where, "mode": mode, "rerank": rerank})

    def curve(
        self,
        queries: Sequence[str] | np.ndarray | Tensor | None = None,
        k: int = 10,
        efSearch: Sequence[int] | None = None,  # noqa: N803
    ) -> Curve:
        """How many of the true k neighbours the graph finds, and how long it takes, at several values of `efSearch`; of
        the vectors alone, without the words. `svg` and `png` draw it.

        queries: texts or vectors, which should be others than those of the index, since a vertex is found more easily
            than what lies between; by default 200 of its own rows.
        """
        return measured(self, None if queries is None else self._vectors(queries), plain_number(k), efSearch)

    def _vectors(self, queries: Any) -> np.ndarray:
        """Several queries as vectors: Float32[ndarray, "queries dimension"]"""
        asked = understood(gathered(queries), self.manifest)
        return asked if isinstance(asked, np.ndarray) else self.encode(asked)

    # -- change -------------------------------------------------------------------------------------------------------

    def add(self, source: Any, *, update: bool = False, progress: bool | None = None, **read: Any) -> int:
        """Puts more texts in; how many rows there are more.

        source, read: as for `build`; `column` and `id_column` are by default those of the build.
        update: texts take the place of those with the same id; else a known id is an error.
        """
        truth("update", update)
        with changing(self.folder, self._renew):
            before = len(self)
            self._now = added(self._now, self.loaded, source, update, read, progress)
            return len(self) - before

    def update(self, source: Any, **read: Any) -> int:
        """As `add`, in the place of texts with the same ids; an empty one among others takes its id away."""
        return self.add(source, update=True, **read)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: Where = None) -> int:
        """Takes texts out, by their ids or by their other columns; how many rows are gone.

        Raises InputError for an id that is not there; then nothing is taken out.
        """
        if (ids is None) == (where is None):
            raise InputError("say what to delete: ids, or ", Argument("where"), ", and not both")
        wanted = None if ids is None else [ids] if isinstance(ids, str) else listed("ids", ids, "a text or several")
        chosen = conditions(where)
        if wanted is None and not chosen:
            raise InputError(Argument("where"), " holds no condition: say which rows to delete")
        with changing(self.folder, self._renew):
            before = len(self)
            self._now = removed(self._now, wanted, chosen)
            return before - len(self)

    def compact(self, *, progress: bool | None = None) -> None:
        """Writes all rows anew, as one segment, without deleted ones."""
        with changing(self.folder, self._renew):
            self._now = compacted(self._now, progress)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copies this index to a folder of its own, which must not exist yet."""
        return copy(self.folder, self.manifest, path_of(folder).absolute())

    def verify(self, sample: int = 256) -> int:
        """Makes some vectors again and compares them with those that are kept; how many. Every file was compared with
        its digest when the index was opened. Raises CheckpointMismatchError where a vector differs."""
        return verified(self.loaded, self._now, sample)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> Loaded:
        """The model that reads queries, edited where a block edits it. InputError where its numbers were changed."""
        if self._loaded is None:
            self._loaded = reopened(self.manifest.encoder)  # which was checked by it
            self._checked = stands(self._loaded.module)
        if (now := stands(self._loaded.module)) != self._checked:
            check(self.manifest.encoder, self._loaded)
            self._checked = now
        return present(self._loaded)

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self._now.folder

    @property
    def manifest(self) -> Manifest:
        """What the generation that is searched says of itself."""
        return self._now.manifest

    @property
    def segments(self) -> Segments:
        """What is searched."""
        return self._now.segments

    def info(self) -> dict[str, Any]:
        """What this index says of itself."""
        parts = [{"rows": s.rows, "deleted": s.rows - s.alive, "kind": s.kind} for s in self.manifest.segments]
        said = asdict(replace(self.manifest, segments=()))
        return {"folder": str(self.folder), "rows": len(self), **said, "segments": parts}

    def __len__(self) -> int:
        return self.manifest.rows

    def __repr__(self) -> str:
        kinds = several(dict.fromkeys(segment.kind for segment in self.manifest.segments))
        said = f"{counted(len(self), 'row')}, {kinds or 'empty'}, {self.manifest.settings.metric}"
        return f"Index({str(self.folder)!r}, {said}, by {self.manifest.encoder.name})"

    def _renew(self) -> None:
        """Reads what another writer has changed meanwhile."""
        manifest = newest(self.folder)
        if manifest != self.manifest:
            if (manifest.encoder, manifest.settings.metric) != (self.manifest.encoder, self.manifest.settings.metric):
                by = f"{manifest.encoder.name}, for {manifest.settings.metric!r}"
                raise InputError(f"{self.folder} was built anew by {by} meanwhile: open it again")
            self._now = self._now.to(manifest)

    def __reduce__(self) -> Any:
        """Opened anew where it is unpickled; a model that came from no files travels with it."""
        loaded = self._loaded if self._loaded is not None and self._loaded.source is None else None
        return Index.open, (self.folder, loaded)
