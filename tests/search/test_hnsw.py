"""The door to FAISS: what it says where the library is missing, or there and not to be opened."""

import pytest

from pellucid.errors import InputError, ResourceError
from pellucid.search.hnsw import faiss
from tests.importing import refuse


@pytest.mark.parametrize(
    ("refused", "error", "said"),
    [
        (ModuleNotFoundError("No module named 'faiss'", name="faiss"), InputError, r"pip install 'pellucid\[search\]'"),
        (ModuleNotFoundError("No module named 'n'", name="n"), ResourceError, "does not open: No module named 'n'"),
        (ImportError("libgomp.so.1: Cannot allocate memory"), ResourceError, "does not open: libgomp.so.1: Cannot"),
    ],
    ids=["missing", "beside an old library", "not to be opened"],
)
def test_why_there_is_no_graph(
    refused: ImportError, error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "faiss", refused)
    with pytest.raises(error, match=said):
        faiss()
