"""An index from the view of a user: built, opened, searched, changed, saved."""

import copy
import itertools
import json
import os
import pickle
import shutil
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.blocks.quantized import low_bit_tensors
from pellucid.checkpoints.loaded import Loaded
from pellucid.edits import scale, zero
from pellucid.errors import InputError, NotFoundError
from pellucid.files import digest_of
from pellucid.search import encoder
from pellucid.search.encoder import check_encoder, encoder_of, passage_span_function
from pellucid.search.manifest import read_manifest, write_manifest
from pellucid.text.truncation import start_without_marks
from pellucid.training.manifest import digest_of_model
from tests.models.test_packable import doubled_linear


def ids(hits: list) -> list[str]:
    return [hit["id"] for hit in hits]


def test_best_hit_holds_text_and_metadata(index: pellucid.Index) -> None:
    first = index.search("Apple", k=3)[0]
    assert first["id"] == "AAPL"
    assert first["text"] == "Apple Inc."
    assert first["metadata"]["headquarters"] == "Cupertino, California"
    assert json.loads(json.dumps(first)) == first


@pytest.mark.parametrize(
    ("query", "expected"), [("Microsfot", "MSFT"), ("Amazn", "AMZN"), ("Starbuks", "SBUX"), ("Pfzier", "PFE")]
)
def test_mistyped_name_is_found_and_corrected(index: pellucid.Index, query: str, expected: str) -> None:
    hits = index.search(query, k=3)
    assert hits[0]["id"] == expected
    assert hits.corrected is not None


def test_dense_search_finds_meaning_without_common_words(index: pellucid.Index) -> None:
    assert "KO" in ids(index.search("soft drinks", k=5, mode="dense"))
    assert index.search("xylophone zither", mode="words") == []


def test_query_gives_the_same_hits_alone_and_in_a_batch(index: pellucid.Index) -> None:
    alone = index.search("coffee", k=10)
    among = index.search(["burgers", "coffee", "a longer query about oil and gas in Texas"], k=10)[1]
    again = pellucid.Index.open(index.folder).search("coffee", k=10)
    assert ids(alone) == ids(among) == ids(again)
    assert np.allclose([h["score"] for h in alone], [h["score"] for h in among], atol=1e-6)


def test_vector_queries_have_exact_similarity(index: pellucid.Index, minilm: pellucid.Model) -> None:
    query = minilm.embed("computers and phones")
    hits = index.search(query, k=5)
    expected = minilm.embed([hit["text"] for hit in hits]) @ query
    assert np.allclose([hit.similarity for hit in hits], expected.numpy(), atol=1e-5)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)


@pytest.mark.parametrize(
    "where",
    [
        "sector = Financials",
        {"sector": "Financials"},
        {"sector": ["Financials", "Nowhere"]},
        ["sector = Financials", "founded > 0"],
        "sector ~ financ",
    ],
)
def test_condition_filters_hits(index: pellucid.Index, where: object) -> None:
    hits = index.search("a bank", k=100, where=where)
    assert hits
    assert {hit["metadata"]["sector"] for hit in hits} == {"Financials"}


def test_numbers_in_conditions_are_compared_as_numbers(index: pellucid.Index) -> None:
    old = index.search("company", k=100, where={"founded": {"<": 1900}})
    assert old and all(int(hit["metadata"]["founded"]) < 1900 for hit in old)
    all_hits = index.search("company", k=100)
    expected = [hit for hit in all_hits if hit["metadata"]["founded"] and int(hit["metadata"]["founded"]) < 1900]
    assert sorted(ids(old)) == sorted(ids(expected))


def test_unknown_column_suggests_similar_names(index: pellucid.Index) -> None:
    with pytest.raises(InputError, match=r"sectr.*did you mean sector"):
        index.search("a bank", where="sectr = Financials")
    with pytest.raises(InputError, match="cannot read the condition"):
        index.search("a bank", where="sector")


