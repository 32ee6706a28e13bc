"""Tensors that are missing, misshapen, surplus or stored twice, in every family: nothing is half loaded."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pellucid
from tests.checkpoints.builders import (
    CORRUPT,
    MISMATCH,
    UNSAFE,
    WEIGHTS,
    Case,
    Damage,
    assert_refused,
    parametrize_cases,
    with_tensors,
)
from tests.checkpoints.families import TINY, save
from tests.quick import few

pytestmark = pytest.mark.timeout(120)

Numbers = dict[str, Tensor]


@pytest.fixture(params=few(TINY, ["bert", "llama", "t5"]))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(request.param, tmp_path / "model")


def one_tensor_per_kind(folder: Path) -> list[str]:
    """One tensor of each kind: those of the last layer stand for those of all layers."""
    found = {re.sub(r"\.\d+\.", ".#.", name): name for name in sorted(load_file(folder / WEIGHTS))}
    return list(found.values())


def assert_each_named(
    folder: Path,
    change: Callable[[Numbers, str], object],
    message: str,
    error: type = MISMATCH,
    skipped: tuple[str, ...] = (),
) -> None:
    """Changes each kind of tensor alone; each time the error names it."""
    whole = (folder / WEIGHTS).read_bytes()
    for name in one_tensor_per_kind(folder):
        if skipped and name.startswith(skipped):
            continue
        with_tensors(lambda tensors, name=name: change(tensors, name))(folder)
        assert_refused(
            folder,
            Case(
                name,
                len,
                error,
                message.replace("NAME", name[:70] if message.endswith("NAME") else name),
                max_length=700,
            ),
            seconds=1.5,
        )
        (folder / WEIGHTS).write_bytes(whole)
    pellucid.load(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    def remove(tensors: Numbers, name: str) -> None:
        del tensors[name]

    assert_each_named(folder, remove, "missing (NAME", skipped=("lm_head.", "final_logits_bias"))


def test_file_without_its_head_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sentence encoders are often saved so; no head is invented."""
    folder = save("llama", tmp_path / "model")
    with_tensors(lambda tensors: tensors.pop("lm_head.weight"))(folder)
    assert pellucid.load(folder).config.head is None
    assert "the weights hold no head" in caplog.text


@pytest.mark.parametrize(("prefix", "wrapper"), [("module.", "DataParallel"), ("_orig_mod.", "torch.compile")])
def test_wrapped_model_is_named(prefix: str, wrapper: str, folder: Path) -> None:
    def wrap(tensors: Numbers) -> None:
        prefixed = {f"{prefix}{name}": numbers for name, numbers in tensors.items()}
        tensors.clear()
        tensors.update(prefixed)

    with_tensors(wrap)(folder)
    with pytest.raises(MISMATCH, match=f"every name begins with '{prefix}', as of a model inside {wrapper}: save"):
        pellucid.load(folder)


def test_a_misshapen_tensor_is_named(folder: Path) -> None:
    def stretch(tensors: Numbers, name: str) -> None:
        tensors[name] = torch.cat((tensors[name], tensors[name][:1]))

    assert_each_named(folder, stretch, "NAME has shape")


def test_a_flattened_tensor_is_named(folder: Path) -> None:
    def flatten(tensors: Numbers, name: str) -> None:
        tensors[name] = tensors[name].flatten()[:, None, None]

    assert_each_named(folder, flatten, "NAME has shape")


def test_scalar_is_named(folder: Path) -> None:
    def shrink(tensors: Numbers, name: str) -> None:
        tensors[name] = torch.tensor(1.0)

    assert_each_named(folder, shrink, "NAME has shape []")


def test_integer_tensor_is_named(folder: Path) -> None:
    def convert(tensors: Numbers, name: str) -> None:
        tensors[name] = tensors[name].long()

    assert_each_named(folder, convert, "NAME holds int64, expected real numbers")


def test_nan_is_named(folder: Path) -> None:
    def put_nan(tensors: Numbers, name: str) -> None:
        tensors[name].view(-1)[-1] = torch.nan

    assert_each_named(folder, put_nan, "NAME holds NaN", CORRUPT)


def test_unexpected_tensor_is_named(folder: Path) -> None:
    for strange in ("extra.weight", "model.extra", "layers.7.x", "encoder.block.0.layer.9.x.weight"):
        whole = (folder / WEIGHTS).read_bytes()
        with_tensors(lambda tensors, name=strange: tensors.update({name: torch.ones(2)}))(folder)
        assert_refused(folder, Case(strange, len, MISMATCH, f"1 unexpected tensor ({strange})", max_length=500))
        (folder / WEIGHTS).write_bytes(whole)


def test_path_as_a_name_is_refused(folder: Path) -> None:
    from tests.checkpoints.builders import with_header

    first = one_tensor_per_kind(folder)[0]
    with_header(lambda header: header.update({"../../x": header.pop(first)}))(folder)
    assert_refused(folder, Case("A21", len, UNSAFE, "'../../x' is not a valid tensor name"))


# -- parts of one tensor, and one tensor under several names -----------------------------------------------------------

JOINED = "transformer.h.0.attn.c_attn."
TABLE = {"bart": "model.shared.weight", "t5": "shared.weight", "gpt2": "transformer.wte.weight"}


