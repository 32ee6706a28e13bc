"""CTranslate2's Transformer: real names come out as in its own library, with the same log-probabilities."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from pellucid.checkpoints.convert import convert
from pellucid.checkpoints.convert.ctranslate2_file import read_variables
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, NotFoundError, PellucidError
from tests.checkpoints.convert.plain_transformer import NAMES, greedy
from tests.torch_state import make_unopenable


@pytest.fixture(scope="module")
def foreign(shared: Callable[[str], Path]) -> Path:
    return shared("models/aren-transliteration")


@pytest.fixture(scope="module")
def ours(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(foreign, tmp_path_factory.mktemp("aren") / "ours", heads=8).folder


def read_converted(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], Tokenizer, Tokenizer]:
    tokenizers = [Tokenizer.from_file(str(folder / name)) for name in ("tokenizer.json", "target_tokenizer.json")]
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text()), *tokenizers


def test_real_names_are_transliterated(ours: Path) -> None:
    tensors, config, source, target = read_converted(ours)
    for name, expected in NAMES.items():
        ids, _ = greedy(tensors, config, source.encode(name).ids)
        assert target.decode(ids) == expected


def test_tokens_and_scores_equal_ctranslate2(ours: Path, shared: Callable[[str], Path]) -> None:
    library = pytest.importorskip("ctranslate2")
    theirs = library.Translator(str(shared("models/ct2-aren-v2/aren-transliteration")), intra_threads=1)
    tensors, config, source, target = read_converted(ours)
    names = [*NAMES, "Qتمون", "بور", "ااااااااااا"]  # an unknown letter, a short name and a long one
    answers = theirs.translate_batch([list(name) for name in names], beam_size=1)
    for name, answer in zip(names, answers):
        ids, scores = greedy(tensors, config, source.encode(name).ids)
        assert target.decode(ids) == "".join(answer.hypotheses[0])
        scored = theirs.score_batch([list(name)], [answer.hypotheses[0]])[0]  # rounds less than its greedy search does
        assert scores == pytest.approx(scored.log_probs, abs=2e-6)


@pytest.mark.parametrize("name", ["model.bin", "source_vocabulary.txt", "target_vocabulary.txt"])
def test_unreadable_file_is_named(
    name: str, shared: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shared("models/ct2-aren-v2/aren-transliteration")
    make_unopenable(monkeypatch, folder / name)
    with pytest.raises(InputError) as caught:
        convert(folder, tmp_path / "new", heads=8)
    assert str(caught.value) == f"cannot read {folder / name}: Permission denied" and not (tmp_path / "new").exists()


def test_tensors_are_converted_unchanged(foreign: Path, ours: Path) -> None:
    before, after = load_file(foreign / "model.safetensors"), load_file(ours / "model.safetensors")
    assert sum(v.numel() for v in before.values()) == sum(v.numel() for v in after.values()) == 182_731
    fused = before["decoder/layer_3/self_attention/linear_0/weight"]
    parts = [after[f"decoder.layers.3.attention.{part}.weight"] for part in ("query", "key", "value")]
    assert torch.equal(torch.cat(parts), fused)
    crossed = [after[f"decoder.layers.5.cross_attention.{part}.bias"] for part in ("key", "value")]
    assert torch.equal(torch.cat(crossed), before["decoder/layer_5/attention/linear_1/bias"])


@pytest.mark.parametrize(("kind", "tolerance"), [("", 0.0), ("-i16", 1e-3), ("-i8", 0.02)])
def test_model_bin_holds_the_same_weights(
    shared: Callable[[str], Path], ours: Path, tmp_path: Path, kind: str, tolerance: float
) -> None:
    converted = convert(shared(f"models/ct2-aren-v2/aren-transliteration{kind}"), tmp_path / "made").folder
    found, expected = load_file(converted / "model.safetensors"), load_file(ours / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        torch.testing.assert_close(found[name], numbers, atol=tolerance, rtol=0)


def model_file(variables: dict[str, torch.Tensor], other: dict[str, str]) -> bytes:
    """A file as CTranslate2 4.8 writes it."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<II", 7, len(variables))
    for name, numbers in variables.items():
        raw = numbers.view(torch.uint8).numpy().tobytes()
        kind = [torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16].index(numbers.dtype)
        content += text(name) + struct.pack(f"<B{numbers.dim()}I", numbers.dim(), *numbers.shape)
        content += struct.pack("<BI", kind, len(raw)) + raw
    return (
        content
        + struct.pack("<I", len(other))
        + b"".join(text(alias) + text(target) for alias, target in other.items())
    )


