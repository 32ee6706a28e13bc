"""docs/tour.md runs from top to bottom, and its code contains no arithmetic of its own."""

import ast
import re
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[1] / "docs" / "tour.md"
FORBIDDEN = {"matmul", "bmm", "mm", "einsum", "softmax", "scaled_dot_product_attention", "linear", "layer_norm"}


def code_of(page: str) -> str:
    """The page's Python code with everything else blanked, so that line numbers are those of the page."""
    inside, lines = False, []
    for line in page.splitlines():
        fence = line.startswith("```")
        lines.append(line if inside and not fence else "")
        inside = (line == "```python") if fence and not inside else inside and not fence
    return "\n".join(lines)


def arithmetic_in(code: str) -> list[str]:
    """The forbidden names and operators in the code."""
    result = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            result.append(f"line {node.lineno}: @")
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
        if name in FORBIDDEN:
            result.append(f"line {node.lineno}: {name}")
    return result


@pytest.mark.slow
def test_code_of_the_tour_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOUR.parents[1])  # the page reads an example by a relative path
    code = code_of(TOUR.read_text(encoding="utf-8"))
    assert len(re.findall(r"^\s*assert ", code, re.MULTILINE)) >= 35
    exec(compile(code, str(TOUR), "exec"), {"__name__": "tour"})


def test_code_of_the_tour_has_no_matrix_products() -> None:
    assert arithmetic_in(code_of(TOUR.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("line", ["a @ b", "torch.softmax(a, -1)", "x.matmul(y)", "torch.bmm(a, b)", "a @= b"])
def test_matrix_products_are_found(line: str) -> None:
    assert arithmetic_in(line)
