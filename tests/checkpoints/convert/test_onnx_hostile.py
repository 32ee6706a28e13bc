"""Damaged, unusual and hostile ONNX files: one sentence that names the place, and nothing is written."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from pellucid.checkpoints.convert import convert
from pellucid.errors import (
    CheckpointMismatchError,
    CorruptFileError,
    InputError,
    NotFoundError,
    PellucidError,
    UnsafeFileError,
)
from tests.checkpoints.builders import Case
from tests.checkpoints.convert.onnx_exports import export, tiny_bert

MISMATCH = CheckpointMismatchError
Damage = Callable[[Path], object]


def with_model(change: Callable[[onnx.ModelProto], object]) -> Damage:
    """Applies a change to the model of the file."""

    def damage(folder: Path) -> None:
        whole = onnx.load(folder / "model.onnx", load_external_data=False)
        change(whole)
        (folder / "model.onnx").write_bytes(whole.SerializeToString())

    return damage


def with_graph(change: Callable[[onnx.GraphProto], object]) -> Damage:
    """Applies a change to the graph of the file."""
    return with_model(lambda whole: change(whole.graph))


def with_facts(**values: object) -> Damage:
    """Sets keys of config.json; None removes one."""

    def damage(folder: Path) -> None:
        raw = json.loads((folder / "config.json").read_text()) | values
        (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))

    return damage


def with_raw(change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / "model.onnx").write_bytes(change((folder / "model.onnx").read_bytes()))


def initializer(g: onnx.GraphProto, end: str) -> onnx.TensorProto:
    return next(tensor for tensor in g.initializer if tensor.name.endswith(end))


def swap_biases(g: onnx.GraphProto) -> None:
    """The query and key projections read each other's bias."""
    one, two = (initializer(g, f"layer.0.attention.self.{part}.bias") for part in ("query", "key"))
    names = {one.name: two.name, two.name: one.name}
    for node in g.node:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)


def add_tensor(g: onnx.GraphProto) -> None:
    """A tensor that the graph reads and BERT does not have."""
    g.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 5, 32), "float32"), "mystery"))
    g.node.append(onnx.helper.make_node("Mul", ["mystery", g.output[0].name], ["odd"], name="odd"))


def external_data(name: str, length: int = 61 * 32 * 4) -> Callable[[onnx.GraphProto], None]:
    """The token embeddings are in another file."""

    def change(g: onnx.GraphProto) -> None:
        tensor = initializer(g, "word_embeddings.weight")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)

    return change


def link_outside(folder: Path) -> None:
    (folder.parent / "secret").write_bytes(bytes(61 * 32 * 4))
    (folder / "numbers").symlink_to(folder.parent / "secret")
    with_graph(external_data("numbers"))(folder)


def two_files(folder: Path) -> None:
    shutil.copy(folder / "model.onnx", folder / "b.onnx")
    (folder / "model.onnx").rename(folder / "a.onnx")


def cut_external_data(folder: Path) -> None:
    (folder / "numbers").write_bytes(bytes(100))
    with_graph(external_data("numbers"))(folder)


def add_low_bit_product(**settings: object) -> Callable[[onnx.GraphProto], None]:
    """The first query projection becomes a low-bit product with these attributes."""

    def change(g: onnx.GraphProto) -> None:
        node = next(n for n in g.node if n.op_type == "MatMul" and "query" in n.name)
        parts = {"packed": np.zeros((32, 1, 16), "uint8"), "scales": np.ones((32, 1), "float32")}
        g.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in parts.items())
        node.op_type, node.domain = "MatMulNBits", "com.microsoft"
        node.input[1:] = list(parts)
        attributes = {"K": 32, "N": 32, "bits": 4, "block_size": 32} | settings
        node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())

    return change


def compute_a_zero_point(g: onnx.GraphProto) -> None:
    add_low_bit_product()(g)
    next(n for n in g.node if n.op_type == "MatMulNBits").input.append("input_ids")


def add_branch(g: onnx.GraphProto) -> None:
    g.node.append(onnx.helper.make_node("If", ["input_ids"], ["branch"], then_branch=onnx.GraphProto(name="inner")))


def add_constant(outputs: list[str], **setting: object) -> Damage:
    return with_graph(lambda g: g.node.append(onnx.helper.make_node("Constant", [], outputs, **setting)))


