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


def test_the_right_company_comes_first_with_all_that_is_known_of_it(index: pellucid.Index) -> None:
    first = index.search("Apple", k=3)[0]
    assert first["id"] == "AAPL"
    assert first["text"] == "Apple Inc."
    assert first["metadata"]["headquarters"] == "Cupertino, California"
    assert json.loads(json.dumps(first)) == first


@pytest.mark.parametrize(
    ("typed", "meant"), [("Microsfot", "MSFT"), ("Amazn", "AMZN"), ("Starbuks", "SBUX"), ("Pfzier", "PFE")]
)
def test_a_mistyped_name_is_found_and_what_was_taken_for_it_is_said(
    index: pellucid.Index, typed: str, meant: str
) -> None:
    hits = index.search(typed, k=3)
    assert hits[0]["id"] == meant
    assert hits.corrected is not None


def test_the_meaning_is_found_where_no_word_fits(index: pellucid.Index) -> None:
    assert "KO" in ids(index.search("soft drinks", k=5, mode="dense"))
    assert index.search("xylophone zither", mode="words") == []


def test_the_same_query_has_the_same_answer_alone_and_among_others(index: pellucid.Index) -> None:
    alone = index.search("coffee", k=10)
    among = index.search(["burgers", "coffee", "a longer query about oil and gas in Texas"], k=10)[1]
    again = pellucid.Index.open(index.folder).search("coffee", k=10)
    assert ids(alone) == ids(among) == ids(again)
    assert np.allclose([h["score"] for h in alone], [h["score"] for h in among], atol=1e-6)


def test_vectors_are_queries_too_and_their_similarity_is_exact(index: pellucid.Index, minilm: pellucid.Model) -> None:
    query = minilm.embed("computers and phones")
    hits = index.search(query, k=5)
    true = minilm.embed([hit["text"] for hit in hits]) @ query
    assert np.allclose([hit.similarity for hit in hits], true.numpy(), atol=1e-5)
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
def test_a_condition_leaves_what_fits_and_nothing_else(index: pellucid.Index, where: object) -> None:
    hits = index.search("a bank", k=100, where=where)
    assert hits
    assert {hit["metadata"]["sector"] for hit in hits} == {"Financials"}


def test_numbers_are_compared_as_numbers(index: pellucid.Index) -> None:
    old = index.search("company", k=100, where={"founded": {"<": 1900}})
    assert old and all(int(hit["metadata"]["founded"]) < 1900 for hit in old)
    everyone = index.search("company", k=100)
    fitting = [hit for hit in everyone if hit["metadata"]["founded"] and int(hit["metadata"]["founded"]) < 1900]
    assert sorted(ids(old)) == sorted(ids(fitting))


def test_a_condition_on_a_column_that_no_row_has_names_near_ones(index: pellucid.Index) -> None:
    with pytest.raises(InputError, match=r"sectr.*did you mean sector"):
        index.search("a bank", where="sectr = Financials")
    with pytest.raises(InputError, match="cannot read the condition"):
        index.search("a bank", where="sector")


def test_what_is_added_is_found_and_what_is_deleted_is_not(own: pellucid.Index) -> None:
    before = len(own)
    assert own.add([{"symbol": "ZEB", "name": "Zebra crossing makers", "sector": "Paint"}]) == 1
    assert own.search("zebra crossings", k=1)[0]["metadata"]["sector"] == "Paint"
    assert own.update([{"symbol": "ZEB", "name": "Purple elephants", "sector": "Toys"}]) == 0
    assert own.search("elephant", k=1)[0]["id"] == "ZEB"
    assert "Zebra crossing makers" not in [hit["text"] for hit in own.search("zebra crossing", k=200)]
    assert own.delete("ZEB") == 1
    assert len(own) == before
    assert "ZEB" not in ids(own.search("elephant", k=200))


def test_a_change_is_what_opens_and_a_reader_keeps_what_it_opened(own: pellucid.Index) -> None:
    reader = pellucid.Index.open(own.folder, model=own.loaded)
    own.delete(["AAPL"])
    assert reader.search("Apple", k=1)[0]["id"] == "AAPL"
    assert "AAPL" not in ids(pellucid.Index.open(own.folder, model=own.loaded).search("Apple", k=200))


