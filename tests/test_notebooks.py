"""The study notebooks run from their files, make no false claim, and end in a view that has their trace's values."""

import ast
import base64
import html
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.quick import few

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))

MISTAKES: dict[str, dict[str, tuple[str, str]]] = {
    "1_an_encoder_by_hand": {
        "rows-sum-to-1": ("to_one = real.sum(dim=-1)", "to_one = real.sum(dim=-2)"),
        "head-width": ("right = blocks.Attention(768, num_heads=12)", "right = blocks.Attention(768, 12, head_dim=12)"),
        "dropout-half": ("Dropout(model.config.hidden_dropout_prob)", "Dropout()"),
        "training-mode": ("    model.eval()\n", ""),
        "norm-place": ("normed = layer.attention_norm(middle)", "normed = middle"),
        "padding-mask": ("model(batch.input_ids, batch.attention_mask)", "model(batch.input_ids)"),
    },
    "2_time_flies": {
        "head-divides-stream": (
            "config.hidden_size % config.head_dim == 0",
            "config.head_dim % config.hidden_size == 0",
        ),
        "in-place": ("right = layer(stream, blocks.Pass())", "right = overwriting(layer, stream)"),
        "dropout-half": ("model.module.embeddings.dropout.train()", "torch.nn.Dropout()"),
        "training-mode": ("    classifier.eval()\n", ""),
    },
    "3_what_heads_see": {
        "heads-see-all": ("heard(table, 384)", "heard(lambda token: cut @ token, 384)"),
        "dropout-last": ('zeros["hidden"]', 'zeros["output"]'),
        "gelu-is-no-chance": ("equal(layer.feed_forward.activation(x), ", "equal(torch.nn.functional.dropout(x), "),
    },
    "4_from_a_sentence_to_an_answer": {
        "context-of-values": ("weights @ same_value, value[0]", "weights @ value, value[0]"),
    },
    "5_the_whole_machine": {
        "norm-gain-bias": ("plain(x) * gain + bias", "plain(x)"),
        "cross-attention": ('points = [f"decoder.layers.0.cross_', 'points = [f"encoder.layers.0.'),
        "natural-log": ("torch.allclose(loss, nats", "torch.allclose(loss, bits"),
        "all-places-at-once": ("writer(ids[:, : n + 1])", "writer(ids[:, n : n + 1])"),
        "nucleus": ("order[:reached]", "order[reached:]"),
    },
}
"""For each correction: the text of a claim in the cell, and a wrong version of it, which must fail."""

REQUIRED_CORRECTIONS = set(
    """padding-mask training-mode dropout-half in-place head-width head-divides-stream rows-sum-to-1 heads-see-all
    dropout-last cross-attention nucleus norm-gain-bias natural-log""".split()
)
"""The corrections that the notebooks must contain."""


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def corrections(notebook: Any) -> dict[str, str]:
    """The sources of the cells that correct a common mistake, by name."""
    return {tags(cell)[1]: cell.source for cell in code_cells(notebook) if tags(cell)[:1] == ["correction"]}


class Kernel:
    """A Jupyter kernel in its own empty folder. Executed cells keep their outputs."""

    def __init__(self, folder: Path) -> None:
        notebook, resources = (
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell()]),
            {"metadata": {"path": str(folder)}},
        )
        self.client = NotebookClient(notebook, kernel_name="python3", timeout=300, resources=resources)

    def run(self, cell: Any) -> None:
        cell = nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell
        self.client.execute_cell(cell, 0)


def with_mistake(source: str, mistake: tuple[str, str]) -> str:
    assert source.count(mistake[0]) == 1, f"{mistake[0]!r} occurs {source.count(mistake[0])} times in the cell"
    return source.replace(*mistake)


