"""A trace as a safetensors file: tensors by name, and a manifest of what was read.

The manifest has a version, and digests of itself and of every tensor, so that damaged or edited files are detected.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid import __version__
from pellucid.checkpoints.bundle import read_bundle, write_bundle
from pellucid.checkpoints.facts import check_layer_count
from pellucid.checkpoints.tensors import TensorSpan
from pellucid.config import Config
from pellucid.config.plain import from_json_value, to_json_value
from pellucid.errors import CorruptFileError, InputError, join_names
from pellucid.files import unique_keys
from pellucid.paths import path_of, target_of
from pellucid.text.truncation import MAX_CHARACTERS
from pellucid.trace.aliases import resolve
from pellucid.trace.points import points
from pellucid.trace.reading import Reading
from pellucid.trace.trace import EditRecord, Trace

FORMAT, VERSION = "pellucid-trace", 4
DIGEST = f"{FORMAT}-digest"
_GRADIENT = "gradients/"

_FIELDS: dict[str, Any] = {
    "format": str,
    "version": int,
    "model": str,
    "parameters": int,
    "config": Config,
    "rows": list[Reading],
    "edits": tuple[EditRecord, ...],
    "padding": str,
    "digests": dict[str, str],
    "made_by": str,
}


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Writes a trace to one file. See `Trace.save`."""
    tensors = trace.points | {_GRADIENT + name: tensor for name, tensor in trace.gradients.items()}
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "model": trace.model,
        "parameters": trace.parameters,
        "config": to_json_value(trace.config),
        "rows": to_json_value(trace.rows),
        "edits": to_json_value(trace.edits),
        "padding": trace.padding,
        "digests": {name: tensor_digest(tensor) for name, tensor in tensors.items()},  # in the order of the pass
        "made_by": f"pellucid {__version__}",
    }
    text = json.dumps(manifest, separators=(",", ":"))
    note = {FORMAT: text, DIGEST: _text_digest(text)}
    return write_bundle(tensors, note, target_of(path))


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads a trace written by `Trace.save`; every number is restored bit for bit, on the CPU.

    Raises NotFoundError, CorruptFileError (truncated, edited, or with inconsistent parts) and InputError (another
    format, or another version).
    """
    path = path_of(path)
    spans, note = read_bundle(path)
    manifest = _read_manifest(path, note)
    if mismatched := sorted(spans.keys() ^ manifest["digests"].keys()):
        raise CorruptFileError(f"{path}: tensors and manifest hold different names: {join_names(mismatched)}")
    tensors = {name: _read_tensor(path, name, spans[name], digest) for name, digest in manifest["digests"].items()}
    trace = Trace(
        points={name: tensor for name, tensor in tensors.items() if not name.startswith(_GRADIENT)},
        rows=tuple(manifest["rows"]),
        config=manifest["config"],
        model=manifest["model"],
        parameters=manifest["parameters"],
        gradients={name.removeprefix(_GRADIENT): t for name, t in tensors.items() if name.startswith(_GRADIENT)},
        edits=manifest["edits"],
        padding=manifest["padding"],
    )
    _check_rows(path, trace)
    _check_edits(path, trace)
    _check_shapes(path, trace)
    return trace


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and data."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    if tensor.numel():
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- reading, trusting nothing ----------------------------------------------------------------------------------------


def _read_manifest(path: Path, note: Mapping[str, Any]) -> dict[str, Any]:
    text = note.get(FORMAT)
    if not isinstance(text, str):
        raise InputError(f"{path} is not a trace of pellucid: it holds tensors without a manifest named {FORMAT!r}")
    try:
        manifest = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} has a manifest that is not JSON: {str(error)[:120]}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CorruptFileError(f"{path} has a manifest without the format {FORMAT!r}")
    version = manifest.get("version")
    if type(version) is not int or version < 1:
        raise CorruptFileError(f"{path}: the manifest's version is {str(version)[:40]!r}, expected a whole number")
    if version != VERSION:
        advice = "upgrade pellucid" if version > VERSION else "record the trace again"
        raise InputError(f"{path} is of version {version}, and this pellucid reads version {VERSION}: {advice}")
    if note.get(DIGEST) != _text_digest(text):
        raise CorruptFileError(f"{path} has a manifest that was changed after it was written: record it again")
    return _read_fields(path, manifest)


def _read_fields(path: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    wrong = [*(name for name in _FIELDS if name not in manifest), *(name for name in manifest if name not in _FIELDS)]
    if wrong:
        raise CorruptFileError(f"{path} has a manifest whose fields are not those of a trace: {join_names(wrong)}")
    found = {}
    for name, kind in _FIELDS.items():
        try:
            found[name] = from_json_value(manifest[name], kind)
            if kind is Config:
                check_layer_count(found[name])  # before points are listed for each layer
        except ValueError as error:
            raise CorruptFileError(f"{path}: {name} of the manifest: {error}") from error
    return found


def _read_tensor(path: Path, name: str, span: TensorSpan, expected_digest: str) -> Tensor:
    tensor = span.read()
    if tensor_digest(tensor) != expected_digest:
        raise CorruptFileError(f"{path}: {name!r} is not what was written (its digest differs): record it again")
    return tensor


def _check_rows(path: Path, trace: Trace) -> None:
    if not trace.rows or trace.padding not in ("left", "right"):
        raise CorruptFileError(f"{path} has a manifest with no rows, or with padding on neither side")
    if trace.parameters < 0:
        raise CorruptFileError(f"{path}: parameters of the manifest is {trace.parameters}, expected none or more")
    for i, row in enumerate(trace.rows):
        if not row.tokens or (trace.config.decoder is not None and not row.target_tokens):
            raise CorruptFileError(f"{path}: row {i} of the manifest has no tokens, and a model reads at least one")
        lengths = {len(fact) for fact in (row.tokens, row.ids, row.segments, row.offsets, row.special)}
        pairs = len(row.target_tokens) == len(row.target_ids) and len(row.before) == len(row.before_ids)
        if len(lengths) > 1 or not pairs:
            raise CorruptFileError(f"{path}: row {i} of the manifest has unequal numbers of tokens, ids and positions")
        ids = (*row.ids, *row.target_ids, *row.before_ids)
        offsets_fit = all(0 <= start <= end <= MAX_CHARACTERS for start, end in row.offsets)
        if not offsets_fit or not all(0 <= number < 2**31 for number in ids):
            raise CorruptFileError(f"{path}: row {i} of the manifest has ids or positions that no text has")


def _check_edits(path: Path, trace: Trace) -> None:
    for edit in trace.edits:
        try:
            resolve(edit.name, trace.config)
        except InputError as error:
            raise CorruptFileError(f"{path}: an edit of the manifest is of no point: {error}") from error


def _check_shapes(path: Path, trace: Trace) -> None:
    """Checks that every tensor is a point of this model, with the sizes that its facts and texts imply."""
    all_points = points(trace.config)
    for name, tensor in [*trace.points.items(), *trace.gradients.items()]:
        if name not in all_points:
            raise CorruptFileError(f"{path}: a model of these facts has no point {name[:80]!r}")
        axes, sizes = all_points[name], all_points.sizes(name)
        expected = [sizes.get(axis) or _length(trace, name, axis) for axis in axes]
        shape = list(tensor.shape)
        shared = len(shape) == len(axes) and shape[0] == 1  # one value that all texts share
        if shape != expected and not (shared and shape[1:] == expected[1:]):
            raise CorruptFileError(f"{path}: {name} has shape {shape}, and its texts and model need {expected}")


def _length(trace: Trace, name: str, axis: str) -> int:
    if axis == "batch":
        return len(trace.rows)
    return max(trace.span(name, axis, i)[1] for i in range(len(trace.rows)))
