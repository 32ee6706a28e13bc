"""Documents ranked by relevance to a query, as in sentence-transformers: by vectors and by a cross-encoder."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, util

import pellucid
from pellucid.errors import CheckpointMismatchError
from tests.checkpoints.builders import edit_json
from tests.parity.tiny import write

QUERY = "Where does the dog sleep?"
DOCUMENTS = [
    "The stock market fell.",
    "A puppy takes its nap in the sunshine.",
    "Dogs bark.",
    "",
    "The dog sleeps here.",
]
FILLER = " ".join("the city has a large river and two old bridges near it".split() * 8).split()[:64]
"""64 words of one token each."""


@pytest.fixture(scope="module")
def pipe(minilm: "pellucid.Model") -> "pellucid.Pipeline":
    return pellucid.pipeline("text-ranking", minilm)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny cross-encoder: it reads a query and a document together and returns one score."""
    return write("bert-one-label", tmp_path_factory.mktemp("judge") / "model")


def assert_close(found: Any, expected: list[dict[str, Any]]) -> None:
    assert [(one["corpus_id"], one["text"]) for one in found] == [(one["corpus_id"], one["text"]) for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=2e-6)


# -- against sentence-transformers -------------------------------------------------------------------------------------


def test_ranking_by_vectors_equals_semantic_search(pipe: "pellucid.Pipeline", minilm_folder: Path) -> None:
    reference = SentenceTransformer(str(minilm_folder), device="cpu")
    (hits,) = util.semantic_search(reference.encode([QUERY]), reference.encode(DOCUMENTS))
    assert_close(pipe(QUERY, DOCUMENTS), [{**one, "text": DOCUMENTS[one["corpus_id"]]} for one in hits])


@pytest.mark.parametrize("name", ["bert-one-label", "albert-similarity"])
def test_ranking_by_cross_encoder_equals_the_reference_s(tmp_path: Path, name: str) -> None:
    folder = write(name, tmp_path / "model")
    if name == "albert-similarity":  # transformers 5 no longer gives ALBERT the token types of a pair; 4 did
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    reference = CrossEncoder(str(folder), device="cpu")
    if name == "albert-similarity":
        reference.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert_close(
        pellucid.pipeline("text-ranking", folder)(QUERY, DOCUMENTS),
        reference.rank(QUERY, DOCUMENTS, return_documents=True),
    )


@pytest.mark.parametrize(
    "activation_facts",
    [
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0"}},
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"version": "5.0"}},
    ],
    ids=["none", "sigmoid", "none in older words", "nothing"],
)
def test_activation_function_of_the_checkpoint_is_used(
    cross_encoder: Path, tmp_path: Path, activation_facts: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(cross_encoder, tmp_path / "model"))
    facts = json.loads((folder / "config.json").read_text()) | activation_facts
    (folder / "config.json").write_text(json.dumps(facts))
    expected = CrossEncoder(str(folder), device="cpu").rank(QUERY, DOCUMENTS, return_documents=True)
    assert_close(pellucid.pipeline("text-ranking", folder)(QUERY, DOCUMENTS), expected)


