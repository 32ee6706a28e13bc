"""A trace as a file: it is restored bit for bit, and any damage raises one clear error."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.checkpoints.bundle import read_bundle, write_bundle
from pellucid.checkpoints.families import families
from pellucid.config import Config
from pellucid.config.plain import from_json_value, to_json_value
from pellucid.errors import CorruptFileError, InputError, NotFoundError, PellucidError
from pellucid.trace import Trace
from pellucid.trace.stored import DIGEST, FORMAT, _text_digest, tensor_digest
from tests.trace.odd_sized_models import FAMILIES, FAMILIES_AND_HEADS, config_of, model_of

TEXT = "time flies like an </script> \N{ARABIC LETTER SHEEN} arrow"


def assert_equal_traces(actual: Trace, expected: Trace) -> None:
    assert actual.names() == expected.names()
    assert (actual.rows, actual.config, actual.model, actual.parameters) == (
        (expected.rows, expected.config, expected.model, expected.parameters)
    )
    assert (actual.edits, actual.padding) == (expected.edits, expected.padding)
    assert actual.config.inert == expected.config.inert
    for values, other in ((actual.points, expected.points), (actual.gradients, expected.gradients)):
        assert list(values) == list(other)
        for name in other:
            assert values[name].dtype == other[name].dtype and values[name].shape == other[name].shape
            assert tensor_digest(values[name]) == tensor_digest(other[name])
            assert torch.equal(values[name].nan_to_num(7.0), other[name].nan_to_num(7.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_restored_bit_for_bit(family: str, minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of(family, minilm.tokenizer).trace([TEXT, "hi"])
    assert_equal_traces(pellucid.open_trace(trace.save(tmp_path / "a.trace")), trace)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_every_dtype_is_restored(dtype: str, minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of("llama", minilm.tokenizer, dtype=dtype).trace("like arrows", after=TEXT)
    assert_equal_traces(pellucid.open_trace(trace.save(tmp_path / "a.trace")), trace)
    assert trace["norm.output"].dtype == getattr(torch, dtype)


def test_gradients_rows_and_nan_are_restored(minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = minilm.trace([TEXT, "hi"], gradients_of=lambda output: output.last_hidden_state[0, 0, 0])
    trace["pooled"][0, 0] = torch.nan
    for one in (trace, trace.row(1)):
        assert_equal_traces(pellucid.open_trace(one.save(tmp_path / "a.trace")), one)
    left = model_of("gpt2", minilm.tokenizer).trace([TEXT, "hi"], padding="left")
    opened = pellucid.open_trace(left.save(tmp_path / "a.trace"))
    assert_equal_traces(opened.row(1), left.row(1))


def test_file_is_replaced_atomically(minilm: pellucid.Model, tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    before = os.umask(0o077)
    try:
        minilm.trace("hi", keep="pooled").save(path)
    finally:
        os.umask(before)
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"] and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match=r"cannot write .*a\.trace: there is no folder '.*nowhere'"):
        minilm.trace("hi", keep="pooled").save(tmp_path / "nowhere" / "a.trace")
    with pytest.raises(InputError, match="is a folder"):
        minilm.trace("hi", keep="pooled").save(tmp_path)
    with pytest.raises(InputError, match="too many for the header of a file"):
        write_bundle({}, {"long": "x" * 9_000_000}, path)
    assert pellucid.open_trace(path).tokens == ["[CLS]", "hi", "[SEP]"] and [
        file.name for file in tmp_path.iterdir()
    ] == ["a.trace"]


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(minilm: pellucid.Model, tmp_path: Path) -> Path:
    return minilm.trace(["hi there", "hi"], keep=["*weights", "pooled"]).save(tmp_path / "a.trace")


def test_truncated_changed_or_missing_files_are_refused(stored: Path) -> None:
    data = stored.read_bytes()
    for length in (0, 5, 100, len(data) // 2, len(data) - 1):
        stored.write_bytes(data[:length])
        with pytest.raises(CorruptFileError, match=r"a\.trace"):
            pellucid.open_trace(stored)
    stored.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match="is not what was written"):
        pellucid.open_trace(stored)
    stored.write_bytes(data.replace(b"there", b"their"))
    with pytest.raises(CorruptFileError, match="a manifest that was changed after it was written"):
        pellucid.open_trace(stored)
    with pytest.raises(NotFoundError, match="does not exist"):
        pellucid.open_trace(stored.with_name("b.trace"))
    with pytest.raises(InputError, match="is a folder"):
        pellucid.open_trace(stored.parent)
    with pytest.raises(PellucidError, match="/proc/self/mem"):  # opens but cannot be read; exists only on Linux
        pellucid.open_trace("/proc/self/mem")


def test_other_files_are_refused(stored: Path, minilm_folder: Path) -> None:
    with pytest.raises(InputError, match="is not a trace of pellucid"):
        pellucid.open_trace(minilm_folder / "model.safetensors")
    stored.write_text("time flies")
    with pytest.raises(CorruptFileError):
        pellucid.open_trace(stored)


def write_altered(path: Path, change: Callable[[dict[str, Any]], object], **tensors: torch.Tensor) -> None:
    """Writes the file with another manifest and matching digests, as an attacker would."""
    spans, note = read_bundle(path)
    values = {name: span.read() for name, span in spans.items()} | {k.replace("__", "."): v for k, v in tensors.items()}
    manifest = json.loads(note[FORMAT])
    manifest["digests"] = {name: tensor_digest(tensor) for name, tensor in values.items()}
    text = change(manifest)
    text = text if isinstance(text, str) else json.dumps(manifest)
    write_bundle(values, {FORMAT: text, DIGEST: _text_digest(text)}, path)


def setting(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Returns a change that sets the last argument at the path of the others."""

    def change(manifest: dict[str, Any]) -> None:
        *parents, last, value = path
        target: Any = manifest
        for step in parents:
            target = target[step]
        target[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda m: "{", CorruptFileError, "a manifest that is not JSON"),
        (lambda m: "[" * 100_000, CorruptFileError, "a manifest that is not JSON"),
        (
            lambda m: '{"format": 1, "format": 1}',
            CorruptFileError,
            "a manifest that is not JSON: 'format' appears twice",
        ),
        (lambda m: "[]", CorruptFileError, "a manifest without the format"),
        (setting("format", "other"), CorruptFileError, "a manifest without the format"),
        (setting("version", 5), InputError, "is of version 5, and this pellucid reads version 4: upgrade pellucid"),
        (
            setting("version", 3),
            InputError,
            "is of version 3, and this pellucid reads version 4: record the trace again",
        ),
        (setting("version", "1"), CorruptFileError, "the manifest's version is '1'"),
        (setting("version", True), CorruptFileError, "the manifest's version is 'True'"),
        (setting("more", 1), CorruptFileError, "whose fields are not those of a trace: more"),
        (lambda m: m.pop("rows") and None, CorruptFileError, "whose fields are not those of a trace: rows"),
        (setting("rows", []), CorruptFileError, "no rows"),
        (setting("rows", {}), CorruptFileError, "rows of the manifest: found '{}', expected list"),
        (setting("rows", 0, "facts", "tokens", 3), CorruptFileError, "rows of the manifest: tokens: found '3'"),
        (setting("rows", 0, "facts", "ids", 0, "x"), CorruptFileError, "ids: found 'x', expected int"),
        (setting("rows", 0, "facts", "offsets", 0, [1]), CorruptFileError, "offsets: found '.1.', expected tuple"),
        (
            setting("rows", 0, "facts", "ids", []),
            CorruptFileError,
            "row 0 of the manifest has unequal numbers of tokens",
        ),
        (setting("rows", 0, "facts", "colour", 3), CorruptFileError, "a Reading has no 'colour'"),
        (setting("parameters", 1.5), CorruptFileError, "parameters of the manifest: found '1.5', expected int"),
        (setting("parameters", -5), CorruptFileError, "parameters of the manifest is -5, expected none or more"),
        (
            setting("rows", 1, "facts", "ids", 0, 10**30),
            CorruptFileError,
            "row 1 of the manifest has ids or positions th",
        ),
        (
            setting("rows", 0, "facts", "offsets", 0, [10**12, -5]),
            CorruptFileError,
            "row 0 of the manifest has ids or pos",
        ),
        (
            setting("config", "facts", "num_hidden_layers", 10**8),
            CorruptFileError,
            "config .* 100000000, expected at most",
        ),
        (setting("padding", "up"), CorruptFileError, "padding on neither side"),
        (
            setting("config", "facts", "norm", "kind", "Learned"),
            CorruptFileError,
            "norm: .* expected one of LayerNorm, RM",
        ),
        (setting("config", "facts", "num_attention_heads", 7), CorruptFileError, "cannot be divided evenly among"),
        (
            setting("config", "facts", "num_attention_heads", 6),
            CorruptFileError,
            r"has shape \[2, 12, 4, 4\], .* \[2, 6, ",
        ),
        (
            setting("config", "facts", "num_hidden_layers", 2),
            CorruptFileError,
            "has no point 'layers.2.attention.weights'",
        ),
        (setting("config", "facts", "dropout", "kind", "\0\x1b"), CorruptFileError, r"dropout: found a \\x00\\x1b, ex"),
        (setting("config", "facts", "inert", 3), CorruptFileError, "inert: found '3', expected dict"),
        (
            setting("edits", [{"kind": "EditRecord", "facts": {"name": "x", "change": "zero()"}}]),
            CorruptFileError,
            "an edit of the manifest is of no point: no point is called 'x'",
        ),
        (lambda m: m["digests"].pop("pooled") and None, CorruptFileError, "hold different names: pooled"),
        (setting("digests", "pooled", 3), CorruptFileError, "digests of the manifest|is not what was written"),
        (lambda m: m["rows"].append(m["rows"][0]), CorruptFileError, r"has shape \[2, .* need \[3, "),
    ],
)
def test_invalid_manifests_are_refused(change: Any, kind: type[PellucidError], message: str, stored: Path) -> None:
    write_altered(stored, change)
    with pytest.raises(kind, match=message):
        pellucid.open_trace(stored)