def test_newer_file_with_an_alias(tmp_path: Path) -> None:
    tensors = {"a/weight": torch.randn(3, 4).bfloat16(), "b": torch.arange(5, dtype=torch.int8)}
    (tmp_path / "model.bin").write_bytes(whole := model_file(tensors, {"c/weight": "a/weight"}))
    found = {name: span.read() for name, span in read_variables(tmp_path / "model.bin")[1].items()}
    assert found.keys() == {"a/weight", "b", "c/weight"}
    assert torch.equal(found["c/weight"], tensors["a/weight"]) and torch.equal(found["b"], tensors["b"])
    for size in range(len(whole)):
        (tmp_path / "model.bin").write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match="ends in the middle"):
            read_variables(tmp_path / "model.bin")
    for damaged, message in (
        (whole + b"x", "1 bytes after its last"), (b"\x07" + whole[1:], "version 7 .* expected 2 to 6"),
        (b"PK" + whole[2:], "not a model of CTranslate2"),
        (whole.replace(b"b\0\x01\5", b"b\0\x01\6"), "not what its shape"),
        (whole.replace(b"b\0\x01\5", b"b\0\x63\5"), "99 dimensions"),
        (model_file(tensors, {"b": "a/weight"}), "the alias b names"),
        (model_file(tensors, {"x": "y"}), "y, which is missing"),
        (model_file({"../a": tensors["b"]}, {}), "not a valid tensor name"),
    ):  # fmt: skip
        (tmp_path / "model.bin").write_bytes(damaged)
        with pytest.raises(PellucidError, match=message):
            read_variables(tmp_path / "model.bin")


def test_config_and_tokenizers_of_a_converted_folder(ours: Path) -> None:
    _, config, source, target = read_converted(ours)
    expected = {
        "share_embeddings": False,
        "vocab_size": 43,
        "source_vocab_size": 51,
        "hidden_size": 32,
        "num_decoder_layers": 6,
    }
    expected |= {"num_attention_heads": 8, "intermediate_size": 128, "decoder_start_token_id": 1, "eos_token_id": 2}
    assert {key: config[key] for key in expected} == expected
    assert source.encode("آ ت ز").ids == source.encode("آتز").ids == [source.token_to_id(c) for c in "آتز"]
    assert source.encode("Q").tokens == ["<unk>"] and source.token_to_id("<unk>") == 50  # after the last line
    assert target.token_to_id("<s>") == 1 and target.decode([1, 3, 4, 2]) == "ae"


def test_int8_and_int16_weights(foreign: Path, ours: Path, tmp_path: Path) -> None:
    whole = load_file(foreign / "model.safetensors")
    for dtype, maximum in ((torch.int8, 127), (torch.int16, 32767)):
        tensors = dict(whole)
        for name in [name for name, value in whole.items() if value.dim() == 2]:
            scale = maximum / (whole[name].abs().amax(1) if dtype is torch.int8 else whole[name].abs().max())
            tensors[f"{name}_scale"] = scale.reshape(-1) if dtype is torch.int8 else scale
            tensors[name] = (whole[name] * scale.reshape(-1, 1)).round().to(dtype)
        folder = copy_with(foreign, tmp_path / str(maximum), tensors)
        after = load_file(convert(folder, tmp_path / f"ours{maximum}", heads=8).folder / "model.safetensors")
        step = max(float(value.abs().max()) for value in whole.values()) / maximum
        for name, value in load_file(ours / "model.safetensors").items():
            torch.testing.assert_close(after[name], value, rtol=0, atol=step)


