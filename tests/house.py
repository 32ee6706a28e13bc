"""The laws of the house as functions of source text, so that each can be shown to fail. See ARCHITECTURE.md."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "pellucid"

ORDER = (
    "errors integers lazy files paths lock checksummed bars config cgroups machine streams text blocks models "
    "checkpoints trace edits generation tasks training view search model pipeline learning compat serve cli"
).split()
"""Rooms in the order of the data flow. Imports only look back."""

DOORS = {
    "tqdm": "bars",
    "tokenizers": "text",
    "sentencepiece": "text",
    "safetensors": "checkpoints",
    "huggingface_hub": "checkpoints",
    "gguf": "checkpoints",
    "faiss": "search",
    "rapidfuzz": "search",
    "sklearn": "training",
    "scipy": "training",
    "nervaluate": "training",
    "sacrebleu": "training",
    "tomli_w": "training",
    "filelock": "lock",
    "sqlite3": "search",
    "click": "cli",
    "rich_click": "cli",
    "resvg_py": "view",
    "http": "serve",
    "webbrowser": "serve",
    "transformers": "tasks",
    "onnx": "checkpoints",
    "google": "checkpoints",
    "jinja2": "text",
    "numba": "blocks",
    "llvmlite": "blocks",
    "elftools": "blocks",
    "sentence_transformers": "nowhere",
    "peft": "nowhere",
}
"""The only room that may import each outside library."""

WITHOUT_TORCH = (
    "errors.py",
    "config/",
    "checkpoints/families/",
    "checkpoints/family_page.py",
    "checkpoints/names.py",
    "cli/",
)
"""Facts and help must not import torch (at the top of the file; a command may import it when it runs)."""

REFERENCE_TENSOR_NAMES = (
    "embeddings.word_embeddings",
    "token_type_embeddings",
    "attention.self",
    "self_attn",
    "q_lin",
    "sa_layer_norm",
    "intermediate.dense",
    "encoder.layer",
    "c_attn",
    "DenseReluDense",
)
"""The reference's tensor names, which appear in checkpoints/families/ and nowhere else."""

TENSOR_CREATORS = {
    f"torch.{name}"
    for name in "arange as_tensor empty eye full linspace ones rand randint randn randperm tensor zeros".split()
}
"""Functions of PyTorch that create a tensor from no other."""


@dataclass(frozen=True)
class Import:
    """One import: the importing room, the imported module, the line, and whether it is at the top of the file."""

    room: str
    target: str
    line: int
    top: bool


def files() -> Iterator[tuple[str, str]]:
    """Every source file as (path below the package, text)."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a file."""
    return tuple(ast.walk(parsed(text)))


def room_of(path: str) -> str:
    return path.split("/")[0].removesuffix(".py")


