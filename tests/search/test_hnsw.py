"""The door to FAISS: its errors where the library is missing, or installed but unusable."""

import sys
from pathlib import Path

import numpy as np
import pytest

import pellucid
from pellucid.errors import InputError, ResourceError
from pellucid.search import building, change
from pellucid.search.hnsw import faiss
from tests.importing import refuse


@pytest.mark.parametrize(
    ("refused", "error", "said"),
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
    ids=["missing", "beside an old library", "not to be opened", "by half"],
)
def test_why_there_is_no_graph(
    refused: Exception, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "faiss", refused)
    with pytest.raises(error, match=said):
        faiss()


def test_a_package_of_that_name_without_graphs_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faiss").mkdir()  # what an incomplete uninstallation leaves
    for name in [name for name in sys.modules if name.partition(".")[0] == "faiss"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ResourceError, match=f"cannot be imported: {tmp_path / 'faiss'} holds no graphs; reinstall it"):
        faiss()
    sys.modules.pop("faiss", None)


@pytest.mark.parametrize(("kind", "embedded"), [("hnsw", []), ("auto", ["text 0", "text 1"])])
def test_no_text_is_embedded_for_a_graph_that_cannot_be_built(
    kind: str, embedded: list[str], minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With kind="auto", the kind is known only once there are so many texts."""
    seen: list[str] = []

    def embed_texts(loaded: object, texts: list[str], *_: object, **__: object) -> np.ndarray:
        seen.extend(texts)
        return np.ones((len(texts), 384), np.float32)

    monkeypatch.setattr(change, "embed_texts", embed_texts)
    monkeypatch.setattr(building, "FIRST_CHUNK", 2)
    monkeypatch.setattr(building, "FLAT_UP_TO", 3)
    refuse(monkeypatch, "faiss", ModuleNotFoundError("No module named 'faiss'", name="faiss"))
    texts = [f"text {i}" for i in range(9)]
    with pytest.raises(InputError, match="a search in a graph needs FAISS"):
        pellucid.Index.build(minilm, texts, tmp_path / "an.index", kind=kind, progress=False)
    assert seen == embedded