def test_an_id_that_is_there_already_and_one_that_is_not_change_nothing(own: pellucid.Index) -> None:
    with pytest.raises(InputError, match="AAPL are in the index already: pass update=True to"):
        own.add([{"symbol": "AAPL", "name": "Another", "sector": ""}])
    with pytest.raises(InputError, match=r"and \d\d more are in the index already"):
        own.add([{"symbol": id_, "name": "Another", "sector": ""} for id_ in own.segments[0].entries.ids()])
    with pytest.raises(InputError, match="no text has the id 'NOPE'"):
        own.delete(["AAPL", "NOPE"])
    assert len(own) == 100
    assert own.search("Apple", k=1)[0]["text"] == "Apple Inc."


def test_worn_segments_are_written_anew_and_answer_the_same(own: pellucid.Index) -> None:
    own.delete(where={"sector": ["Financials", "Health Care", "Industrials"]})
    assert own.manifest.segments[0].dead == "" and len(own.manifest.segments) == 1
    assert own.manifest.segments[0].rows == len(own)
    expected = own.search("oil", k=5)
    own.add([{"symbol": "NEW", "name": "Something new", "sector": ""}])
    own.compact()
    assert len(own.manifest.segments) == 1
    assert ids(own.search("oil", k=5)) == ids(expected)


def test_metrics_order_as_they_should(minilm: pellucid.Model, companies: Path, tmp_path: Path) -> None:
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
            made = pellucid.Index.build(None, vectors, metric=metric, kind=kind)
            assert ids(made.search(query, k=8)) == [str(i + 1) for i in order[:8]], (metric, kind)


def test_vectors_alone_make_an_index_that_takes_vectors_alone() -> None:
    made = pellucid.Index.build(None, np.eye(4, dtype=np.float32))
    assert ids(made.search(np.array([0, 0, 1, 0]), k=2))[0] == "3"
    with pytest.raises(InputError, match="built from vectors"):
        made.search("a text")
    with pytest.raises(InputError, match="queries have 3 numbers, expected 4"):
        made.search(np.ones(3))
    with pytest.raises(InputError, match="row 0 holds a number that is not finite"):
        made.search(np.array([0, np.nan, 0, 0]))
    with pytest.raises(InputError, match="are a masked array"):
        pellucid.Index.build(None, np.ma.masked_array(np.eye(2), mask=[[0, 1], [0, 0]]))


def test_no_model_reads_for_vectors_that_were_given(minilm: pellucid.Model, tmp_path: Path) -> None:
    index = pellucid.Index.build(None, np.eye(384, dtype=np.float32)[:5], tmp_path / "a.index", progress=False)
    for ask in (
        lambda: index.search("a text"),
        lambda: index.add(["a text"]),
        lambda: pellucid.Index.open(index.folder, model=minilm),
    ):
        with pytest.raises(InputError, match="no model reads texts for it: search with vectors, or build it again"):
            ask()
    assert index.delete(["5"]) == 1 and len(index) == 4


@pytest.mark.parametrize(
    "said", [{"column": "a"}, {"id_column": "a"}, {"prompt": "x: "}, {"on_duplicate": "keep-last"}]
)
def test_what_is_of_texts_is_not_passed_over_where_vectors_are_given(said: dict) -> None:
    with pytest.raises(InputError, match=f"{next(iter(said))} is for texts, and vectors were given"):
        pellucid.Index.build(None, np.eye(3), **said)