def test_added_rows_are_found_and_deleted_ones_are_not(writable_index: pellucid.Index) -> None:
    before = len(writable_index)
    assert writable_index.add([{"symbol": "ZEB", "name": "Zebra crossing makers", "sector": "Paint"}]) == 1
    assert writable_index.search("zebra crossings", k=1)[0]["metadata"]["sector"] == "Paint"
    assert writable_index.update([{"symbol": "ZEB", "name": "Purple elephants", "sector": "Toys"}]) == 0
    assert writable_index.search("elephant", k=1)[0]["id"] == "ZEB"
    assert "Zebra crossing makers" not in [hit["text"] for hit in writable_index.search("zebra crossing", k=200)]
    assert writable_index.delete("ZEB") == 1
    assert len(writable_index) == before
    assert "ZEB" not in ids(writable_index.search("elephant", k=200))


def test_open_reader_keeps_its_generation(writable_index: pellucid.Index) -> None:
    reader = pellucid.Index.open(writable_index.folder, model=writable_index.loaded)
    writable_index.delete(["AAPL"])
    assert reader.search("Apple", k=1)[0]["id"] == "AAPL"
    assert "AAPL" not in ids(
        pellucid.Index.open(writable_index.folder, model=writable_index.loaded).search("Apple", k=200)
    )


def test_duplicate_and_unknown_ids_change_nothing(writable_index: pellucid.Index) -> None:
    with pytest.raises(InputError, match="the id AAPL is in the index already: pass update=True to"):
        writable_index.add([{"symbol": "AAPL", "name": "Another", "sector": ""}])
    with pytest.raises(InputError, match=r"and \d\d more are in the index already"):
        writable_index.add(
            [{"symbol": id_, "name": "Another", "sector": ""} for id_ in writable_index.segments[0].entries.ids()]
        )
    with pytest.raises(InputError, match="no text has the id 'NOPE'"):
        writable_index.delete(["AAPL", "NOPE"])
    assert len(writable_index) == 100
    assert writable_index.search("Apple", k=1)[0]["text"] == "Apple Inc."


def test_segments_with_many_deleted_rows_are_rewritten_with_equal_results(writable_index: pellucid.Index) -> None:
    writable_index.delete(where={"sector": ["Financials", "Health Care", "Industrials"]})
    assert writable_index.manifest.segments[0].dead == "" and len(writable_index.manifest.segments) == 1
    assert writable_index.manifest.segments[0].rows == len(writable_index)
    expected = writable_index.search("oil", k=5)
    writable_index.add([{"symbol": "NEW", "name": "Something new", "sector": ""}])
    writable_index.compact()
    assert len(writable_index.manifest.segments) == 1
    assert ids(writable_index.search("oil", k=5)) == ids(expected)


def test_metrics_give_their_order(minilm: pellucid.Model, companies: Path, tmp_path: Path) -> None:
    vectors = minilm.embed([line.split(",")[1] for line in companies.read_text().splitlines()[1:]]).numpy()
    vectors *= np.linspace(0.5, 2, len(vectors))[:, None].astype(np.float32)
    query = vectors[7]
    best = {
        "cosine": np.argsort(-(vectors @ query) / np.linalg.norm(vectors, axis=1)),
        "dot": np.argsort(-(vectors @ query)),
        "euclidean": np.argsort(np.linalg.norm(vectors - query, axis=1)),
    }
    for metric, order in best.items():
        for kind in ("flat", "hnsw"):
            index = pellucid.Index.build(None, vectors, metric=metric, kind=kind)
            assert ids(index.search(query, k=8)) == [str(i + 1) for i in order[:8]], (metric, kind)


def test_index_of_vectors_accepts_only_vectors() -> None:
    index = pellucid.Index.build(None, np.eye(4, dtype=np.float32))
    assert ids(index.search(np.array([0, 0, 1, 0]), k=2))[0] == "3"
    with pytest.raises(InputError, match="built from vectors"):
        index.search("a text")
    with pytest.raises(InputError, match="queries have 3 numbers, expected 4"):
        index.search(np.ones(3))
    with pytest.raises(InputError, match="row 0 holds a number that is not finite"):
        index.search(np.array([0, np.nan, 0, 0]))
    with pytest.raises(InputError, match="are a masked array"):
        pellucid.Index.build(None, np.ma.masked_array(np.eye(2), mask=[[0, 1], [0, 0]]))


