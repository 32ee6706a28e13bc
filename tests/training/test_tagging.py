"""Tagging: the reference's loss and labels, long sentences, CoNLL files, and finding planted names."""

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pellucid
from pellucid.checkpoints.save import save_checkpoint
from pellucid.errors import InputError
from pellucid.training import tags
from pellucid.training.data import read
from pellucid.training.formats import read_conll
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED
from pellucid.training.objective import Example
from pellucid.training.settings import Settings
from pellucid.training.tagging import TokenClassification
from tests.tasks.planted_facts import WORDS
from tests.training.whole_run import objective_and_model, run_loop, trained_model

Rows = list[dict[str, Any]]
LoadTiny = Callable[..., "pellucid.Model"]

NAMES = {"LOC": (("Berlin",), ("Oxford",), ("Vienna",)), "PER": (("Gustave", "Eiffel"), ("Buzz", "Aldrin"))}
ANGELA = {"tokens": ["Angela", "Merkel", "visited", "Zürich", "."], "tags": ["B-PER", "I-PER", "O", "B-LOC", "O"]}
GENERATOR = np.random.default_rng(0)


def rows(count: int, seed: int = 0) -> Rows:
    """Sentences with planted names."""
    generator, found = random.Random(seed), []
    for _ in range(count):
        parts = [([word], ["O"]) for word in generator.choices(WORDS, k=generator.randint(3, 8))]
        for kind, names in NAMES.items():
            if generator.random() < 0.6:
                name = generator.choice(names)
                tagged = [f"{'I' if i else 'B'}-{kind}" for i in range(len(name))]
                parts.insert(generator.randint(0, len(parts)), (list(name), tagged))
        found.append(
            {"tokens": [w for part in parts for w in part[0]], "tags": [tag for part in parts for tag in part[1]]}
        )
    return found


def prepare_training(
    model: "pellucid.Model", data: Rows, **options: Any
) -> tuple[TokenClassification, "pellucid.Model", list[Example]]:
    """The objective, the model at the start of training, and the examples."""
    objective, loaded = objective_and_model(model.loaded, TokenClassification(**options), data)
    return objective, pellucid.Model(loaded), objective.examples(loaded, data)


# -- against the reference ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-cased-reader", "roberta-people", "xlm-roberta-people", "albert-people"])
def test_words_are_labelled_at_their_first_token(
    load_tiny: LoadTiny, checkpoint: Callable[[str], Path], name: str
) -> None:
    data = [ANGELA, *rows(5)]
    model, tokenizer = (
        load_tiny(name, head=None),
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(checkpoint(name) / "tokenizer.json")),
    )
    _, prepared, examples = prepare_training(model, data)
    labels = prepared.config.labels
    assert labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    for row, example in zip(data, examples):
        encoded = tokenizer(" ".join(row["tokens"]))
        word_ids = encoded.word_ids()
        assert example.ids[0] == encoded["input_ids"]
        assert example.target.labels == [
            labels.index(row["tags"][word]) if word is not None and word != word_ids[i - 1] else IGNORED
            for i, word in enumerate(word_ids)
        ]


