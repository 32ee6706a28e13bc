"""A hundred companies, and an index of them that every test may read."""

from pathlib import Path

import pytest

import pellucid

COMPANIES = Path(__file__).parents[2] / "examples" / "companies.csv"


@pytest.fixture(scope="session")
def companies() -> Path:
    """100 rows: symbol, name, sector, headquarters, founded."""
    return COMPANIES


@pytest.fixture(scope="session")
def index(minilm: "pellucid.Model", tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Index":
    """The hundred companies, with their symbols as ids; tests do not change it."""
    folder = tmp_path_factory.mktemp("search") / "companies.index"
    options = {"column": "name", "id_column": "symbol", "progress": False}
    return pellucid.Index.build(minilm, COMPANIES, folder, **options)


@pytest.fixture
def writable_index(index: "pellucid.Index", tmp_path: Path) -> "pellucid.Index":
    """A copy of the index, which a test may change."""
    return pellucid.Index.open(index.save(tmp_path / "own.index"), model=index.loaded)
