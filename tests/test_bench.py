"""The benchmarks' sides, checked without running them: each can be instantiated."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
Found = dict[str, ast.ClassDef]


def unfinished(texts: Iterable[str]) -> list[str]:
    """Methods that are still abstract in a class without subclasses, as "class.method"."""
    files: list[Found] = [
        {one.name: one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.ClassDef)} for text in texts
    ]
    everywhere = {name: (one, file) for file in files for name, one in file.items()}

    def base_classes(one: ast.ClassDef, file: Found) -> list[tuple[ast.ClassDef, Found]]:
        names = [ast.unparse(base).partition("[")[0] for base in one.bases]
        known = [(file[name], file) if name in file else everywhere.get(name) for name in names]
        return [base for base in known if base is not None]

    def open_methods(one: ast.ClassDef, file: Found) -> set[str]:
        own = [method for method in one.body if isinstance(method, ast.FunctionDef)]
        abstract = {method.name for method in own if "abstractmethod" in map(ast.unparse, method.decorator_list)}
        owed = {method for base in base_classes(one, file) for method in open_methods(*base)}
        return abstract | (owed - {method.name for method in own})

    parents = [base for file in files for one in file.values() for base, _ in base_classes(one, file)]
    last = [(one, file) for file in files for one in file.values() if one not in parents]
    return [f"{one.name}.{method}" for one, file in last for method in sorted(open_methods(one, file))]


def test_every_side_can_be_instantiated() -> None:
    assert not unfinished(path.read_text(encoding="utf-8") for path in sorted(BENCH.rglob("*.py")))


@pytest.mark.parametrize(("body", "expected"), [("pass", ["B.run"]), ("def run(self): return 1", [])])
def test_abstract_methods_of_a_side_are_found(body: str, expected: list[str]) -> None:
    above = "class A(ABC):\n    @abstractmethod\n    def run(self): ...\n"
    assert unfinished([above, f"from a import A\nclass B(A):\n    {body}"]) == expected