def test_an_index_names_the_folder_from_which_its_model_came(
    own: pellucid.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the working directory has become since it was loaded."""
    pellucid.Model(own.loaded).save(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    model = pellucid.load("mine")
    monkeypatch.chdir("/")
    built = pellucid.Index.build(model, ["a house", "a tree"], tmp_path / "an.index", progress=False)
    assert built.info()["encoder"]["name"] == str(tmp_path / "mine")
    assert pellucid.Index.open(built.folder).search("a tree", k=1)[0]["text"] == "a tree"


def test_an_index_that_was_moved_answers_on_and_leaves_no_folder_where_it_was(own: pellucid.Index) -> None:
    elsewhere = own.folder.rename(own.folder.with_name("moved.index"))
    assert own.search("Microsoft", k=1)[0]["id"] == "MSFT"
    for change in (lambda: own.add([{"symbol": "X", "name": "y"}]), lambda: own.delete("MSFT"), own.compact):
        with pytest.raises(NotFoundError, match="there is no index"):
            change()
    assert not own.folder.exists()
    elsewhere.rename(own.folder)
    assert own.delete("MSFT") == 1


def test_k_is_clipped_and_never_answered_with_nothing(index: pellucid.Index) -> None:
    assert len(index.search("Apple", k=1_000)) == 100
    for k in (0, -1, 1.5):
        with pytest.raises(InputError, match="k is"):
            index.search("Apple", k=k)  # type: ignore[arg-type]
    for query in ("", "  ", ["Apple", ""], [None, "Apple"]):
        with pytest.raises(InputError, match="query"):
            index.search(query)  # type: ignore[arg-type]


def test_long_texts_are_found_by_their_passages(minilm: pellucid.Model) -> None:
    filler = "The weather was mild and nobody said much about it. " * 40
    texts = [("tea", filler + "The recipe for green tea needs hot water." + filler), ("rest", filler)]
    made = pellucid.Index.build(minilm, texts, passage_tokens=64, progress=False)
    hit = made.search("how to make green tea", k=2)[0]
    assert hit["id"] == "tea"
    assert "green tea" in hit["text"]
    assert texts[0][1][hit["start"] : hit["end"]] == hit["text"]
    assert len(made.search("weather", k=10)) == 2


def test_no_accent_is_lost_between_passages(minilm: pellucid.Model) -> None:
    """The tokenizer strips accents, and counts them among the characters of no token."""
    words = ["cafe\u0301", "\u0939\u0948\u0902", "a\u0323\u0302", "\u0645\u064e"]
    text = " ".join(words * 60)
    cut = passage_span_function(minilm.loaded, 30, "")(text, 0)
    assert len(cut) > 9 and cut[-1][1] == len(text)
    assert all(text[last : last + 1] in (" ", "") for _, last in cut)
    parted = passage_span_function(minilm.loaded, 12, "")(hindi := "\u0915\u093f\u0924\u093e\u092c " * 60, 0)
    assert len(parted) > 9 and not any(unicodedata.category(hindi[first])[0] == "M" for first, _ in parted)
    for piece, start, first in (("\u0301a", 0, 0), ("a \u0301b", 2, 2), ("a\u0301", 1, 1), ("a\u0301b", 1, 2)):
        assert (
            start_without_marks(piece, start, len(piece)) == first
        )  # where marks have no letter, or nothing else is there


def test_passages_are_as_long_as_the_model_reads_behind_a_prompt(
    minilm: pellucid.Model, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = "A passage that answers what somebody asks, perhaps in other words: "
    text = "nothing " * 240 + "The capital of Burkina Faso is Ouagadougou."
    made = pellucid.Index.build(minilm, [text], prompt=prompt, progress=False)
    made.add(["else " * 240 + "The capital of Japan is Tokyo."], progress=False)
    assert len(made.manifest.segments) == 2 and made.manifest.rows == 4
    assert "were cut" not in caplog.text
    with pytest.raises(InputError, match="prompt has 300 tokens, which leaves no room for a text"):
        pellucid.Index.build(minilm, [text], prompt="so " * 300, progress=False)


def test_another_model_is_refused(own: pellucid.Index) -> None:
    other = pellucid.load("all-MiniLM-L6-v2")
    with np.errstate(all="ignore"):
        next(iter(other.parameters())).data.mul_(2)
    assert pellucid.Index.open(own.folder, model=other)  # same files; PyTorch does not notice a write by `data`
    bert = pellucid.Config.of("bert", vocab_size=30522, hidden_size=384, num_hidden_layers=1, num_attention_heads=12)
    untrained = pellucid.build(bert, tokenizer=other.tokenizer)
    with pytest.raises(InputError, match="not trained"):
        pellucid.Index.open(own.folder, model=untrained)


def turn(module: Any) -> None:
    with torch.no_grad():
        module.embeddings.norm.weight.mul_(-1)


def empty(module: Any) -> None:
    next(one for name, one in low_bit_tensors(module).items() if name.endswith("codes")).zero_()


def swap(module: Any) -> None:
    first, second = module.layers[:2]
    first.attention, second.attention = second.attention, first.attention


def test_a_model_whose_numbers_were_changed_since_it_was_loaded_is_saved_first(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would open the index with the weights of the files, and find nothing."""
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    model = pellucid.load(folder)
    built = pellucid.Index.build(model, ["a cat"], out=tmp_path / "a.index", progress=False)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert pellucid.Index.open(built.folder, model=same)
    with torch.no_grad():
        model.module.layers[0].attention.query.weight.add_(0.1)
    for ask in (
        lambda: pellucid.Index.build(model, ["a cat"], progress=False),
        lambda: pellucid.Index.open(built.folder, model=model),
        lambda: pellucid.Index.open(built.folder, model=copy.deepcopy(model)),
    ):
        with pytest.raises(InputError, match="were changed since it was loaded, and an index is opened with those of"):
            ask()
    for bits, change in itertools.product(("int8", "int4"), (turn, empty, swap)):
        few = pellucid.load(folder, dtype=bits)
        few.embed("a cat")
        for same in (few, copy.deepcopy(few)):
            assert pellucid.Index.build(same, ["a cat"], progress=False)
        change(few.module)
        for changed in (few, copy.deepcopy(few)):
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


def test_a_model_whose_files_were_replaced_since_it_was_loaded_is_loaded_again(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    old = pellucid.load(folder)
    weights = folder / "model.safetensors"
    shutil.copy(weights, tmp_path / "new")
    (folder / "README.md").write_text("of no vector")
    built = pellucid.Index.build(old, ["a cat", "a dog"], out=tmp_path / "a.index", progress=False)
    built.add(["a mouse"], progress=False)
    (tmp_path / "new").replace(weights)
    for ask in (
        lambda: pellucid.Index.build(old, ["a cat", "a dog"], out=tmp_path / "b.index", progress=False),
        lambda: pellucid.Index.open(built.folder, model=old),
        lambda: built.add(["a bird"], progress=False),
    ):
        with pytest.raises(InputError, match=rf"{weights} was replaced, added or removed since .* was loaded"):
            ask()
    assert not (tmp_path / "b.index").exists()
    assert pellucid.Index.open(built.folder, model=pellucid.load(folder)).verify() == 3


def test_an_index_of_a_model_just_trained_is_opened_by_what_was_written(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """The files state the dtype of their weights; the model from which they were written does not."""
    rows = [{"anchor": f"cat {i}", "positive": f"stone {i}"} for i in range(4)]
    how: dict[str, Any] = {"criterion": "multiple-negatives", "epochs": 1, "batch_size": 4, "progress": False}
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    old = pellucid.load(folder)
    new = pellucid.train(old, rows, "sentence-similarity", out=tmp_path / "new", **how)
    built = pellucid.Index.build(new, ["a cat", "a dog"], out=tmp_path / "a.index", progress=False)
    assert pellucid.Index.open(built.folder).search("a cat", k=1)[0]["score"] == pytest.approx(1, abs=1e-6)
    assert digest_of_model(pellucid.load(tmp_path / "new").loaded) == digest_of_model(new.loaded)
    new.save(folder, overwrite=True)
    with pytest.raises(InputError, match=r"since .* was loaded from there: load it again"):
        pellucid.Index.open(built.folder, model=old)


def test_the_revision_that_built_an_index_reads_for_it(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository, old, new = tmp_path / "models--o--tiny", "a" * 40, "b" * 40
    for commit in (old, new):
        shutil.copytree(checkpoint("bert-body"), repository / "snapshots" / commit)
    said = repository / "snapshots" / new / "config.json"
    said.write_text(json.dumps(json.loads(said.read_text()) | {"layer_norm_eps": 0.5}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(new)
    built = pellucid.Index.build(pellucid.load("o/tiny", revision=old), ["a cat", "a dog"], out=tmp_path / "a.index")
    assert pellucid.Index.open(built.folder).verify() == 2
    shutil.copy(repository / "snapshots" / old / "config.json", said)  # another revision with the same files
    shutil.rmtree(repository / "snapshots" / old)
    assert pellucid.Index.open(built.folder).verify() == 2


def test_an_index_of_a_model_in_4_bits_is_read_by_one_in_4_bits(own: pellucid.Index, tmp_path: Path) -> None:
    narrow = pellucid.load("all-MiniLM-L6-v2", dtype="int4")
    made = pellucid.Index.build(narrow, ["a cat", "a dog"], out=tmp_path / "narrow.index", progress=False)
    again = pellucid.Index.open(made.folder)
    assert again.verify() == 2 and again.loaded.module.bits == 4
    with pytest.raises(InputError, match=r"built with .* as int4, and .* is float32 here, .*dtype='int4'"):
        pellucid.Index.open(made.folder, model=own.loaded)
    with pytest.raises(InputError, match=r"built with .* as float32, and .* is int4 here, .*dtype='float32'"):
        pellucid.Index.open(own.folder, model=narrow)
    unsaid = replace(made.manifest, encoder=replace(made.manifest.encoder, bits=None))  # as older versions wrote it
    write_manifest(unsaid, made.folder)
    assert pellucid.Index.open(made.folder, model=narrow).verify() == 2


def test_an_edited_model_is_not_taken_for_the_plain_one(own: pellucid.Index, tmp_path: Path) -> None:
    model = pellucid.load("all-MiniLM-L6-v2")
    for ask in (
        lambda: pellucid.Index.build(model, ["a cat", "a dog"], out=tmp_path / "new.index"),
        lambda: pellucid.Index.open(own.folder, model=model),
    ):
        said = pytest.raises(InputError, match="MiniLM-L6-v2 is edited: an index is built, changed and opened outside")
        with said, model.edit({"layers.5.attention.heads": zero(head=3)}):
            ask()
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


def test_a_model_that_was_changed_is_heard_of_by_its_index(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint("bert-body"), tmp_path / "model")
    texts = ["a cat", "a dog"]
    model = pellucid.load(folder)
    index = pellucid.Index.build(model, texts, progress=False)
    with torch.no_grad():
        model.module.embeddings.norm.weight.mul_(-1)
    for ask in (lambda: index.search("a cat"), lambda: index.add(["b"]), lambda: index.why("a cat", {"text": "a dog"})):
        with pytest.raises(
            InputError, match=r"the numbers of .* were changed since it was loaded, and an index is opened"
        ):
            ask()
    with torch.no_grad():
        model.module.embeddings.norm.weight.mul_(-1)
    assert index.search("a cat")[0].similarity == pytest.approx(1.0, abs=1e-5)
    for change, said in (
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
        with pytest.raises(InputError, match=said):
            pellucid.Index.build(model, texts, progress=False)
    wrapped = pellucid.load(folder)
    wrapped.module.layers[1].forward = wrapped.module.layers[1].forward  # as accelerate leaves it
    assert len(pellucid.Index.build(wrapped, texts, progress=False)) == 2
    headed = pellucid.load(folder, head="sequence-classification")
    headed.module.head.dropout.p = 0.7  # an index uses no head
    assert len(pellucid.Index.build(headed, texts, progress=False)) == 2


def test_a_model_that_is_opened_for_an_index_is_checked_once(
    own: pellucid.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the digests, its files are read completely."""
    asked: list[Path] = []
    monkeypatch.setattr(encoder, "digest_of", lambda path: asked.append(path) or digest_of(path))
    again = pellucid.Index.open(own.folder)
    again.search("a cat")
    again.search("a dog")
    assert asked and len(asked) == len(set(asked))


def test_the_copy_of_an_adapter_is_that_of_its_files(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base is not searched for again, by a name that may meanwhile mean something else."""
    shutil.copytree(checkpoint("bert-body"), tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    rows = [{"sentence1": "a cat", "sentence2": f"a {i}", "score": i / 4} for i in range(5)]
    learned = {"lora": 2, "adapter_only": True, "epochs": 1, "progress": False, "validation": 0.0}
    pellucid.train("base", rows, "similarity", out="adapter", **learned)
    facts = json.loads(Path("adapter/adapter_config.json").read_text())
    Path("adapter/adapter_config.json").write_text(json.dumps(facts | {"base_model_name_or_path": "base"}))
    model, wide = (copy.deepcopy(pellucid.load("adapter")) for _ in range(2))
    wide.module.double()
    monkeypatch.chdir("/")
    for other in (model, wide):
        assert len(pellucid.Index.build(other, ["a cat"], progress=False)) == 1


def reading(checkpoint: Callable[[str], Path], place: Path, **settings: object) -> Loaded:
    """A tiny encoder with these further settings in its tokenizer_config.json."""
    shutil.copytree(checkpoint("bert-body"), place)
    said = place / "tokenizer_config.json"
    said.write_text(json.dumps((json.loads(said.read_text()) if said.exists() else {}) | settings))
    return pellucid.load(place).loaded


@pytest.mark.parametrize("said", [{"truncation_side": "left"}, {"do_lower_case": False}])
def test_a_model_that_reads_texts_otherwise_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path, said: dict[str, object]
) -> None:
    usual, other = reading(checkpoint, tmp_path / "a"), reading(checkpoint, tmp_path / "b", **said)
    check_encoder(encoder_of(usual), reading(checkpoint, tmp_path / "c", truncation_side="right"))
    for built, asked in ((usual, other), (other, usual)):
        with pytest.raises(InputError, match=r"from the one that built it \(its case, .*: search with that one"):
            check_encoder(encoder_of(built), asked)


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no names of files that are no UTF-8")
def test_a_model_in_a_folder_whose_name_is_no_utf8(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"b\xffad")
    shutil.copytree(checkpoint("bert-body"), folder)
    built = pellucid.Index.build(pellucid.load(folder), ["a text", "another one"], out=tmp_path / "index")
    assert ids(pellucid.Index.open(tmp_path / "index").search("a text", k=1)) == ids(built.search("a text", k=1))


def test_an_index_that_does_not_say_how_texts_were_read_opens_where_their_ends_are_cut(
    own: pellucid.Index, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    (path,) = own.folder.glob("generation-*.json")
    manifest = read_manifest(path)
    write_manifest(replace(manifest, encoder=replace(manifest.encoder, reading="")), own.folder)
    assert ids(pellucid.Index.open(own.folder, model=own.loaded).search("Apple", k=1)) == ["AAPL"]
    usual = reading(checkpoint, tmp_path / "a")
    left = reading(checkpoint, tmp_path / "b", truncation_side="left")
    with pytest.raises(InputError, match=r"splits texts differently .*\(it truncates on the left"):
        check_encoder(replace(encoder_of(usual), reading=""), left)


def test_no_folder_and_a_folder_that_is_taken_are_said(index: pellucid.Index, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no index '.*/no where': .* -o '.*/no where'$"):
        pellucid.Index.open(tmp_path / "no where")
    with pytest.raises(InputError, match="holds an index already"):
        pellucid.Index.build(index.loaded, ["a"], index.folder)
    with pytest.raises(InputError, match="exists already"):
        index.save(tmp_path)
    with pytest.raises(InputError, match="lies within the index itself"):  # the next change would delete it
        index.save(index.folder / "segments" / "kept")


def test_a_hit_is_an_answer(index: pellucid.Index) -> None:
    hits = index.search("Apple", k=1)
    with pytest.raises(TypeError):
        hits[0]["id"] = "x"
    for change in (lambda: hits.append(hits[0]), lambda: hits.sort(), lambda: setattr(hits, "query", "Pear")):
        with pytest.raises(TypeError, match="an answer cannot be changed"):
            change()
    again = pickle.loads(pickle.dumps(hits))
    assert again == hits and again.query == "Apple" and again[0].similarity == hits[0].similarity


@pytest.mark.parametrize("source", [["a text"], "texts.csv", Path("texts"), [{"name": "a text"}], [("1", "a text")]])
def test_texts_without_a_model_are_told(source: Any) -> None:
    """They were reported as vectors of a wrong shape."""
    for more in ({}, {"column": "name"}):
        with pytest.raises(InputError, match=r"^model is None, and texts were given: name a model$"):
            pellucid.Index.build(None, source, **more)