def execute(kernel: Kernel, notebook: Any, mistakes: dict[str, tuple[str, str]]) -> None:
    """Executes all cells; before a correction its wrong version, which must fail and leaves the random state alone."""
    for cell in code_cells(notebook):
        if tags(cell)[:1] == ["correction"]:
            kernel.run("_random_state = torch.get_rng_state()")
            with pytest.raises(CellExecutionError, match="AssertionError"):
                kernel.run(with_mistake(cell.source, mistakes[tags(cell)[1]]))
            kernel.run("torch.set_rng_state(_random_state)")
        kernel.run(cell)


@pytest.mark.parametrize("path", few(NOTEBOOKS, NOTEBOOKS[:1]), ids=lambda path: path.stem)
def test_notebook_runs_and_mistakes_fail_its_asserts(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PELLUCID_SHARED", raising=False)  # users who open the notebook have no such folder
    notebook, kernel = nbformat.read(path, as_version=4), Kernel(tmp_path)
    last = code_cells(notebook)[-1]
    with kernel.client.setup_kernel():
        execute(kernel, notebook, MISTAKES.get(path.stem, {}))
        names = viewed_traces(last.source)
        kernel.run("import numpy\n" + "\n".join(map(saving_code, names)))
    page = page_of(last)
    manifest = json.loads(re.search(r'class="pellucid-manifest">(.*?)</script>', page, re.DOTALL)[1])
    for name, trace_entry in zip(names, (manifest, manifest["other"])):
        traced = dict(np.load(tmp_path / f"{name}.npz"))
        assert_page_matches_trace(page, manifest["blocks"], trace_entry, traced)
        point = next(point for point in traced if point.endswith("attention.weights"))
        with pytest.raises(AssertionError):
            assert_page_matches_trace(page, manifest["blocks"], trace_entry, {**traced, point: traced[point] + 1e-4})


def viewed_traces(source: str) -> list[str]:
    """The names of the traces in `pellucid.view(trace, ...)`, which must be the cell's last expression."""
    call = ast.parse(source).body[-1]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call), source
    assert ast.unparse(call.value.func) == "pellucid.view"
    return [ast.unparse(argument) for argument in call.value.args]


def saving_code(name: str) -> str:
    return (
        f"numpy.savez('{name}.npz', tokens={name}.tokens, "
        f"**{{n: {name}[n].numpy() for n in {name}.names() if 'attention' in n}})"
    )


def page_of(cell: Any) -> str:
    """The page that the cell shows, taken out of its frame."""
    outputs = [output for output in cell.outputs if "text/html" in output.get("data", {})]
    assert len(outputs) == 1, "the last cell shows no view"
    frame = re.search(r'<iframe[^>]*? srcdoc="([^"]*)"', outputs[0]["data"]["text/html"], re.DOTALL)
    assert frame, "the view is no frame that holds its own page"
    return html.unescape(frame[1])


def assert_page_matches_trace(
    page: str, facts: dict[str, Any], trace_entry: dict[str, Any], traced: dict[str, np.ndarray]
) -> None:
    """Checks that tokens, queries and keys are the trace's, and the weights too when computed by the page's own recipe.

    trace_entry: the page's entry for one trace.  facts: the entries of all its blocks.
    """
    tokens = [token["text"] for token in trace_entry["sequences"][0]["tokens"]]
    assert tokens == [str(token).replace("Ġ", " ") for token in traced["tokens"]]
    names = {name.removesuffix(".weights") for name in traced if name.endswith("attention.weights")}
    assert names and {attention["name"] for attention in trace_entry["attentions"]} == names
    for attention in trace_entry["attentions"]:
        query, key = (block_of_page(page, facts, attention[part]) for part in ("query", "key"))
        for part, stored in (("query", query), ("key", key)):
            np.testing.assert_allclose(stored, traced[f"{attention['name']}.{part}"][0], rtol=0, atol=1e-6)
        recipe = attention["recipe"]
        if "rotation" in recipe:
            angles = block_of_page(page, facts, recipe["rotation"])
            query, key = rotated(query, angles), rotated(key, angles)
        weights = attention_weights(query, key, recipe["scale"], recipe["mask"])
        np.testing.assert_allclose(weights, traced[f"{attention['name']}.weights"][0], rtol=0, atol=1e-5)