def test_loss_equals_the_reference_s(load_tiny: LoadTiny, tmp_path: Path) -> None:
    data = rows(6)
    objective, prepared, examples = prepare_training(load_tiny("bert-body"), data)
    batch = objective.collate(prepared.loaded, examples, GENERATOR)
    assert (batch["labels"] != IGNORED).sum() == objective.weight(batch) == sum(len(row["tokens"]) for row in data)
    save_checkpoint(prepared.loaded, tmp_path / "begun")
    reference = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "begun")
    expected = reference(**batch).loss * objective.weight(batch)
    expected.backward()
    learner = Learner(prepared.loaded, Settings(precision="float32"))
    learner.seed_dropout(0, 0)
    loss = objective.loss(learner, batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
    ours = dict(prepared.module.named_parameters())["head.classifier.weight"].grad
    assert torch.allclose(ours, reference.classifier.weight.grad, atol=1e-4)


# -- reading data ------------------------------------------------------------------------------------------------------


def test_long_sentence_labels_each_word_once(load_tiny: LoadTiny) -> None:
    (long,) = [{name: [x for row in rows(12) for x in row[name]] for name in ("tokens", "tags")}]
    _, prepared, examples = prepare_training(load_tiny("bert-body"), [long], max_length=24)
    labels = prepared.config.labels
    assert len(examples) > 3 and all(len(one.ids[0]) <= 24 for one in examples)
    words = [number for one in examples for _, number in one.target.words]
    assert sorted(words) == list(range(len(long["tokens"])))
    for one in examples:
        assert [labels[one.target.labels[token]] for token, _ in one.target.words] == [
            long["tags"][number] for _, number in one.target.words
        ]
        assert sum(label != IGNORED for label in one.target.labels) == len(one.target.words)


def test_every_piece_labels_all_tokens_of_a_word(load_tiny: LoadTiny) -> None:
    _, prepared, (first,) = prepare_training(load_tiny("bert-body"), [ANGELA])
    _, _, (every,) = prepare_training(load_tiny("bert-body"), [ANGELA], every_piece=True)
    labels = ["-" if i == IGNORED else prepared.config.labels[i] for i in every.target.labels]
    assert labels[0] == labels[-1] == "-" and "-" not in labels[1:-1]
    assert labels.count("B-PER") == labels.count("B-LOC") == 1
    labelled = [i for i, label in enumerate(first.target.labels) if label != IGNORED]
    assert [every.target.labels[i] for i in labelled] == [first.target.labels[i] for i in labelled]
    assert len(labelled) == 5 < len(labels) - 2


def test_character_entities_become_word_tags(load_tiny: LoadTiny) -> None:
    text = "Angela Merkel visited Zürich ."
    spans = [{"start": 22, "end": 28, "label": "LOC"}, [0, 13, "PER"]]
    _, prepared, (from_entities,) = prepare_training(load_tiny("bert-body"), [{"text": text, "entities": spans}])
    _, other, (from_tags,) = prepare_training(load_tiny("bert-body"), [ANGELA])
    assert from_entities.ids == from_tags.ids and from_entities.target.labels == from_tags.target.labels
    assert prepared.config.labels == other.config.labels


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncated_words_are_neither_trained_nor_scored(load_tiny: LoadTiny, side: str) -> None:
    model = load_tiny("bert-body")
    model.tokenizer.settings["truncation_side"] = side
    names = ["Berlin", *["dog"] * 20, "Vienna"]
    text = " ".join(names)
    spans = [{"start": text.index(name), "end": text.index(name) + 6, "label": "LOC"} for name in ("Berlin", "Vienna")]
    data = [{"tokens": names, "tags": ["B-LOC", *["O"] * 20, "B-LOC"]}, {"text": text, "entities": spans}]
    _, _, (from_tags, from_entities) = prepare_training(model, data, long="truncate", max_length=12)
    assert (
        from_tags.ids == from_entities.ids
        and from_tags.target.labels == from_entities.target.labels
        and from_tags.target.words == from_entities.target.words
    )
    assert from_tags.target.truth == from_entities.target.truth and len(from_tags.target.truth) == len(
        from_tags.target.words
    ) < len(names)
    assert (
        from_tags.target.truth[0 if side == "right" else -1] == "B-LOC" and from_tags.target.truth.count("B-LOC") == 1
    )


def test_lists_in_a_table_are_json_or_separated_by_spaces(body: "pellucid.Model") -> None:
    rows = [ANGELA, {"tokens": ["[", "a", "]"], "tags": ["O", "O", "O"]}, {"tokens": ["[1]"], "tags": ["O"]}]
    _, _, expected = prepare_training(body, rows)
    for as_text in (json.dumps, " ".join):
        _, _, found = prepare_training(body, [{name: as_text(cell) for name, cell in row.items()} for row in rows])
        assert [(one.ids, one.target.truth) for one in found] == [(one.ids, one.target.truth) for one in expected]


def test_answers_of_the_pipeline_are_accepted_as_entities(load_tiny: LoadTiny) -> None:
    answers = [{"entity_group": "PER", "score": 0.9, "word": "Angela Merkel", "start": 0, "end": 13}]
    _, _, (one,) = prepare_training(load_tiny("bert-body"), [{"text": "Angela Merkel visited", "entities": answers}])
    assert one.target.truth == ["B-PER", "I-PER", "O"]


def test_model_with_the_labels_keeps_them_and_its_head(load_tiny: LoadTiny) -> None:
    model = load_tiny("bert-people")
    head = dict(model.named_parameters())["head.classifier.weight"]
    _, prepared, _ = prepare_training(model, [ANGELA | {"tags": ["O", "O", "O", "B-LOC", "O"]}])
    assert prepared.config.labels == model.config.labels
    assert torch.equal(dict(prepared.named_parameters())["head.classifier.weight"], head)


def test_labels_without_b_prefix_are_scored(load_tiny: LoadTiny) -> None:
    loaded = load_tiny("gpt2-inside").loaded
    (one,) = TokenClassification().examples(loaded, [ANGELA])
    labels = [loaded.config.labels[i] for i in one.target.labels if i != IGNORED]
    assert labels == ["I-PER", "I-PER", "O", "I-LOC", "O"]
    assert 0.0 <= TokenClassification().score(loaded, [one])["f1"] <= 1.0


def test_accuracy_uses_the_labels_that_the_model_has(load_tiny: LoadTiny) -> None:
    loaded = load_tiny("gpt2-inside").loaded
    bias = dict(loaded.module.named_parameters())["head.classifier.bias"]
    with torch.no_grad():  # it always predicts I-PER
        bias += 1e3 * torch.tensor([label == "I-PER" for label in loaded.config.labels])
    objective, names = TokenClassification(), ["Angela", "Merkel", "Gustave", "Eiffel"]
    examples = objective.examples(loaded, [{"tokens": names, "tags": ["B-PER", "I-PER", "B-PER", "I-PER"]}])
    scores = objective.score(loaded, examples)
    assert scores["accuracy"] == 1.0 and scores["recall"] == 0.0  # no label separates adjacent names


def test_tag_schemes_are_converted_and_parsed() -> None:
    assert tags.head_labels(["I-PER", "B-LOC", "O", "B-PER"]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert tags.head_labels(["VERB", "NOUN"]) == ("NOUN", "VERB")
    assert tags.to_iob2(["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"]) == [
        *("B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER")
    ]
    found = tags.entity_spans(
        ["B-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER", "S-PER", "B-LOC", "E-LOC", "I-LOC"], True
    )
    assert found == [
        *(("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4), ("PER", 5, 5), ("PER", 6, 6), ("LOC", 7, 8), ("LOC", 9, 9))
    ]
    assert tags.entity_spans(["NOUN", "NOUN", "O"], False) == [("NOUN", 0, 0), ("NOUN", 1, 1)]


def test_iob1_tags_are_converted_and_reported(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    data = [{"tokens": list("abcde"), "tags": ["I-LOC", "I-LOC", "B-LOC", "O", "I-PER"]}]  # IOB1
    _, _, (one,) = prepare_training(body, read(data).rows)
    assert one.target.truth == ["B-LOC", "I-LOC", "B-LOC", "O", "B-PER"]
    assert "2 entities begin with I-, which is read as B- (the first: row 0, word 0)" in caplog.text


def test_label_without_prefix_among_prefixed_ones_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    row = {"tokens": list("abcd"), "tags": ["B-PER", "I-PER", "0", "O"]}
    TokenClassification().fitted([row])
    assert "the labels 0 lack B- and I-, so those of the others are part of the name" in caplog.text
    caplog.clear()
    for accepted in (["NOUN", "B-X", "O", "O"], ["B-PER", "I-PER", "U-PER", "O"]):
        TokenClassification().fitted([row | {"tags": accepted}])
    assert not caplog.messages


def test_conll_file_is_read(shared: Callable[[str], Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(shared("data/conll2002/conll2002.zip")) as archive:
        archive.extract("conll2002/esp.testa", tmp_path)
    path = tmp_path / "conll2002" / "esp.testa"
    found = read_conll(path)
    assert len(found) == 1915 and sum(len(row["tokens"]) for row in found) == 52923  # the count of the shared task
    assert found[0]["tags"][:5] == ["B-LOC", "I-LOC", "O", "B-LOC", "O"] and "español" in found[1]["tokens"] + [
        "español"
    ]
    begins = sum(tag.startswith("B-") for row in found for tag in row["tags"])
    assert begins == 4351  # and one of the shared task's 4,352 begins with I-
    assert sum(len(tags.entity_spans(row["tags"], True)) for row in found) == 4352
    data = read(path, objective=TokenClassification)
    assert data.rows[0]["tokens"] == found[0]["tokens"]
    assert len(TokenClassification().fitted(data.rows).classes or ()) == 9


def test_comments_in_conll_files_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in MultiCoNER and Universal Dependencies, before each sentence; a lone `#` may also be a word."""
    path, sentence = tmp_path / "a.conll", "Sao _ _ B-LOC\nPaulo _ _ I-LOC\n# _ _ O\n\n"
    path.write_text(f"# id 5239\tdomain=en\n{sentence}# newdoc\n# text = a b\n# _ _ O\n{sentence}", encoding="utf-8")
    first, second = (row["tokens"] for row in read_conll(path))
    assert first == ["Sao", "Paulo", "#"] and second == ["#", *first]
    assert "3 lines left out as comments, # in place of a word (the first: line 1)" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Sao B-LOC\nPaulo\n", "line 2: 1 column, expected 2, as in the lines before"),
        ("\n\n", "holds no sentences"),
        ("word\n", "line 1: 1 column, expected a word and its tag"),
        ("Sao B-LOC\n# text = Paulo\n", "line 2: 4 columns, expected 2"),
        ("# 1\n\n# 2\n", "holds no sentences"),
        ("1\tSao\tB-LOC\tO\n2\tPaulo\tI-LOC\tO\n\n1\tHier\tO\tO\n", "line 1: the first column counts the words"),
    ],
)
def test_invalid_conll_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.conll").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_conll(tmp_path / "a.conll")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "row 1 has 2 tokens and 1 tag"),
        ({"tokens": ["a"], "tag": ["O"]}, r"row 1 has no 'tags' \(did you mean tag\?\)"),
        ({"tokens": [], "tags": []}, "row 1 has 0 tokens"),
        ({"tokens": ["a", "b"], "tags": [0, 3]}, "row 1: 'tags' are numbers: give each as the name"),
        ({"tokens": "a b", "tags": "['O', 'B-X']"}, r"row 1: 'tags' is \".*, which is not JSON: write it as \["),
        ({"tokens": "['a', 'b']", "tags": "O O"}, "row 1: 'tokens' is .*, or as words with a space between"),
        ({"tokens": "a b", "tags": "[]"}, "row 1 has 2 tokens and 0 tags"),
        ({"tokens": "a b", "tags": "[0, 3]"}, "row 1: 'tags' are numbers"),
        ({"tokens": ["a", 3], "tags": ["O", "O"]}, "row 1: 'tokens' is .*, expected a list of texts"),
        ({"tokens": ["a", 3] * 99, "tags": ["O"]}, r"row 1: 'tokens' is \['a', 3, .*…, expected a list of texts"),
        ({"text": "a b", "entities": ["x" * 99]}, "row 1: entity 0 is 'x{58}…, expected start, end and label"),
        (
            {"text": "a b", "entities": [[0, 9, "LOC"]]},
            "row 1: entity 0 goes from 0 to 9, expected characters from 0 to 3",
        ),
        ({"text": "a b", "entities": [[0, 1, "LOC"], [0, 3, "PER"]]}, "row 1: 'LOC' from 0 to 1 and 'PER' .* overlap"),
        ({"text": "a b", "entities": [[1, 2, "LOC"]]}, "row 1: 'LOC' from 1 to 2 holds no word"),
        ({"text": "a b", "entities": "[["}, "row 1: entities are not JSON"),
        ({"text": "a b", "entities": "[" * 60_000}, "row 1: entities are not JSON"),
        ({"tokens": '["' + "[" * 60_000 + "]", "tags": "O"}, "row 1: 'tokens' is .*, which is not JSON"),
        ({"tokens": "a", "tags": "[" * 60_000 + "]"}, "row 1: 'tags' is .*, which is not JSON"),
        ({"text": "a b", "entities": [{"start": 0}]}, "row 1: entity 0 goes from 0 to None"),
        ({"text": "a b", "entities": [["x" * 999, 1, "LOC"]]}, "row 1: entity 0 goes from 'x{78}… to 1, expected"),
        ({"text": "a b", "entities": [[0, 1, ["x" * 999]]]}, r"row 1: entity 0 has the label \['x{77}…, expected"),
        ({"text": "a b", "entities": [[1, 2, "x" * 999]]}, "row 1: 'x{78}… from 1 to 2 holds no word"),
    ],
)
def test_invalid_rows_are_refused_by_number(body: "pellucid.Model", row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_training(body, read([ANGELA, row]).rows)


def test_row_that_is_too_long_is_refused_by_line(body: "pellucid.Model", tmp_path: Path) -> None:
    long = {"tokens": ["a"] * 200, "tags": ["O"] * 200}
    (tmp_path / "tags.jsonl").write_text("\n".join(map(json.dumps, [ANGELA, long])), encoding="utf-8")
    with pytest.raises(InputError, match=r"^tags\.jsonl, line 2 has 106 tokens more than the 96 that are read at once"):
        prepare_training(body, read(tmp_path / "tags.jsonl").rows, long="error")


def test_unknown_and_single_labels_are_refused(body: "pellucid.Model") -> None:
    objective, prepared, _ = prepare_training(body, [ANGELA])
    with pytest.raises(InputError, match=r"row 0: tags hold 'B-PERS' \(did you mean B-PER"):
        objective.examples(prepared.loaded, read([{"tokens": ["a"], "tags": ["B-PERS"]}]).rows)
    with pytest.raises(InputError, match="nothing to tell apart in 2 sentences: all words are 'O'"):
        TokenClassification().fitted([{"tokens": ["a"], "tags": ["O"]}] * 2)


# -- training results --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]) -> Path:
    """A folder with a model trained to find names."""
    sizes = {"vocab_size": 600, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    config = pellucid.Config.of("bert", intermediate_size=64, pad_token_id=0, **sizes, **no_dropout)
    model = pellucid.build(config, seed=3, tokenizer=pellucid.load(checkpoint("bert-body")).tokenizer)
    settings: dict[str, Any] = {"epochs": 6, "batch_size": 16, "learning_rate": 5e-3, "precision": "float32"}
    loop, events = run_loop(model.loaded, TokenClassification(), rows(160, 1), rows(40, 2), keep_best=False, **settings)
    evaluations = [one.metrics for one in events if one.is_evaluation]
    assert evaluations[-1]["f1"] == evaluations[-1]["accuracy"] == 1.0 > evaluations[0]["f1"]
    assert evaluations[-1]["loss"] < 0.1
    folder = tmp_path_factory.mktemp("finder") / "out"
    save_checkpoint(trained_model(loop), folder)
    return folder


def test_pipeline_finds_entities_with_the_trained_model(finder: Path) -> None:
    found = pellucid.pipeline("ner", finder)("the good dog of Gustave Eiffel was in Oxford today")
    assert [(one["entity_group"], one["word"], one["start"]) for one in found] == [
        ("PER", "Gustave Eiffel", 16),
        ("LOC", "Oxford", 38),
    ]
    assert all(one["score"] > 0.9 for one in found)


def test_reference_computes_the_same_logits_from_the_saved_folder(finder: Path) -> None:
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(finder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(finder)
    batch = tokenizer(["Berlin is near Gustave Eiffel", "a dog"], padding=True, return_tensors="pt")
    ours = pellucid.load(finder)
    with torch.no_grad():
        expected, logits = theirs(**batch).logits, ours(**batch).logits
    assert torch.allclose(expected, logits, atol=1e-5)
    assert theirs.config.id2label == dict(enumerate(ours.config.labels))


@pytest.mark.parametrize("name", ["distilbert-body", "roberta-body", "mpnet-body", "gpt2-body", "llama-body"])
def test_other_families_are_trained_and_saved(load_tiny: LoadTiny, tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"max_steps": 3, "batch_size": 8, "precision": "float32", "max_length": 40}
    loop, events = run_loop(
        load_tiny(name).loaded, TokenClassification(max_length=settings.pop("max_length")), rows(24, 1), **settings
    )
    assert events[0].metrics["gradient_norm"] > 0 and len(events) == 3
    folder, held_out = save_checkpoint(trained_model(loop), tmp_path / "out"), rows(6, 2)
    loaded = pellucid.load(folder).loaded
    scores = loop.objective.score(loaded, loop.objective.examples(loaded, held_out))
    assert scores == pytest.approx(loop.objective.score(loop.loaded, loop.objective.examples(loop.loaded, held_out)))
    assert all(one["score"] > 0 for one in pellucid.pipeline("ner", folder)("a dog in Berlin"))


def test_scores_count_whole_entities(finder: Path) -> None:
    loaded, data = pellucid.load(finder).loaded, rows(20, 3)
    objective = TokenClassification().fitted(rows(20, 1))
    assert objective.score(loaded, objective.examples(loaded, data))["f1"] == 1.0
    wrong = [row | {"tags": ["O" if tag.startswith("I-") else tag for tag in row["tags"]]} for row in data]
    scores = objective.score(loaded, objective.examples(loaded, wrong))
    all_tags = [tag for row in data for tag in row["tags"]]
    locations, people = all_tags.count("B-LOC"), all_tags.count("B-PER")
    assert scores["precision"] == scores["recall"] == pytest.approx(locations / (locations + people))
    assert scores["accuracy"] == pytest.approx(1 - all_tags.count("I-PER") / len(all_tags))
    assert scores["loss"] > 0.2


def test_baseline_is_the_most_frequent_training_tag(load_tiny: LoadTiny) -> None:
    """A row counts once, in however many windows it is read."""
    training_rows = [{"tokens": ["good"] * 40, "tags": ["O"] * 40}, {"tokens": ["Berlin"] * 30, "tags": ["B-LOC"] * 30}]
    held_out = [{"tokens": ["Berlin"] * 30 + ["good"] * 10, "tags": ["B-LOC"] * 30 + ["O"] * 10}]
    objective, model, examples = prepare_training(load_tiny("bert-body"), training_rows, max_length=16)
    held_out_examples = objective.examples(model.loaded, held_out)
    assert len(held_out_examples) > 1 and objective.baseline_scores(examples, held_out_examples) == {"accuracy": 0.25}


def test_scores_do_not_depend_on_windows(finder: Path) -> None:
    loaded = pellucid.load(finder).loaded
    long = [{name: [x for row in rows(8, 4) for x in row[name]] for name in ("tokens", "tags")}]
    objective = TokenClassification(max_length=32).fitted(rows(20, 1))
    examples = objective.examples(loaded, long)
    assert len(examples) > 1
    assert objective.score(loaded, examples)["f1"] == 1.0


def test_training_reads_a_file_and_saves_a_folder(scratch: "pellucid.Model", tmp_path: Path) -> None:
    lines = ["\n".join(map(" ".join, zip(row["tokens"], row["tags"]))) for row in rows(80, 1)]
    (tmp_path / "people.conll").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 5e-3, "precision": "float32"}
    model = pellucid.train(scratch, tmp_path / "people.conll", "tag", out=tmp_path / "out", **settings)
    assert model.report.scores.keys() == {"precision", "recall", "f1", "accuracy", "loss"}
    assert model.report.rows == 72 and model.report.held_out == 8
    scores = pellucid.evaluate(tmp_path / "out", tmp_path / "people.conll")
    assert scores["accuracy"] > 0.6