def put(name: str, like: str, change: Callable[[Tensor], Tensor] = torch.clone) -> Damage:
    """Adds a tensor that is made from an existing one."""
    return with_tensors(lambda tensors: tensors.update({name: change(tensors[like])}))


def off(table: Tensor) -> Tensor:
    return table + 1


def half(table: Tensor) -> Tensor:
    return table[..., : table.shape[-1] // 2]


DUPLICATES = [
    Case("gpt2 half of a table", put(f"{JOINED}weight", f"{JOINED}weight", half), MISMATCH, "has shape [24, 36]"),
    Case("gpt2 half of a bias", put(f"{JOINED}bias", f"{JOINED}bias", half), MISMATCH, "has shape [36], expected [72]"),
    Case("gpt2 swapped", put(f"{JOINED}weight", f"{JOINED}weight", torch.t), MISMATCH, "has shape [72, 24], expected"),
    Case("gpt2 two of three", put(f"{JOINED}bias", f"{JOINED}bias", lambda b: b[:2]), MISMATCH, "has shape [2]"),
    Case("gpt2 other values", put("lm_head.weight", TABLE["gpt2"], off), MISMATCH, "set tie_word_embeddings to false"),
    Case("gpt2 half a head", put("lm_head.weight", TABLE["gpt2"], half), MISMATCH, "lm_head.weight has shape [60, 12]"),
    Case("gpt2 a scalar", put("lm_head.weight", TABLE["gpt2"], torch.sum), MISMATCH, "lm_head.weight has shape []"),
    Case("gpt2 both names", put("wte.weight", TABLE["gpt2"], off), MISMATCH, "should be the same table and differ"),
    Case("bart other values", put("model.encoder.embed_tokens.weight", TABLE["bart"], off), MISMATCH, "same table"),
    Case("bart other side", put("model.decoder.embed_tokens.weight", TABLE["bart"], off), MISMATCH, "same table"),
    Case("bart a half", put("model.decoder.embed_tokens.weight", TABLE["bart"], half), MISMATCH, "has shape [60, 12]"),
    Case("t5 other values", put("encoder.embed_tokens.weight", TABLE["t5"], off), MISMATCH, "same table and differ"),
    Case("t5 other side", put("decoder.embed_tokens.weight", TABLE["t5"], off), MISMATCH, "same table and differ"),
    Case("t5 other end", put("lm_head.weight", TABLE["t5"], off), MISMATCH, "same table and differ"),
]  # fmt: skip


@parametrize_cases(DUPLICATES)
def test_duplicates_must_agree(case: Case, tmp_path: Path) -> None:
    folder = save(case.name.split()[0], tmp_path / "model")
    case.damage(folder)
    assert_refused(folder, case)


def twice_in_the_decoder(*changes: Callable[[Tensor], Tensor]) -> Damage:
    """The decoder's embeddings with and without a prefix, beside the shared ones."""

    def damage(folder: Path) -> None:
        for name, change in zip(("model.decoder", "decoder"), changes, strict=True):
            put(f"{name}.embed_tokens.weight", TABLE["bart"], change)(folder)

    return damage


@pytest.mark.parametrize("changes", [(torch.clone, off), (off, torch.clone), (torch.clone, half), (half, torch.clone)])
def test_table_stored_three_times_must_agree(changes: tuple[Callable[[Tensor], Tensor], ...], tmp_path: Path) -> None:
    folder = save("bart", tmp_path / "model")
    twice_in_the_decoder(torch.clone, torch.clone)(folder)
    pellucid.load(folder)
    twice_in_the_decoder(*changes)(folder)
    with pytest.raises(MISMATCH, match=r"should be the same table|has shape"):
        pellucid.load(folder)


@pytest.mark.parametrize("model_type", TABLE)
def test_the_same_table_under_several_names_is_one(model_type: str, tmp_path: Path) -> None:
    names = {
        "bart": ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        "t5": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        "gpt2": ("lm_head.weight",),
    }[model_type]
    folder = save(model_type, tmp_path / "model")
    expected = pellucid.load(folder).module.state_dict()
    for name in names:
        put(name, TABLE[model_type])(folder)
    found = pellucid.load(folder).module.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with_tensors(lambda tensors: tensors.pop(TABLE[model_type]))(folder)  # the first name is not the only valid one
    found = pellucid.load(folder).module.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_twenty_thousand_unexpected_names_are_refused_in_time(model_type: str, tmp_path: Path) -> None:
    """Each name is compared with the hundred rows of a page: time is linear in the size of the file, not quadratic."""
    folder = save(model_type, tmp_path / "model")
    more = {f"layers.{i}.x{i % 7}": torch.zeros(0) for i in range(20_000)}
    with_tensors(lambda tensors: tensors.update(more))(folder)
    assert_refused(folder, Case("many", len, MISMATCH, "20,000 unexpected", max_length=600), seconds=5)


def test_an_encoder_that_was_saved_without_its_decoder_is_named(tmp_path: Path) -> None:
    folder = save("t5", tmp_path / "model", head=False)
    with_tensors(lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("decoder.")])(folder)
    with pytest.raises(MISMATCH, match=r"missing \(decoder\.block.*, and an encoder without its decoder is not read"):
        pellucid.load(folder)