@pytest.mark.parametrize(
    "facts", [("tokens", "ids", "segments", "offsets", "special"), ("target_tokens", "target_ids")]
)
def test_rows_without_tokens_are_refused(facts: tuple[str, ...], minilm: pellucid.Model, tmp_path: Path) -> None:
    path = model_of("t5", minilm.tokenizer).trace("hi there", keep="*norm.output").save(tmp_path / "a.trace")
    write_altered(path, lambda m: m["rows"][0]["facts"].update({fact: [] for fact in facts}))
    with pytest.raises(CorruptFileError, match="row 0 of the manifest has no tokens, and a model reads at least one"):
        pellucid.open_trace(path)


def test_tensors_of_wrong_shape_are_refused(stored: Path) -> None:
    write_altered(stored, lambda m: None, pooled=torch.zeros(2, 5))
    with pytest.raises(CorruptFileError, match=r"pooled has shape \[2, 5\], and its texts and model need \[2, 384\]"):
        pellucid.open_trace(stored)
    write_altered(stored, lambda m: None, pooled=torch.zeros(1, 5))
    with pytest.raises(CorruptFileError, match=r"pooled has shape \[1, 5\], and its texts and model need \[2, 384\]"):
        pellucid.open_trace(stored)
    write_altered(stored, lambda m: None, pooled=torch.zeros(2, 384), pooler=torch.zeros(1))
    with pytest.raises(CorruptFileError, match="a model of these facts has no point 'pooler'"):
        pellucid.open_trace(stored)


def test_altered_but_valid_files_are_read(stored: Path) -> None:
    write_altered(stored, setting("model", "another"))
    assert pellucid.open_trace(stored).model == "another"


# -- facts as plain values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "head"), FAMILIES_AND_HEADS, ids=[f"{f}-{h.name if h else 'body'}" for f, h in FAMILIES_AND_HEADS]
)
def test_config_is_restored(family: str, head: Any) -> None:
    config = config_of(family, head)
    assert from_json_value(json.loads(json.dumps(to_json_value(config))), Config) == config


def test_defaults_may_be_omitted() -> None:
    config = families()["bert"].defaults
    value = to_json_value(config)
    del value["facts"]["pooler"]
    assert from_json_value(value, Config) == config.replace(pooler=False)
    del value["facts"]["family"]
    with pytest.raises(ValueError, match="a Config needs 'family', which is missing"):
        from_json_value(value, Config)
