"""A trace as a file: it comes back bit for bit, and any damage raises one clear error."""

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
from pellucid.trace import EditSaid, Trace
from pellucid.trace.stored import DIGEST, FORMAT, _text_digest, tensor_digest
from tests.trace.odd_sized_models import FAMILIES, HEADS, config_of, model_of

TEXT = "time flies like an </script> \N{ARABIC LETTER SHEEN} arrow"


def equal(found: Trace, wanted: Trace) -> None:
    assert found.names() == wanted.names()
    assert (found.rows, found.config, found.model, found.parameters) == (
        (wanted.rows, wanted.config, wanted.model, wanted.parameters)
    )
    assert (found.edits, found.padding) == (wanted.edits, wanted.padding)
    assert found.config.inert == wanted.config.inert
    for held, other in ((found.points, wanted.points), (found.gradients, wanted.gradients)):
        assert list(held) == list(other)
        for name in other:
            assert held[name].dtype == other[name].dtype and held[name].shape == other[name].shape
            assert tensor_digest(held[name]) == tensor_digest(other[name])
            assert torch.equal(held[name].nan_to_num(7.0), other[name].nan_to_num(7.0))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_comes_back_bit_for_bit(family: str, minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of(family, minilm.tokenizer).trace([TEXT, "hi"])
    equal(pellucid.open_trace(trace.save(tmp_path / "a.trace")), trace)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_every_kind_of_number_comes_back(dtype: str, minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = model_of("llama", minilm.tokenizer, dtype=dtype).trace("like arrows", after=TEXT)
    equal(pellucid.open_trace(trace.save(tmp_path / "a.trace")), trace)
    assert trace["norm.output"].dtype == getattr(torch, dtype)


def test_gradients_rows_and_numbers_that_are_none(minilm: pellucid.Model, tmp_path: Path) -> None:
    trace = minilm.trace([TEXT, "hi"], gradients_of=lambda output: output.last_hidden_state[0, 0, 0])
    trace["pooled"][0, 0] = torch.nan
    for one in (trace, trace.row(1)):
        equal(pellucid.open_trace(one.save(tmp_path / "a.trace")), one)
    left = model_of("gpt2", minilm.tokenizer).trace([TEXT, "hi"], padding="left")
    opened = pellucid.open_trace(left.save(tmp_path / "a.trace"))
    equal(opened.row(1), left.row(1))


def test_the_file_is_replaced_whole_or_not_at_all(minilm: pellucid.Model, tmp_path: Path) -> None:
    path = tmp_path / "a.trace"
    before = os.umask(0o077)
    try:
        minilm.trace("hi", keep="pooled").save(path)
    finally:
        os.umask(before)
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"] and path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="cannot write"):
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


def test_cut_short_edited_or_absent(stored: Path) -> None:
    whole = stored.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        stored.write_bytes(whole[:length])
        with pytest.raises(CorruptFileError, match=r"a\.trace"):
            pellucid.open_trace(stored)
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptFileError, match="is not what was written"):
        pellucid.open_trace(stored)
    stored.write_bytes(whole.replace(b"there", b"their"))
    with pytest.raises(CorruptFileError, match="a manifest that was changed after it was written"):
        pellucid.open_trace(stored)
    with pytest.raises(NotFoundError, match="does not exist"):
        pellucid.open_trace(stored.with_name("b.trace"))
    with pytest.raises(InputError, match="is a folder"):
        pellucid.open_trace(stored.parent)
    with pytest.raises(PellucidError, match="/proc/self/mem"):  # opens but cannot be read; exists only on Linux
        pellucid.open_trace("/proc/self/mem")


def test_other_files_are_no_traces(stored: Path, minilm_folder: Path) -> None:
    with pytest.raises(InputError, match="is not a trace of pellucid"):
        pellucid.open_trace(minilm_folder / "model.safetensors")
    stored.write_text("time flies")
    with pytest.raises(CorruptFileError):
        pellucid.open_trace(stored)


def altered(path: Path, change: Callable[[dict[str, Any]], object], **tensors: torch.Tensor) -> None:
    """Writes the file with another manifest and matching digests, as an attacker would."""
    spans, note = read_bundle(path)
    held = {name: span.read() for name, span in spans.items()} | {k.replace("__", "."): v for k, v in tensors.items()}
    manifest = json.loads(note[FORMAT])
    manifest["digests"] = {name: tensor_digest(tensor) for name, tensor in held.items()}
    text = change(manifest)
    text = text if isinstance(text, str) else json.dumps(manifest)
    write_bundle(held, {FORMAT: text, DIGEST: _text_digest(text)}, path)


def test_an_older_file_holds_its_edits_as_words(stored: Path) -> None:
    altered(stored, lambda m: m.update(version=1, edits=["layers.*.attention.heads: change(a: b)"]))
    (edit,) = pellucid.open_trace(stored).edits
    assert edit == EditSaid("layers.*.attention.heads", "change(a: b)")
    assert pellucid.open_trace(pellucid.open_trace(stored).save(stored)).edits == (edit,)


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Returns a change that sets the last argument at the path of the others."""

    def change(manifest: dict[str, Any]) -> None:
        *way, last, value = path
        place: Any = manifest
        for step in way:
            place = place[step]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda m: "{", CorruptFileError, "a manifest that is not JSON"),
        (lambda m: "[" * 100_000, CorruptFileError, "a manifest that is not JSON"),
        (
            lambda m: '{"format": 1, "format": 1}',
            CorruptFileError,
            "a manifest that is not JSON: 'format' appears twice",
        ),
        (lambda m: "[]", CorruptFileError, "a manifest without the format"),
        (put("format", "other"), CorruptFileError, "a manifest without the format"),
        (put("version", 3), InputError, "is of version 3, and this pellucid reads traces up to version 2: update"),
        (put("version", "1"), CorruptFileError, "the manifest's version is '1'"),
        (put("version", True), CorruptFileError, "the manifest's version is 'True'"),
        (put("more", 1), CorruptFileError, "whose fields are not those of a trace: more"),
        (lambda m: m.pop("rows") and None, CorruptFileError, "whose fields are not those of a trace: rows"),
        (put("rows", []), CorruptFileError, "no rows"),
        (put("rows", {}), CorruptFileError, "rows of the manifest: found '{}', expected list"),
        (put("rows", 0, "facts", "tokens", 3), CorruptFileError, "rows of the manifest: tokens: found '3'"),
        (put("rows", 0, "facts", "ids", 0, "x"), CorruptFileError, "ids: found 'x', expected int"),
        (put("rows", 0, "facts", "offsets", 0, [1]), CorruptFileError, "offsets: found '.1.', expected tuple"),
        (put("rows", 0, "facts", "ids", []), CorruptFileError, "row 0 of the manifest has unequal numbers of tokens"),
        (put("rows", 0, "facts", "colour", 3), CorruptFileError, "a Reading has no 'colour'"),
        (put("parameters", 1.5), CorruptFileError, "parameters of the manifest: found '1.5', expected int"),
        (put("parameters", -5), CorruptFileError, "parameters of the manifest is -5, expected none or more"),
        (put("rows", 1, "facts", "ids", 0, 10**30), CorruptFileError, "row 1 of the manifest has ids or positions th"),
        (put("rows", 0, "facts", "offsets", 0, [10**12, -5]), CorruptFileError, "row 0 of the manifest has ids or pos"),
        (put("config", "facts", "num_hidden_layers", 10**8), CorruptFileError, "config .* 100000000, expected at most"),
        (put("padding", "up"), CorruptFileError, "padding on neither side"),
        (put("config", "facts", "norm", "kind", "Learned"), CorruptFileError, "norm: .* expected one of LayerNorm, RM"),
        (put("config", "facts", "num_attention_heads", 7), CorruptFileError, "cannot be divided evenly among"),
        (put("config", "facts", "num_attention_heads", 6), CorruptFileError, r"has shape \[2, 12, 4, 4\], .* \[2, 6, "),
        (put("config", "facts", "num_hidden_layers", 2), CorruptFileError, "has no point 'layers.2.attention.weights'"),
        (put("config", "facts", "dropout", "kind", "\0\x1b"), CorruptFileError, r"dropout: found a \\x00\\x1b, ex"),
        (put("config", "facts", "inert", 3), CorruptFileError, "inert: found '3', expected dict"),
        (lambda m: m["digests"].pop("pooled") and None, CorruptFileError, "hold different names: pooled"),
        (put("digests", "pooled", 3), CorruptFileError, "digests of the manifest|is not what was written"),
        (lambda m: m["rows"].append(m["rows"][0]), CorruptFileError, r"has shape \[2, .* need \[3, "),
    ],
)
def test_every_wrong_manifest_is_named(change: Any, kind: type[PellucidError], said: str, stored: Path) -> None:
    altered(stored, change)
    with pytest.raises(kind, match=said):
        pellucid.open_trace(stored)


def test_tensors_that_do_not_fit(stored: Path) -> None:
    altered(stored, lambda m: None, pooled=torch.zeros(2, 5))
    with pytest.raises(CorruptFileError, match=r"pooled has shape \[2, 5\], and its texts and model need \[2, 384\]"):
        pellucid.open_trace(stored)
    altered(stored, lambda m: None, pooled=torch.zeros(2, 384), pooler=torch.zeros(1))
    with pytest.raises(CorruptFileError, match="a model of these facts has no point 'pooler'"):
        pellucid.open_trace(stored)


def test_what_was_altered_and_is_right_is_read(stored: Path) -> None:
    altered(stored, put("model", "another"))
    assert pellucid.open_trace(stored).model == "another"


# -- facts as plain values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "head"), HEADS, ids=[f"{f}-{h.name if h else 'body'}" for f, h in HEADS])
def test_a_config_comes_back_equal(family: str, head: Any) -> None:
    config = config_of(family, head)
    assert from_json_value(json.loads(json.dumps(to_json_value(config))), Config) == config


def test_defaults_need_not_be_said() -> None:
    config = families()["bert"].defaults
    said = to_json_value(config)
    del said["facts"]["pooler"]
    assert from_json_value(said, Config) == config.replace(pooler=False)
    del said["facts"]["family"]
    with pytest.raises(ValueError, match="a Config needs 'family', which is missing"):
        from_json_value(said, Config)