def copy_with(foreign: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The same vocabularies with other tensors."""
    folder.mkdir()
    for name in ("source_vocabulary.txt", "target_vocabulary.txt"):
        (folder / name).write_bytes((foreign / name).read_bytes())
    save_file(tensors, folder / "model.safetensors")
    return folder


# -- what is refused ---------------------------------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]
LAYER = "decoder/layer_2/ffn/linear_0/weight"


def remove_tensor(tensors: Tensors) -> None:
    del tensors[LAYER]


def add_unknown_tensor(tensors: Tensors) -> None:
    tensors["decoder/layer_2/ffn/linear_9/weight"] = torch.zeros(2)


def cut_columns(tensors: Tensors) -> None:
    tensors[LAYER] = tensors[LAYER][:, :9].contiguous()


def convert_to_int8(tensors: Tensors) -> None:
    tensors[LAYER] = tensors[LAYER].to(torch.int8)


def put_nan(tensors: Tensors) -> None:
    tensors[LAYER][0, 0] = float("nan")


def change_activation(tensors: Tensors) -> None:
    tensors["encoder/activation"] = torch.tensor([2], dtype=torch.int8)


CASES: dict[str, tuple[Callable[[Tensors], None], int | None, type[PellucidError], str]] = {
    "no heads": (lambda tensors: None, None, InputError, "pass heads=N"),
    "odd heads": (
        lambda tensors: None,
        5,
        InputError,
        "5 heads do not divide a width of 32; one of 1, 2, 4, 8, 16, 32",
    ),
    "missing": (
        remove_tensor,
        8,
        CheckpointMismatchError,
        "/foreign is not a whole Transformer: 1 missing (decoder.layers.2.feed",
    ),
    "too many": (add_unknown_tensor, 8, CheckpointMismatchError, "linear_9/weight"),
    "narrow": (cut_columns, 8, CheckpointMismatchError, "[128, 9], expected [128, 32]"),
    "bytes without a scale": (convert_to_int8, 8, CheckpointMismatchError, "without a scale"),
    "not a number": (put_nan, 8, PellucidError, "NaN"),
    "another activation": (change_activation, 8, CheckpointMismatchError, "encoder/activation is 2"),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_checkpoints_are_refused_in_one_sentence(foreign: Path, tmp_path: Path, name: str) -> None:
    change, heads, error, message = CASES[name]
    tensors = load_file(foreign / "model.safetensors")
    change(tensors)
    folder = copy_with(foreign, tmp_path / "foreign", tensors)
    with pytest.raises(error) as caught:
        convert(folder, tmp_path / "ours", heads=heads)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign"]


def test_mismatched_vocabularies_are_refused(foreign: Path, tmp_path: Path) -> None:
    folder = copy_with(foreign, tmp_path / "foreign", load_file(foreign / "model.safetensors"))
    vocabulary = (folder / "target_vocabulary.txt").read_text(encoding="utf-8")
    cases = (
        (vocabulary + "new\n", "44 tokens"),
        (vocabulary + "a\n", "twice"),
        ("\xff", "utf-8"),
        ("a" * 20_000_001, "at most 20,"),
    )
    for text, message in cases:
        (folder / "target_vocabulary.txt").write_bytes(text.encode("latin-1" if text == "\xff" else "utf-8"))
        with pytest.raises(PellucidError, match=f"(?i){message}"):
            convert(folder, tmp_path / "ours", heads=8)
    (folder / "target_vocabulary.txt").unlink()
    with pytest.raises(NotFoundError, match=r"target_vocabulary\.txt"):
        convert(folder, tmp_path / "ours", heads=8)
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors"):
        convert(folder, tmp_path / "ours", heads=8)