def in_the_field_of_integers(g: onnx.GraphProto) -> None:
    tensor = initializer(g, "dense.bias")
    tensor.ClearField("raw_data")
    tensor.int32_data.extend([1] * 32)


def make_complex(g: onnx.GraphProto) -> None:
    initializer(g, "word_embeddings.weight").data_type = onnx.TensorProto.COMPLEX64


def add_functions(*bodies: list[tuple[str, dict[str, Any]]]) -> Damage:
    """Adds functions f0, f1, ... of chained operations, each with its attributes; the graph calls the last one."""

    def node(kind: str, source: str, to: str, settings: dict[str, Any]) -> onnx.NodeProto:
        return onnx.helper.make_node(kind, [source], [to], domain="own" if kind[0] == "f" else "", **settings)

    def change(whole: onnx.ModelProto) -> None:
        versions = [*whole.opset_import, onnx.helper.make_opsetid("own", 1)]
        whole.opset_import.append(versions[-1])
        for number, body in enumerate(bodies):
            names = ["x", *(f"y{i}" for i in range(len(body)))]
            nodes = [node(kind, *names[i : i + 2], settings) for i, (kind, settings) in enumerate(body)]
            parts = ["x"], names[-1:], nodes, versions
            whole.functions.append(onnx.helper.make_function("own", f"f{number}", *parts))
        whole.graph.node.append(node(f"f{len(bodies) - 1}", whole.graph.output[0].name, "grown", {}))

    return with_model(change)


def doubling_functions(last: int, **settings: Any) -> Damage:
    """Each function calls the previous one twice; the first is an identity."""
    return add_functions([("Identity", settings)], *([(f"f{i}", {})] * 2 for i in range(last)))


