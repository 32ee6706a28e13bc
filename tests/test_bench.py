"""The benchmarks' sides, as far as they can be judged without running: each can be made."""

import ast
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def unfinished(texts: list[str]) -> dict[str, set[str]]:
    """Classes that nobody derives from, and the abstract methods that they still have."""
    found = [one for text in texts for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ClassDef)]
    classes = {one.name: one for one in found}
    bases = {one.name: [ast.unparse(base).partition("[")[0] for base in one.bases] for one in found}

    def open_methods(name: str) -> set[str]:
        own = [one for one in classes[name].body if isinstance(one, ast.FunctionDef)]
        abstract = {one.name for one in own if "abstractmethod" in map(ast.unparse, one.decorator_list)}
        above = {method for base in bases[name] if base in classes for method in open_methods(base)}
        return abstract | (above - {one.name for one in own})

    parents = {base for several in bases.values() for base in several}
    return {name: rest for name in classes.keys() - parents if (rest := open_methods(name))}


def test_every_side_can_be_made() -> None:
    assert not unfinished([path.read_text(encoding="utf-8") for path in BENCH.rglob("*.py")])


@pytest.mark.parametrize(("body", "left"), [("pass", {"run"}), ("def run(self): return 1", set())])
def test_one_that_cannot_be_made_is_found(body: str, left: set[str]) -> None:
    text = "class A(ABC):\n    @abstractmethod\n    def run(self): ...\n\nclass B(A):\n    "
    assert unfinished([text + body]).get("B", set()) == left