def test_index_of_vectors_refuses_texts_and_models(minilm: pellucid.Model, tmp_path: Path) -> None:
    index = pellucid.Index.build(None, np.eye(384, dtype=np.float32)[:5], tmp_path / "a.index", progress=False)
    for call in (
        lambda: index.search("a text"),
        lambda: index.add(["a text"]),
        lambda: pellucid.Index.open(index.folder, model=minilm),
    ):
        with pytest.raises(InputError, match="no model reads texts for it: search with vectors, or build it again"):
            call()
    assert index.delete(["5"]) == 1 and len(index) == 4


@pytest.mark.parametrize(
    "options", [{"column": "a"}, {"id_column": "a"}, {"prompt": "x: "}, {"on_duplicate": "keep-last"}]
)
def test_text_options_are_refused_for_vectors(options: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} is for texts, and vectors were given"):
        pellucid.Index.build(None, np.eye(3), **options)


def test_index_stores_the_absolute_folder_of_its_model(
    writable_index: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the working directory has become since it was loaded."""
    pellucid.Model(writable_index.loaded).save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    model = pellucid.load("mine")
    monkeypatch.chdir("/")
    index = pellucid.Index.build(model, ["a house", "a tree"], tmp_path / "an.index", progress=False)
    assert index.info()["encoder"]["name"] == str(tmp_path / "mine")
    assert pellucid.Index.open(index.folder).search("a tree", k=1)[0]["text"] == "a tree"


def test_moved_index_can_be_searched_but_not_changed(writable_index: pellucid.Index) -> None:
    elsewhere = writable_index.folder.rename(writable_index.folder.with_name("moved.index"))
    assert writable_index.search("Microsoft", k=1)[0]["id"] == "MSFT"
    for change in (
        lambda: writable_index.add([{"symbol": "X", "name": "y"}]),
        lambda: writable_index.delete("MSFT"),
        writable_index.compact,
    ):
        with pytest.raises(NotFoundError, match="there is no index"):
            change()
    assert not writable_index.folder.exists()
    elsewhere.rename(writable_index.folder)
    assert writable_index.delete("MSFT") == 1


def test_k_is_clipped_and_empty_queries_are_refused(index: pellucid.Index) -> None:
    assert len(index.search("Apple", k=1_000)) == 100
    for k in (0, -1, 1.5):
        with pytest.raises(InputError, match="k is"):
            index.search("Apple", k=k)  # type: ignore[arg-type]
    for query in ("", "  ", ["Apple", ""], [None, "Apple"]):
        with pytest.raises(InputError, match="query"):
            index.search(query)  # type: ignore[arg-type]
    for query in (None, 3.0, [None], {"a": 1}, [[1.0, 2.0], [3.0]]):
        with pytest.raises(InputError, match=r"^a query is a text or a vector, and this is neither"):
            index.search(query)  # type: ignore[arg-type]


def test_long_texts_are_found_by_their_passages(minilm: pellucid.Model) -> None:
    filler = "The weather was mild and nobody said much about it. " * 40
    texts = [("tea", filler + "The recipe for green tea needs hot water." + filler), ("rest", filler)]
    index = pellucid.Index.build(minilm, texts, passage_tokens=64, progress=False)
    hit = index.search("how to make green tea", k=2)[0]
    assert hit["id"] == "tea"
    assert "green tea" in hit["text"]
    assert texts[0][1][hit["start"] : hit["end"]] == hit["text"]
    assert len(index.search("weather", k=10)) == 2


def test_combining_marks_stay_with_their_letters_in_passages(minilm: pellucid.Model) -> None:
    """The tokenizer strips accents, and counts them among the characters of no token."""
    words = ["cafe\u0301", "\u0939\u0948\u0902", "a\u0323\u0302", "\u0645\u064e"]
    text = " ".join(words * 60)
    spans = passage_span_function(minilm.loaded, 30, "")(text, 0)
    assert len(spans) > 9 and spans[-1][1] == len(text)
    assert all(text[last : last + 1] in (" ", "") for _, last in spans)
    hindi_spans = passage_span_function(minilm.loaded, 12, "")(hindi := "\u0915\u093f\u0924\u093e\u092c " * 60, 0)
    assert len(hindi_spans) > 9 and not any(unicodedata.category(hindi[first])[0] == "M" for first, _ in hindi_spans)
    for piece, start, first in (("\u0301a", 0, 0), ("a \u0301b", 2, 2), ("a\u0301", 1, 1), ("a\u0301b", 1, 2)):
        assert (
            start_without_marks(piece, start, len(piece)) == first
        )  # where marks have no letter, or nothing else is there


def test_passage_length_leaves_room_for_the_prompt(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    prompt = "A passage that answers what somebody asks, perhaps in other words: "
    text = "nothing " * 240 + "The capital of Burkina Faso is Ouagadougou."
    index = pellucid.Index.build(minilm, [text], prompt=prompt, progress=False)
    index.add(["else " * 240 + "The capital of Japan is Tokyo."], progress=False)
    assert len(index.manifest.segments) == 2 and index.manifest.rows == 4
    assert "were cut" not in caplog.text
    passage_span_function(minilm.loaded, 256, "")
    assert "passages have" not in caplog.text
    passage_span_function(minilm.loaded, 257, "")
    assert "passages have 256 tokens, as many as the model reads at once, instead of 257" in caplog.text
    with pytest.raises(InputError, match="prompt has 300 tokens, which leaves no room for a text"):
        pellucid.Index.build(minilm, [text], prompt="so " * 300, progress=False)


def test_untrained_model_is_refused(writable_index: pellucid.Index) -> None:
    other = pellucid.load("all-MiniLM-L6-v2")
    with np.errstate(all="ignore"):
        next(iter(other.parameters())).data.mul_(2)
    assert pellucid.Index.open(
        writable_index.folder, model=other
    )  # same files; PyTorch does not notice a write by `data`
    bert = pellucid.Config.of("bert", vocab_size=30522, hidden_size=384, num_hidden_layers=1, num_attention_heads=12)
    untrained = pellucid.build(bert, tokenizer=other.tokenizer)
    with pytest.raises(InputError, match="not trained"):
        pellucid.Index.open(writable_index.folder, model=untrained)


def negate_norm(module: Any) -> None:
    with torch.no_grad():
        module.embeddings.norm.weight.mul_(-1)


def zero_codes(module: Any) -> None:
    next(one for name, one in low_bit_tensors(module).items() if name.endswith("codes")).zero_()


def swap_attentions(module: Any) -> None:
    first, second = module.layers[:2]
    first.attention, second.attention = second.attention, first.attention


def test_model_changed_since_loading_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would open the index with the weights of the files, and find nothing."""
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    model = pellucid.load(folder)
    index = pellucid.Index.build(model, ["a cat"], out=tmp_path / "a.index", progress=False)
    for unchanged in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert pellucid.Index.open(index.folder, model=unchanged)
    with torch.no_grad():
        model.module.layers[0].attention.query.weight.add_(0.1)
    for call in (
        lambda: pellucid.Index.build(model, ["a cat"], progress=False),
        lambda: pellucid.Index.open(index.folder, model=model),
        lambda: pellucid.Index.open(index.folder, model=copy.deepcopy(model)),
    ):
        with pytest.raises(InputError, match="were changed since it was loaded, and an index is opened with those of"):
            call()
    for bits, change in itertools.product(("int8", "int4"), (negate_norm, zero_codes, swap_attentions)):
        low_bit = pellucid.load(folder, dtype=bits)
        low_bit.embed("a cat")
        for unchanged in (low_bit, copy.deepcopy(low_bit)):
            assert pellucid.Index.build(unchanged, ["a cat"], progress=False)
        change(low_bit.module)
        for changed in (low_bit, copy.deepcopy(low_bit)):
            with pytest.raises(InputError, match=r"were changed since .* with those of its files: load it again"):
                pellucid.Index.build(changed, ["a cat"], progress=False)
    saved = pellucid.load(model.save(tmp_path / "new"))
    saved.module.layers[0].attention.scale = 3.0
    with pytest.raises(InputError, match=r"^scale of layers\.0\.attention of .* is not what its config says"):
        pellucid.Index.build(saved, ["a cat"], progress=False)
    saved = pellucid.load(tmp_path / "new")
    saved.module.layers[1].attention.query = doubled_linear(saved.module.layers[1].attention.query)
    with pytest.raises(InputError, match=r"^layers\.1\.attention\.query is a Twice, .* put back what it replaced$"):
        pellucid.Index.build(saved, ["a cat"], progress=False)
    wide = pellucid.load(tmp_path / "new", dtype="float64")
    for part in wide.module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # no effect in evaluation mode
    assert pellucid.Index.build(copy.deepcopy(wide), ["a cat"], progress=False)
    monkeypatch.chdir(tmp_path)
    saved = copy.deepcopy(pellucid.load("new"))
    monkeypatch.chdir(tmp_path.parent)
    assert pellucid.Index.build(saved, ["a cat"], progress=False).search("a cat")[0].similarity > 0.999


def test_model_whose_files_were_replaced_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    old = pellucid.load(folder)
    weights = folder / "model.safetensors"
    shutil.copy(weights, tmp_path / "new")
    (folder / "README.md").write_text("of no vector")
    index = pellucid.Index.build(old, ["a cat", "a dog"], out=tmp_path / "a.index", progress=False)
    index.add(["a mouse"], progress=False)
    (tmp_path / "new").replace(weights)
    for call in (
        lambda: pellucid.Index.build(old, ["a cat", "a dog"], out=tmp_path / "b.index", progress=False),
        lambda: pellucid.Index.open(index.folder, model=old),
        lambda: index.add(["a bird"], progress=False),
    ):
        with pytest.raises(InputError, match=rf"{weights} was replaced, added or removed since .* was loaded"):
            call()
    assert not (tmp_path / "b.index").exists()
    assert pellucid.Index.open(index.folder, model=pellucid.load(folder)).verify() == 3


def test_index_of_a_trained_model_opens_with_its_saved_files(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """The files state the dtype of their weights; the model from which they were written does not."""
    rows = [{"anchor": f"cat {i}", "positive": f"stone {i}"} for i in range(4)]
    options: dict[str, Any] = {"criterion": "multiple-negatives", "epochs": 1, "batch_size": 4, "progress": False}
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    old = pellucid.load(folder)
    new = pellucid.train(old, rows, "sentence-similarity", out=tmp_path / "new", **options)
    index = pellucid.Index.build(new, ["a cat", "a dog"], out=tmp_path / "a.index", progress=False)
    assert pellucid.Index.open(index.folder).search("a cat", k=1)[0]["score"] == pytest.approx(1, abs=1e-6)
    assert digest_of_model(pellucid.load(tmp_path / "new").loaded) == digest_of_model(new.loaded)
    new.save(folder, overwrite=True)
    with pytest.raises(InputError, match=r"since .* was loaded from there: load it again"):
        pellucid.Index.open(index.folder, model=old)


def test_index_opens_with_the_revision_that_built_it(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository, old, new = tmp_path / "models--o--tiny", "a" * 40, "b" * 40
    for commit in (old, new):
        shutil.copytree(checkpoint("bert-body"), repository / "snapshots" / commit)
    config_path = repository / "snapshots" / new / "config.json"
    config_path.write_text(json.dumps(json.loads(config_path.read_text()) | {"layer_norm_eps": 0.5}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(new)
    index = pellucid.Index.build(pellucid.load("o/tiny", revision=old), ["a cat", "a dog"], out=tmp_path / "a.index")
    assert pellucid.Index.open(index.folder).verify() == 2
    shutil.copy(repository / "snapshots" / old / "config.json", config_path)  # another revision with the same files
    shutil.rmtree(repository / "snapshots" / old)
    assert pellucid.Index.open(index.folder).verify() == 2


def test_index_of_an_int4_model_needs_an_int4_model(writable_index: pellucid.Index, tmp_path: Path) -> None:
    int4_model = pellucid.load("all-MiniLM-L6-v2", dtype="int4")
    index = pellucid.Index.build(int4_model, ["a cat", "a dog"], out=tmp_path / "narrow.index", progress=False)
    again = pellucid.Index.open(index.folder)
    assert again.verify() == 2 and again.loaded.module.bits == 4
    with pytest.raises(InputError, match=r"built with .* as int4, and .* is float32 here, .*dtype='int4'"):
        pellucid.Index.open(index.folder, model=writable_index.loaded)
    with pytest.raises(InputError, match=r"built with .* as float32, and .* is int4 here, .*dtype='float32'"):
        pellucid.Index.open(writable_index.folder, model=int4_model)
    without_bits = replace(
        index.manifest, encoder=replace(index.manifest.encoder, bits=None)
    )  # as older versions wrote it
    write_manifest(without_bits, index.folder)
    assert pellucid.Index.open(index.folder, model=int4_model).verify() == 2


def test_edited_model_cannot_build_open_or_change_an_index(writable_index: pellucid.Index, tmp_path: Path) -> None:
    model = pellucid.load("all-MiniLM-L6-v2")
    for call in (
        lambda: pellucid.Index.build(model, ["a cat", "a dog"], out=tmp_path / "new.index"),
        lambda: pellucid.Index.open(writable_index.folder, model=model),
    ):
        edited_error = pytest.raises(
            InputError, match="MiniLM-L6-v2 is edited: an index is built, changed and opened outside"
        )
        with edited_error, model.edit({"layers.5.attention.heads": zero(head=3)}):
            call()
    assert not (tmp_path / "new.index").exists()
    index = pellucid.Index.build(model, ["a cat", "a dog"])
    plain = index.encode(["a bird"])
    with model.edit({"layers.5.residual.post": scale(-1.0)}):
        assert np.allclose(index.encode(["a bird"])[0], model.embed("a bird"), atol=1e-6)
        assert not np.allclose(
            index.encode(["a bird"]), plain, atol=0.1
        )  # the edit applies, as in a pipeline made before it
        with pytest.raises(InputError, match=r"is edited: an index is built, changed and opened outside of the block"):
            index.add(["a bird"])
    assert np.array_equal(index.encode(["a bird"]), plain) and len(index) == 2


def test_index_detects_later_changes_of_its_model(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    texts = ["a cat", "a dog"]
    model = pellucid.load(folder)
    index = pellucid.Index.build(model, texts, progress=False)
    with torch.no_grad():
        model.module.embeddings.norm.weight.mul_(-1)
    for call in (
        lambda: index.search("a cat"),
        lambda: index.add(["b"]),
        lambda: index.why("a cat", {"text": "a dog"}),
    ):
        with pytest.raises(
            InputError, match=r"the numbers of .* were changed since it was loaded, and an index is opened"
        ):
            call()
    with torch.no_grad():
        model.module.embeddings.norm.weight.mul_(-1)
    assert index.search("a cat")[0].similarity == pytest.approx(1.0, abs=1e-5)
    for change, fragment in (
        (lambda m: setattr(m.layers[0].attention, "num_heads", 2), "num_heads of layers.0.attention of .* is not what"),
        (lambda m: setattr(m.embeddings.position, "offset", 1), "offset of embeddings.position of .* is not what"),
        (
            lambda m: m.layers[1].register_forward_hook(lambda *_: None),
            "a hook, .*, is set on layers.1, and an index is",
        ),
        (lambda m: setattr(m.layers[1], "forward", m.layers[0].forward), "a hook, or a forward of its own, is set on"),
    ):
        model = pellucid.load(folder)
        change(model.module)
        with pytest.raises(InputError, match=fragment):
            pellucid.Index.build(model, texts, progress=False)
    wrapped = pellucid.load(folder)
    wrapped.module.layers[1].forward = wrapped.module.layers[1].forward  # as accelerate leaves it
    assert len(pellucid.Index.build(wrapped, texts, progress=False)) == 2
    headed = pellucid.load(folder, head="sequence-classification")
    headed.module.head.dropout.p = 0.7  # an index uses no head
    assert len(pellucid.Index.build(headed, texts, progress=False)) == 2


def test_files_of_a_model_are_digested_once(writable_index: pellucid.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the digests, its files are read completely."""
    digested: list[Path] = []
    monkeypatch.setattr(encoder, "digest_of", lambda path: digested.append(path) or digest_of(path))
    again = pellucid.Index.open(writable_index.folder)
    again.search("a cat")
    again.search("a dog")
    assert digested and len(digested) == len(set(digested))


def test_copied_adapter_model_builds_an_index(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base is not searched for again, by a name that may meanwhile mean something else."""
    shutil.copytree(checkpoint("bert-body"), tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    rows = [{"sentence1": "a cat", "sentence2": f"a {i}", "score": i / 4} for i in range(5)]
    options = {"lora": 2, "adapter_only": True, "epochs": 1, "progress": False, "validation": 0.0}
    pellucid.train("base", rows, "similarity", out="adapter", **options)
    facts = json.loads(Path("adapter/adapter_config.json").read_text())
    Path("adapter/adapter_config.json").write_text(json.dumps(facts | {"base_model_name_or_path": "base"}))
    model, wide = (copy.deepcopy(pellucid.load("adapter")) for _ in range(2))
    wide.module.double()
    monkeypatch.chdir("/")
    for other in (model, wide):
        assert len(pellucid.Index.build(other, ["a cat"], progress=False)) == 1


def encoder_with_tokenizer_settings(checkpoint: Callable[[str], Path], folder: Path, **settings: object) -> Loaded:
    """A tiny encoder with these further settings in its tokenizer_config.json."""
    shutil.copytree(checkpoint("bert-body"), folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))
    return pellucid.load(folder).loaded


@pytest.mark.parametrize("options", [{"truncation_side": "left"}, {"do_lower_case": False}])
def test_model_with_other_tokenizer_settings_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, options: dict[str, object]
) -> None:
    first, other = (
        encoder_with_tokenizer_settings(checkpoint, tmp_path / "a"),
        encoder_with_tokenizer_settings(checkpoint, tmp_path / "b", **options),
    )
    check_encoder(
        encoder_of(first), encoder_with_tokenizer_settings(checkpoint, tmp_path / "c", truncation_side="right")
    )
    for index, opened in ((first, other), (other, first)):
        with pytest.raises(InputError, match=r"from the one that built it \(its case, .*: search with that one"):
            check_encoder(encoder_of(index), opened)


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no names of files that are no UTF-8")
def test_model_folder_with_a_non_utf8_name(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xffad")
    shutil.copytree(checkpoint("bert-body"), folder)
    index = pellucid.Index.build(pellucid.load(folder), ["a text", "another one"], out=tmp_path / "index")
    assert ids(pellucid.Index.open(tmp_path / "index").search("a text", k=1)) == ids(index.search("a text", k=1))


def test_older_index_without_reading_settings_requires_truncation_on_the_right(
    writable_index: pellucid.Index, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    (path,) = writable_index.folder.glob("generation-*.json")
    manifest = read_manifest(path)
    write_manifest(replace(manifest, encoder=replace(manifest.encoder, reading="")), writable_index.folder)
    assert ids(pellucid.Index.open(writable_index.folder, model=writable_index.loaded).search("Apple", k=1)) == ["AAPL"]
    first = encoder_with_tokenizer_settings(checkpoint, tmp_path / "a")
    left = encoder_with_tokenizer_settings(checkpoint, tmp_path / "b", truncation_side="left")
    with pytest.raises(InputError, match=r"splits texts differently .*\(it truncates on the left"):
        check_encoder(replace(encoder_of(first), reading=""), left)


def test_missing_and_existing_folders_are_refused(index: pellucid.Index, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no index '.*/no where': .* -o '.*/no where'$"):
        pellucid.Index.open(tmp_path / "no where")
    with pytest.raises(InputError, match="holds an index already"):
        pellucid.Index.build(index.loaded, ["a"], index.folder)
    with pytest.raises(InputError, match="exists already"):
        index.save(tmp_path)
    with pytest.raises(InputError, match="lies within the index itself"):  # the next change would delete it
        index.save(index.folder / "segments" / "kept")


def test_hits_cannot_be_modified(index: pellucid.Index) -> None:
    hits = index.search("Apple", k=1)
    with pytest.raises(TypeError):
        hits[0]["id"] = "x"
    for change in (lambda: hits.append(hits[0]), lambda: hits.sort(), lambda: setattr(hits, "query", "Pear")):
        with pytest.raises(TypeError, match="an answer cannot be changed"):
            change()
    again = pickle.loads(pickle.dumps(hits))
    assert again == hits and again.query == "Apple" and again[0].similarity == hits[0].similarity


@pytest.mark.parametrize("source", [["a text"], "texts.csv", Path("texts"), [{"name": "a text"}], [("1", "a text")]])
def test_texts_without_a_model_are_refused(source: Any) -> None:
    """They were reported as vectors of a wrong shape."""
    for more in ({}, {"column": "name"}):
        with pytest.raises(InputError, match=r"^model is None, and texts were given: name a model$"):
            pellucid.Index.build(None, source, **more)