CASES = [
    Case("functions that double", doubling_functions(20), UnsafeFileError, "more than 100,000 operations"),
    Case(
        "functions that double numbers",
        doubling_functions(12, idle=b"x" * 100_000),
        UnsafeFileError,
        "268,435,456 bytes",
    ),
    Case(
        "a function deep down",
        add_functions([("Identity", {})], *([(f"f{i}", {})] for i in range(120))),
        UnsafeFileError,
        "deep",
    ),
    Case("functions in a circle", add_functions([("f1", {})], [("f0", {})]), CorruptFileError, "'f1' calls itself"),
    Case("no file", lambda f: (f / "model.onnx").unlink(), NotFoundError, "nothing to convert"),
    Case("no config", lambda f: (f / "config.json").unlink(), NotFoundError, "config.json"),
    Case("no tokenizer", lambda f: (f / "vocab.txt").unlink(), NotFoundError, "no tokenizer"),
    Case("two files", two_files, InputError, "a.onnx"),
    Case("empty", with_raw(lambda data: b""), CorruptFileError, "model.onnx holds no operations"),
    Case("cut in half", with_raw(lambda data: data[: len(data) // 2]), CorruptFileError, "cut short"),
    Case("text", with_raw(lambda data: b"<!doctype html><html>" * 90), CorruptFileError, "not an ONNX model"),
    Case(
        "too few numbers",
        with_graph(lambda g: initializer(g, "dense.bias").ClearField("raw_data")),
        CorruptFileError,
        "has fewer or more numbers than its shape [32] needs",
    ),
    Case(
        "endless shape",
        with_graph(lambda g: initializer(g, "dense.bias").dims.extend([2**39] * 3)),
        CorruptFileError,
        "has shape [32, 549755813888, 549755813888, 549755813888], which no model has",
    ),
    Case(
        "numbers in the field of another type",
        with_graph(in_the_field_of_integers),
        CorruptFileError,
        "has fewer or more numbers than its shape [32] needs",
    ),
    Case(
        "a part of a larger tensor",
        with_graph(lambda g: setattr(initializer(g, "dense.bias").segment, "end", 32)),
        CorruptFileError,
        "is a part of a larger tensor, which is not understood",
    ),
    Case(
        "a constant without a name",
        add_constant([], value=onnx.numpy_helper.from_array(np.ones(3))),
        CorruptFileError,
        "an operation in it makes nothing",
    ),
    Case(
        "a whole constant of words",
        add_constant(["odd"], value_int="three"),
        CorruptFileError,
        "a value_int that is not",
    ),
    Case(
        "a real constant of words",
        add_constant(["odd"], value_float="3"),
        CorruptFileError,
        "a value_float that is not",
    ),
    Case("complex numbers", with_graph(make_complex), CorruptFileError, "COMPLEX64"),
    Case("a branch", with_graph(add_branch), MISMATCH, "If  holds a graph of its own"),
    Case("another family", with_facts(model_type="gpt2"), InputError, "'gpt2'"),
    Case("more layers", with_facts(num_hidden_layers=3), MISMATCH, "encoder.layer.2"),
    Case("fewer layers", with_facts(num_hidden_layers=1), MISMATCH, "more layers than the 1"),
    Case("other heads", with_facts(num_attention_heads=8), MISMATCH, "4 heads"),
    Case("odd heads", with_facts(num_attention_heads=5), InputError, "5 heads do not divide a width of 32"),
    Case("other width", with_facts(hidden_size=64), MISMATCH, "it is 32 wide"),
    Case("other activation", with_facts(hidden_act="relu"), MISMATCH, "hidden_act relu"),
    Case("other epsilon", with_facts(layer_norm_eps=1e-5), MISMATCH, "layer_norm_eps"),
    Case("text for a number", with_facts(vocab_size="61"), MISMATCH, "vocab_size"),
    Case("swapped biases", with_graph(swap_biases), MISMATCH, "layer.0.attention.self"),
    Case("a table too many", with_graph(add_tensor), MISMATCH, "mystery [1, 5, 32]"),
    Case("two bits", with_graph(add_low_bit_product(bits=2)), MISMATCH, "2 bits"),
    Case("computed zero point", with_graph(compute_a_zero_point), MISMATCH, "computes its blocks instead of holding"),
    Case("blocks that do not fit", with_graph(add_low_bit_product(K=64)), MISMATCH, "32 x 64"),
    Case("outside by dots", with_graph(external_data("../secret")), UnsafeFileError, "numbers in '../secret'"),
    Case("outside by root", with_graph(external_data("/etc/passwd")), UnsafeFileError, "numbers in '/etc/passwd'"),
    Case("numbers nowhere", with_graph(external_data("")), UnsafeFileError, "keeps numbers in ''"),
    Case("numbers behind a zero", with_graph(external_data("a\0b")), UnsafeFileError, r"keeps numbers in 'a\x00b'"),
    Case("outside by link", link_outside, UnsafeFileError, "link"),
    Case("numbers missing", with_graph(external_data("numbers")), NotFoundError, "numbers is missing"),
    Case("numbers cut short", cut_external_data, CorruptFileError, "cut short"),
    Case("numbers of another length", with_graph(external_data("vocab.txt", 7)), CorruptFileError, "7"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_bert("tokens"), tmp_path_factory.mktemp("good") / "foreign", "traced", 17)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_damaged_files_are_refused_in_one_sentence(exported: Path, tmp_path: Path, case: Case) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    case.damage(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(PellucidError) as caught:
        convert(folder, tmp_path / "ours")
    message = str(caught.value).replace(str(tmp_path), "")
    assert type(caught.value) is case.error, message
    assert case.message in message
    assert message.isprintable() and 20 < len(message) < 400 and not message.endswith((".", ":"))
    assert sorted(tmp_path.rglob("*")) == before


def test_nested_functions_are_read(exported: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    doubling_functions(5)(folder)
    result = convert(folder, tmp_path / "ours").folder
    plain = convert(exported, tmp_path / "plain").folder
    assert (result / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_unused_tensor_is_dropped_with_a_warning(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "foreign"))
    with_graph(lambda g: g.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), "float32"), "idle")))(folder)
    convert(folder, tmp_path / "ours")
    assert "no operation reads idle" in caplog.text


@pytest.mark.parametrize("seed", [1, 2, 7])
def test_random_damage_raises_only_our_errors(exported: Path, tmp_path: Path, seed: int) -> None:
    folder, generator = Path(shutil.copytree(exported, tmp_path / "foreign")), random.Random(seed)
    whole, refused = (exported / "model.onnx").read_bytes(), 0
    for _ in range(80):
        damaged, position = bytearray(whole), generator.randrange(len(whole))
        match generator.randrange(3):
            case 0:
                del damaged[position:]
            case 1:
                damaged[position] = generator.randrange(256)
            case 2:
                damaged[position : position + 50] = generator.randbytes(generator.randrange(50))
        (folder / "model.onnx").write_bytes(damaged)
        try:
            convert(folder, tmp_path / "ours", overwrite=True)
        except PellucidError as error:
            assert str(error).isprintable()
            refused += 1
    assert 25 < refused < 80  # a changed value in a weight is still a value