def rotated(vectors: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotates each pair of elements (c, c + size/2) as one complex number."""
    half = vectors.shape[-1] // 2
    pairs = (vectors[..., :half] + 1j * vectors[..., half:]) * (angles[0] + 1j * angles[1])
    return np.concatenate((pairs.real, pairs.imag), axis=-1)


def attention_weights(query: np.ndarray, key: np.ndarray, scale: float, mask: str) -> np.ndarray:
    """Softmax of the scaled products; a causal mask keeps those on and below the diagonal."""
    scores = query @ key.repeat(len(query) // len(key), axis=0).swapaxes(-1, -2) * scale
    if mask == "causal":
        scores = np.where(np.tri(*scores.shape[1:], dtype=bool), scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def block_of_page(page: str, facts: dict[str, Any], name: str) -> np.ndarray:
    """One block of numbers of the page, as float64."""
    fact = facts[name]
    raw = base64.b64decode(re.search(rf'data-block="{re.escape(name)}">([^<]*)</script>', page)[1])
    assert fact["dtype"] == "float32", f"{name}: so short a text is stored exactly"
    numbers = zlib.decompress(raw) if fact.get("deflated") else raw
    return np.frombuffer(numbers, "<f4").reshape(fact["shape"]).astype(np.float64)


# -- what is stored ---------------------------------------------------------------------------------------------------


def faults(notebook: Any) -> Iterator[str]:
    """What a stored notebook must not contain."""
    for cell in notebook.cells:
        if re.search(r"(?<![\w.:/])/(?:\w+/)+\w|[A-Z]:\\|file://|\bshared/", cell.source):
            yield f"{cell.id}: a path of some machine"
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            yield f"{cell.id}: outputs are stored"
        if tags(cell) and not re.search(r"^ *assert ", cell.source, re.MULTILINE):
            yield f"{cell.id}: an answer or a correction without an assert"
        if "answer" in tags(cell) and not cell.metadata.get("jupyter", {}).get("source_hidden"):
            yield f"{cell.id}: an answer that is not folded"
    if sum("answer" in tags(cell) for cell in code_cells(notebook)) < 3:
        yield "fewer than three exercises with answers"
    if set(notebook.metadata) != {"kernelspec", "language_info"}:
        yield "more metadata than a notebook needs"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_is_clean(path: Path) -> None:
    contents = nbformat.read(path, as_version=4)
    nbformat.validate(contents)
    assert list(faults(contents)) == []
    assert max(len(cell.source.splitlines()) for cell in contents.cells) <= 40, "one idea to a cell"


def test_faults_of_a_notebook_are_found() -> None:
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    for source in ("open('/home/me/file')", "C:\\data", "'../shared/data'", "file:///etc/x"):
        notebook.cells[1].source = source
        assert any("path" in fault for fault in faults(notebook)), source
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="x")]
    notebook.cells[-2].metadata["tags"] = ["answer"]
    assert len(list(faults(notebook))) >= 4


def test_every_correction_exists_with_its_mistake() -> None:
    corrections_by_notebook = {path.stem: corrections(nbformat.read(path, as_version=4)) for path in NOTEBOOKS}
    assert {notebook: set(found) for notebook, found in corrections_by_notebook.items() if found} == {
        s: set(f) for s, f in MISTAKES.items()
    }
    assert {name for found in corrections_by_notebook.values() for name in found} >= REQUIRED_CORRECTIONS and len(
        REQUIRED_CORRECTIONS
    ) == 13
    for notebook, mistakes in MISTAKES.items():
        for name, mistake in mistakes.items():
            assert (
                with_mistake(corrections_by_notebook[notebook][name], mistake)
                != corrections_by_notebook[notebook][name]
            )