@pytest.mark.parametrize("function", [torch.nn.Sigmoid(), torch.nn.Identity()], ids=["sigmoid", "none"])
def test_saved_cross_encoders_load_in_both_libraries(cross_encoder: Path, tmp_path: Path, function: Any) -> None:
    """From version 6 on, it saves `modules.json`, and the settings of the score beside `config.json`."""
    CrossEncoder(str(cross_encoder), device="cpu", activation_fn=function).save_pretrained(str(tmp_path / "theirs"))
    assert (tmp_path / "theirs" / "modules.json").is_file()
    expected = CrossEncoder(str(tmp_path / "theirs"), device="cpu").rank(QUERY, DOCUMENTS, return_documents=True)
    model = pellucid.load(tmp_path / "theirs")
    assert_close(pellucid.pipeline("text-ranking", model)(QUERY, DOCUMENTS), expected)
    reloaded = CrossEncoder(str(model.save(tmp_path / "ours")), device="cpu")
    assert_close(reloaded.rank(QUERY, DOCUMENTS, return_documents=True), expected)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 12}, "max_seq_length and do_lower_case of a cross-encoder"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "the modules are Transformer; only"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"message": {"format": "flat"}}},
            "'message'.*without a chat template, for its logits",
        ),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "the modules are Transformer;"),
        ("config_sentence_transformers.json", {"prompts": {"a": "b "}, "default_prompt_name": "a"}, "default_prompt"),
    ],
)
def test_unsupported_settings_of_a_cross_encoder_are_refused(
    cross_encoder: Path, tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    CrossEncoder(str(cross_encoder), device="cpu").save_pretrained(str(tmp_path / "theirs"))
    edit_json(tmp_path / "theirs" / name, lambda settings: settings.update(changes))
    with pytest.raises(CheckpointMismatchError, match=message):
        pellucid.load(tmp_path / "theirs")


def test_function_to_apply_is_selected_by_name(cross_encoder: Path) -> None:
    ours = pellucid.pipeline("text-ranking", cross_encoder)
    logits = ours(QUERY, DOCUMENTS, function_to_apply="none")
    assert ours(QUERY, DOCUMENTS) == ours(QUERY, DOCUMENTS, function_to_apply="sigmoid") != logits
    assert [one["corpus_id"] for one in logits] == [one["corpus_id"] for one in ours(QUERY, DOCUMENTS)]


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_answers_have_one_shape_for_all_options(pipe: "pellucid.Pipeline") -> None:
    ranking = pipe(QUERY, DOCUMENTS)
    assert [set(one) for one in ranking] == [{"corpus_id", "score", "text"}] * 5
    assert sorted(one["corpus_id"] for one in ranking) == [0, 1, 2, 3, 4]
    for top_k in (1, 3, 9):
        assert pipe(QUERY, DOCUMENTS, top_k=top_k) == ranking[:top_k]
    without = pipe(QUERY, DOCUMENTS, return_documents=False)
    assert [set(one) for one in without] == [{"corpus_id", "score"}] * 5
    assert json.loads(json.dumps(ranking)) == ranking
    (empty,) = (one for one in ranking if one["text"] == "")
    assert empty.read.empty and not ranking[0].read.empty


def test_every_form_of_the_input_is_accepted(pipe: "pellucid.Pipeline") -> None:
    expected = pipe(QUERY, DOCUMENTS)
    assert pipe(query=QUERY, documents=DOCUMENTS) == pipe((QUERY, DOCUMENTS)) == expected
    assert pipe({"query": QUERY, "documents": tuple(DOCUMENTS)}) == expected
    assert pipe([(QUERY, DOCUMENTS)]) == [expected] and pipe([]) == []
    first, second = pipe(query=["bark", QUERY], documents=DOCUMENTS)
    assert_close(second, expected)
    assert first[0]["text"] == "Dogs bark."
    first, second = pipe(query=["bark", QUERY], documents=[DOCUMENTS[2:3], DOCUMENTS])
    assert_close(second, expected)
    assert len(first) == 1
    assert pipe(QUERY, numpy.array(DOCUMENTS)) == pipe(QUERY, iter(DOCUMENTS)) == expected
    assert pellucid.pipeline("rerank", pipe.model)(QUERY, DOCUMENTS) == expected


def test_equal_documents_keep_their_order(pipe: "pellucid.Pipeline") -> None:
    assert [one["corpus_id"] for one in pipe(QUERY, ["bark", "nap", "bark", "bark"])] in ([0, 2, 3, 1], [1, 0, 2, 3])


# -- long texts --------------------------------------------------------------------------------------------------------


def test_ten_thousand_words_follow_each_rule(pipe: "pellucid.Pipeline") -> None:
    """The answer is in the middle of a long document about bridges, in a window of its own."""
    fact = "the small brown dog always goes to sleep under the old kitchen table at home".split()
    words = FILLER * 80 + fact + FILLER[len(fact) :] + FILLER * 80
    text, other = " ".join(words), "The trains are late today."
    assert len(words) > 10_000
    with pytest.raises(pellucid.InputError, match=r"document 1 of item 0 has .* tokens more than the 256 "):
        pipe(QUERY, [other, text])
    setting = {"max_length": 66, "stride": 0}
    truncated, windowed = (pipe(QUERY, [other, text], long=rule, **setting) for rule in ("truncate", "windows"))
    assert windowed[0]["text"] == text and windowed[0]["score"] > 0.4 and windowed[0].read.cut == 0
    start, end = windowed[0].read.windows[windowed[0].window]
    assert text[start:end].startswith(" ".join(fact))
    (entry,) = (one for one in truncated if one["text"] == text)
    assert entry["score"] < 0.1 and entry.read.cut == len(words) - 64
    assert windowed[0].whole()["window"] == [start, end]


def test_score_of_a_document_is_that_of_its_best_window(cross_encoder: Path) -> None:
    ours = pellucid.pipeline("text-ranking", cross_encoder, function_to_apply="none")
    text = " ".join(f"word{i} and story" for i in range(30))
    (answer,) = ours(QUERY, [text], long="windows", max_length=48, stride=0)
    parts = [text[start:end] for start, end in answer.read.windows]
    scores = {one["text"]: one["score"] for one in ours(QUERY, parts)}
    assert answer["score"] == pytest.approx(max(scores.values()), abs=1e-5) and len(parts) > 3
    assert scores[parts[answer.window]] == max(scores.values())
    (truncated,) = ours(QUERY, [text], long="truncate", max_length=48)
    assert truncated["score"] == pytest.approx(scores[parts[0]], abs=1e-5) and truncated.read.cut > 0


# -- refused inputs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [None, "alone", ("a", "b"), ("a", []), ("a", [None]), (5, ["a"]), ("a", {"b": 1}), {"query": "a"}, ("a", 5), ["a"]],
)
def test_invalid_item_is_refused_by_number(pipe: "pellucid.Pipeline", item: Any) -> None:
    with pytest.raises(pellucid.InputError, match="item 1"):
        pipe([(QUERY, DOCUMENTS), item])


