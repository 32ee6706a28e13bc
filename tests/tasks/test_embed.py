"""Texts to vectors: the reference's, in order, whatever else is in the batch, in any state of the model."""

import copy
import json
import logging
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import pellucid
from pellucid.config.pooling import MODES, Pooling
from pellucid.tasks.embed import pool
from tests.generation.writers import byte_level, writer
from tests.quick import few

TEXTS = ["a", "time flies like an arrow", "", "b " * 300, "Übergröße", "Apple Inc.", "x"]


@pytest.fixture(scope="module")
def reference(minilm_folder: object) -> object:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_folder), device="cpu")


@pytest.fixture(scope="module")
def decoder() -> "pellucid.Model":
    """A decoder whose tokenizer adds no special tokens."""
    return writer(byte_level())


def mixed_texts(shared: object, count: int) -> list[str]:
    """Short and long real texts, in turn."""
    sources = [
        shared("data/sst2/test.txt").read_text(encoding="utf-8").splitlines(),
        shared("data/wikitext2/valid.txt").read_text(encoding="utf-8").splitlines(),
        shared("data/agnews/test.csv").read_text(encoding="utf-8").splitlines(),
        shared("data/us_companies/us_listed.csv").read_text(encoding="utf-8").splitlines(),
    ]
    texts = [lines[i] for i in range(count) for lines in sources]
    special_tokens = ("[SEP]", "[CLS]", "[PAD]", "[UNK]")  # read as characters here, and as tokens by the reference
    return [text for text in texts if not any(word in text for word in special_tokens)][:count]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_mixed_texts_equal_sentence_transformers(
    shared: object, minilm: "pellucid.Model", reference: object, count: int
) -> None:
    texts = mixed_texts(shared, count)
    expected = torch.tensor(reference.encode(texts, show_progress_bar=False))
    torch.testing.assert_close(minilm.embed(texts), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sts_benchmark_has_the_published_correlation(shared: object, minilm: "pellucid.Model") -> None:
    """Spearman 0.8203 on the English test set, as published."""
    import csv

    from scipy.stats import spearmanr

    with shared("data/stsb/stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    first, second = minilm.embed([row[0] for row in rows]), minilm.embed([row[1] for row in rows])
    correlation = spearmanr((first * second).sum(dim=1).numpy(), [float(row[2]) for row in rows]).statistic
    assert round(float(correlation), 4) == 0.8203


@pytest.mark.slow
def test_bfloat16_vectors_are_close_to_float32_ones(shared: object, minilm: "pellucid.Model") -> None:
    texts = mixed_texts(shared, 200)
    exact, quick = minilm.embed(texts), minilm.embed(texts, dtype="bfloat16")
    assert quick.dtype == torch.float32
    assert F.cosine_similarity(exact, quick).min() >= 0.9995


def test_vectors_do_not_depend_on_order_and_batch(minilm: "pellucid.Model") -> None:
    vectors = minilm.embed(TEXTS)
    assert vectors.shape == (7, 384) and vectors.dtype == torch.float32 and not vectors.requires_grad
    assert minilm.embed(TEXTS[1]).shape == (384,)
    assert minilm.embed([]).shape == (0, 384)
    assert minilm.embed(text for text in TEXTS).shape == (7, 384)
    torch.testing.assert_close(minilm.embed(TEXTS[::-1]).flip(0), vectors, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.stack([minilm.embed(t) for t in TEXTS]), vectors, rtol=0, atol=1e-6)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(7))


def test_vectors_of_an_untrained_model_are_reported(minilm: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    config = minilm.config.replace(num_hidden_layers=1)
    with caplog.at_level(logging.WARNING, "pellucid"):
        minilm.embed("a cat")
        assert not caplog.text
        pellucid.build(config, tokenizer=minilm.tokenizer).embed("a cat")
    assert "this model is not trained (all): its vectors are random" in caplog.text


def test_empty_long_and_unknown_texts_are_reported(minilm: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pellucid"):
        vectors = minilm.embed(["", "   ", "word " * 400, "fine", thai := "กรุงเทพมหานคร" * 9, f"fine {thai}"])
    assert torch.isfinite(vectors).all()
    assert "1 of 6 texts was cut to 256 tokens" in caplog.text
    assert "2 of 6 texts are empty" in caplog.text
    assert "1 of 6 texts consist of unknown tokens alone; their vectors do not distinguish them" in caplog.text
    caplog.clear()
    minilm.embed(["word", ""], max_length=2)
    assert "1 of 2 texts was cut to 2 tokens" in caplog.text and "1 of 2 texts are empty" in caplog.text
    assert "1 of 2 texts kept no token but special ones, which are alike for every text" in caplog.text


@pytest.mark.parametrize(
    "texts", [None, 5, torch.tensor(3), b"bytes", ["fine", None], ["fine", {"a": 1}], [["nested"]], {"text": "a"}]
)
def test_invalid_texts_are_refused(minilm: "pellucid.Model", texts: object) -> None:
    with pytest.raises(pellucid.InputError, match="expected"):
        minilm.embed(texts)


@pytest.mark.parametrize(("texts", "index"), [("", 0), (["", ""], 0), (["a house", ""], 1)])
@pytest.mark.parametrize("call", [pellucid.Model.embed, pellucid.Model.__call__], ids=["embed", "call"])
def test_a_text_without_tokens_is_refused(
    decoder: "pellucid.Model", call: object, texts: str | list[str], index: int
) -> None:
    """It got the states of padding, NaN, or an unclear error, depending on the rest of the batch."""
    with pytest.raises(pellucid.InputError, match=f"^text {index} has no tokens"):
        call(decoder, texts)


def test_text_is_truncated_on_the_side_of_the_tokenizer_s_settings(
    tmp_path: Path, minilm_folder: Path, minilm: "pellucid.Model", caplog: pytest.LogCaptureFixture
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(minilm_folder, tmp_path / "left")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    theirs = SentenceTransformer(str(folder), device="cpu")
    theirs.max_seq_length = 8
    text = "rain falls " * 40 + "the big house stands in town"
    found = pellucid.load(folder).embed(text, max_length=8)
    torch.testing.assert_close(found, torch.tensor(theirs.encode(text)), rtol=0, atol=1e-6)
    assert torch.equal(found, minilm.embed("the big house stands in town"))
    assert "1 of 1 text was cut to 8" in caplog.text


def test_million_characters_are_truncated_and_ten_million_refused(minilm: "pellucid.Model") -> None:
    assert torch.isfinite(minilm.embed("word " * 200_000)).all()
    with pytest.raises(pellucid.InputError, match="split it first"):
        minilm.embed("word " * 2_000_001)


@pytest.mark.parametrize("mode", MODES)
def test_pooling_equals_the_reference_s(mode: str) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling as Theirs

    stream = torch.randn(3, 6, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    name = {"mean_sqrt_len": "mean_sqrt_len_tokens"}.get(mode, mode)
    features = {"token_embeddings": stream, "attention_mask": mask}
    expected = Theirs(8, pooling_mode=name)(features)["sentence_embedding"]
    torch.testing.assert_close(pool(stream, mask, Pooling((mode,))), expected)


def test_truncate_dim_sets_the_width_of_vectors() -> None:
    full, truncated = (
        Pooling(("mean", "max"), normalize=True),
        Pooling(("mean", "max"), normalize=True, truncate_dim=11),
    )
    stream = torch.randn(3, 6, 8)
    vectors = pool(stream, None, truncated)
    assert vectors.shape == (3, 11) == (3, truncated.width(8))
    assert torch.equal(vectors, pool(stream, None, full)[:, :11]), "scaled before it is cut"


def test_pooling_is_selected_by_name(minilm: "pellucid.Model") -> None:
    plain = minilm.embed("time flies", pooling="cls", normalize=False)
    with torch.no_grad():
        torch.testing.assert_close(plain, minilm("time flies").last_hidden_state[0, 0], rtol=0, atol=1e-5)
    with pytest.raises(pellucid.InputError, match="did you mean mean"):
        minilm.embed("time flies", pooling="meen")


# -- states of the model -----------------------------------------------------------------------------------------------


def test_training_mode_does_not_affect_embed(minilm: "pellucid.Model") -> None:
    before = minilm.embed(TEXTS)
    minilm.train()
    try:
        assert torch.equal(minilm.embed(TEXTS), before)
        assert minilm.module.training
    finally:
        minilm.eval()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_does_not_affect_embed(minilm: "pellucid.Model", dtype: torch.dtype) -> None:
    expected, before = minilm.embed(TEXTS), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = minilm.embed(TEXTS)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


def test_changed_weights_change_the_vectors(tiny: "pellucid.Model", minilm: "pellucid.Model") -> None:
    model = copy.deepcopy(minilm)
    before = model.embed("time flies")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(model.tokenizer("time flies", return_tensors="pt").input_ids).last_hidden_state.pow(2).sum().backward()
    optimizer.step()
    after = model.embed("time flies")
    assert not torch.allclose(before, after)
    assert torch.equal(minilm.embed("time flies"), before)


def test_global_generator_and_grad_mode_are_unchanged(minilm: "pellucid.Model") -> None:
    state = torch.random.get_rng_state()
    minilm.embed(TEXTS)
    pellucid.build(minilm.config.replace(num_hidden_layers=1), seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copied_and_pickled_models_give_the_same_vectors(minilm: "pellucid.Model", copy_of: object) -> None:
    minilm.embed("warm")  # the packed copy must not be copied as well
    assert torch.equal(copy_of(minilm).embed(TEXTS), minilm.embed(TEXTS))


def test_eight_threads_give_the_same_vectors(minilm: "pellucid.Model") -> None:
    fresh = copy.deepcopy(minilm)
    parts: Iterable[list[str]] = [[f"text {i} {j}" for j in range(20)] for i in range(8)]
    expected = [minilm.embed(part) for part in parts]
    with ThreadPoolExecutor(8) as threads:
        for vectors, from_thread in zip(expected, threads.map(fresh.embed, parts)):
            torch.testing.assert_close(vectors, from_thread, rtol=0, atol=1e-6)


def _embed_in_process(model: "pellucid.Model", results: object) -> None:
    torch.set_num_threads(1)
    results.put(model.embed("time flies").tolist())


@pytest.mark.parametrize("method", few(["spawn", "fork"], ["fork"]))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_model_can_be_sent_to_another_process(minilm: "pellucid.Model", method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    context = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=_embed_in_process, args=(minilm, results))
    process.start()
    answer = torch.tensor(results.get(timeout=120))
    process.join(60)
    assert process.exitcode == 0
    torch.testing.assert_close(answer, minilm.embed("time flies"), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_number_of_threads_is_read_from_the_environment() -> None:
    import subprocess
    import sys

    code = "import pellucid, torch; pellucid.load('all-MiniLM-L6-v2'); print(torch.get_num_threads())"
    for value, expected in (("1", "1"), ("many", "PELLUCID_THREADS is 'many'")):
        completed = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PELLUCID_THREADS": value}
        )
        assert expected in completed.stdout + completed.stderr