def imports(path: str, text: str) -> list[Import]:
    """Every import of a file, including those inside functions; imports under TYPE_CHECKING do not count."""
    typing_only = {
        id(inner)
        for node in nodes(text)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    result = []
    for node in nodes(text):
        if id(node) in typing_only:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                folder = ["pellucid", *path.split("/")[:-1]]
                base = ".".join([*folder[: len(folder) - node.level + 1], base]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "pellucid" else [base]
        result += [Import(room_of(path), name, node.lineno, node.col_offset == 0) for name in names]
    return result


def forward_imports(path: str, text: str) -> list[str]:
    """Imports of a room that is later in the order, or not in it."""
    bad = []
    for item in imports(path, text):
        parts = item.target.split(".")
        if (
            parts[0] != "pellucid"
            or len(parts) < 2
            or room_of(path) in ("__init__", "__main__")
            or parts[1] == "__version__"
        ):
            continue
        here, there = item.room, parts[1]
        if here not in ORDER or there not in ORDER or ORDER.index(there) > ORDER.index(here):
            bad.append(f"{path}:{item.line} {here} -> {there}")
    return bad


def misplaced_library_imports(path: str, text: str) -> list[str]:
    """Outside libraries that are imported by the wrong room."""
    return [
        f"{path}:{item.line} {item.target}"
        for item in imports(path, text)
        if DOORS.get(item.target.split(".")[0], item.room) != item.room
    ]


def misplaced_torch_imports(path: str, text: str) -> list[str]:
    if not path.startswith(WITHOUT_TORCH):
        return []
    return [f"{path}:{i.line}" for i in imports(path, text) if i.top and i.target.split(".")[0] in ("torch", "numpy")]


def misplaced_transformers_imports(path: str, text: str) -> list[str]:
    """Imports of transformers outside `tasks/reference.py`, or at its top."""
    return [
        f"{path}:{i.line}"
        for i in imports(path, text)
        if i.target.split(".")[0] == "transformers" and (path != "tasks/reference.py" or i.top)
    ]


def reference_tensor_names(path: str, text: str) -> list[str]:
    """The reference's tensor names outside the family pages and the readers of foreign files."""
    if path.startswith(("checkpoints/families/", "checkpoints/convert/", "checkpoints/gguf/")):
        return []
    return [f"{path}: {word}" for word in REFERENCE_TENSOR_NAMES if word in text]


def tensors_without_device(path: str, text: str) -> list[str]:
    """Tensors created without a device, which would be on the caller's default device.

    Parameters that a module creates for itself are exempt: they are on the device on which the model is assembled.
    """
    calls = [node for node in nodes(text) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    own = {id(argument) for node in calls if ast.unparse(node.func) == "nn.Parameter" for argument in node.args}
    return [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in calls
        if ast.unparse(node.func) in TENSOR_CREATORS and id(node) not in own
        if all(keyword.arg != "device" for keyword in node.keywords)
    ]


def raw_torch_context_managers(path: str, text: str) -> list[str]:
    """PyTorch's own context managers for gradients and autocast, inside which a caller's autocast still applies."""
    if path == "machine.py":
        return []
    managers = {"torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled", "torch.autocast"}
    return [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in nodes(text)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in managers
    ]


def misplaced_config_imports(path: str, text: str) -> list[str]:
    """Imports of the config in blocks, and in models other than assemble.py."""
    if not path.startswith(("blocks/", "models/")) or path == "models/assemble.py":
        return []
    return [f"{path}:{i.line}" for i in imports(path, text) if i.target.startswith("pellucid.config")]


def foreign_attribute_assignments(path: str, text: str) -> list[str]:
    """`Stranger.name = ...` or `setattr(Stranger, ...)`, where Stranger was imported from another room."""
    foreign_names = {
        alias.asname or alias.name
        for node in nodes(text)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("pellucid.")
        and (node.module or "").split(".")[1] != room_of(path)
        for alias in node.names
    }
    bad = []
    for node in nodes(text):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id in foreign_names
            ):
                bad.append(f"{path}:{node.lineno} {target.value.id}.{target.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            first = node.args[0]
            if isinstance(first, ast.Name) and first.id in foreign_names:
                bad.append(f"{path}:{node.lineno} setattr({first.id})")
    return bad


def long_facade_methods(text: str, limit: int = 3) -> list[str]:
    """Methods of the facade with more than `limit` statements; a docstring does not count."""
    bad = []
    for node in nodes(text):
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    body = method.body[1:] if ast.get_docstring(method) is not None else method.body
                    if len(body) > limit:
                        bad.append(f"{method.name} has {len(body)}")
    return bad


def too_long(path: str, text: str, most_lines: int = 300, most_function: int = 80) -> list[str]:
    """Files and functions that are too long."""
    bad = [f"{path} has {text.count(chr(10))} lines"] if text.count("\n") > most_lines else []
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > most_function:
                bad.append(f"{path}: {node.name} has {length} lines")
    return bad


def undocumented(path: str, text: str) -> list[str]:
    """Files, public classes and public functions without a docstring; methods may be bare."""
    tree = parsed(text)
    bad = [] if ast.get_docstring(tree) else [f"{path} has no docstring"]
    for node in tree.body:
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef)
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
        ):
            bad.append(f"{path}:{node.lineno} {node.name}")
    return bad