def test_invalid_arguments_are_refused(pipe: "pellucid.Pipeline", cross_encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(pellucid.InputError, match="function_to_apply was given, and this model compares vectors"):
        pipe(QUERY, DOCUMENTS, function_to_apply="sigmoid")
    with pytest.raises(pellucid.InputError, match="similarity was given, and this model reads query and document"):
        pellucid.pipeline("text-ranking", cross_encoder, similarity="dot")
    with pytest.raises(pellucid.InputError, match="has 3 labels, and text-ranking needs one"):
        pellucid.pipeline("text-ranking", write("bert-feelings", tmp_path / "three"))
    with pytest.raises(pellucid.InputError, match="has token-classification head, and text-ranking needs"):
        pellucid.pipeline("text-ranking", write("bert-people", tmp_path / "tags"))
    with pytest.raises(pellucid.InputError, match="top_k is 0"):
        pipe(QUERY, DOCUMENTS, top_k=0)
    cross_pipe = pellucid.pipeline("text-ranking", cross_encoder)
    for long in ("error", "truncate", "windows"):
        with pytest.raises(pellucid.InputError, match=r"leaves no room for the text in .*: allow more, or shorten it"):
            cross_pipe("a b " * 400, ["b"], long=long)
    with pytest.raises(pellucid.InputError, match="2 queries and 3 lists of documents were given"):
        pipe(query=["a", "b"], documents=[["a"], ["b"], ["c"]])
    with pytest.raises(pellucid.InputError, match="item 0 is str, expected a query and its documents as a tuple"):
        pipe(query=QUERY)
    for query, documents in (
        (["a", "b"], None),
        (None, DOCUMENTS),
        (5, DOCUMENTS),
        (QUERY, 5),
        (QUERY, numpy.array(5)),
    ):
        with pytest.raises(pellucid.InputError, match="item 0"):
            pipe(query, documents)


def test_unknown_activation_function_is_refused(cross_encoder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(cross_encoder, tmp_path / "model"))
    facts = json.loads((folder / "config.json").read_text())
    facts["sbert_ce_default_activation_function"] = "somebody.code.Activation"
    (folder / "config.json").write_text(json.dumps(facts))
    ours = pellucid.pipeline("text-ranking", folder)
    with pytest.raises(pellucid.InputError, match=r"'somebody.code.Activation': pass function_to_apply"):
        ours(QUERY, DOCUMENTS)
    assert len(ours(QUERY, DOCUMENTS, function_to_apply="none")) == 5
