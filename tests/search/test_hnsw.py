"""Importing FAISS: the errors where the library is missing, or installed but unusable."""

import sys
from pathlib import Path

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError, ResourceError
from pellucid.search import building, change
from pellucid.search.hnsw import faiss
from tests.failing_imports import fail_import


@pytest.mark.parametrize(
    ("import_error", "error", "fragment"),
    [
        (ModuleNotFoundError("No module named 'faiss'", name="faiss"), InputError, r"pip install 'pellucid\[search\]'"),
        (
            ModuleNotFoundError("No module named 'n'", name="n"),
            ResourceError,
            "cannot be imported: No module named 'n'",
        ),
        (
            ImportError("libgomp.so.1: Cannot allocate memory"),
            ResourceError,
            "cannot be imported: libgomp.so.1: Cannot",
        ),
        (OSError("libgomp: version not found"), ResourceError, "cannot be imported: libgomp: version not found"),
    ],
    ids=["missing", "beside an old library", "not loadable", "incompatible"],
)
def test_error_when_faiss_cannot_be_imported(
    import_error: Exception, error: type[Exception], fragment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_import(monkeypatch, "faiss", import_error)
    with pytest.raises(error, match=fragment):
        faiss()


def test_folder_named_faiss_without_the_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faiss").mkdir()  # what an incomplete uninstallation leaves
    for name in [name for name in sys.modules if name.partition(".")[0] == "faiss"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ResourceError, match=f"cannot be imported: {tmp_path / 'faiss'} holds no graphs; reinstall it"):
        faiss()
    sys.modules.pop("faiss", None)


@pytest.mark.parametrize(("kind", "embedded"), [("hnsw", []), ("auto", ["text 0", "text 1"])])
def test_nothing_is_embedded_if_the_graph_cannot_be_built(
    kind: str, embedded: list[str], minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With kind="auto", the kind is known only once there are so many texts."""
    texts_embedded: list[str] = []

    def embed_texts(loaded: object, texts: list[str], *_: object, **__: object) -> np.ndarray:
        texts_embedded.extend(texts)
        return np.ones((len(texts), 384), np.float32)

    monkeypatch.setattr(change, "embed_texts", embed_texts)
    monkeypatch.setattr(building, "FIRST_CHUNK", 2)
    monkeypatch.setattr(building, "FLAT_UP_TO", 3)
    fail_import(monkeypatch, "faiss", ModuleNotFoundError("No module named 'faiss'", name="faiss"))
    texts = [f"text {i}" for i in range(9)]
    with pytest.raises(InputError, match="a search in a graph needs FAISS"):
        pellucid.Index.build(minilm, texts, tmp_path / "an.index", kind=kind, progress=False)
    assert texts_embedded == embedded
