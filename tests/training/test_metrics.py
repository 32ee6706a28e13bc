"""Metrics, against examples with known results."""

import importlib.util
import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sacrebleu
from scipy import stats
from sklearn import metrics as theirs

from pellucid.errors import InputError
from pellucid.training.metrics import (
    answer_scores,
    entity_scores,
    label_scores,
    multilabel_scores,
    normalise_answer,
    perplexity,
    regression_scores,
    require_library,
    translation_scores,
)

# -- labels -----------------------------------------------------------------------------------------------------------


def test_label_scores_of_two_labels() -> None:
    found = label_scores([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], 2)
    # label 1: 2 true positives, 1 false positive, 1 false negative; label 0: 1, 1, 1
    assert found == pytest.approx({"accuracy": 0.6, "f1": (2 / 3 + 1 / 2) / 2, "f1_second": 2 / 3, "matthews": 1 / 6})


def test_label_scores_of_three_labels() -> None:
    truth, predicted = [0, 1, 2, 2, 1, 0], [0, 2, 2, 2, 1, 1]
    found = label_scores(truth, predicted, 3)
    assert set(found) == {"accuracy", "f1", "matthews"}
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2 + 4 / 5) / 3)
    assert found["matthews"] == pytest.approx(theirs.matthews_corrcoef(truth, predicted))


def test_matthews_of_a_constant_prediction_is_zero() -> None:
    assert label_scores([0, 1, 1, 0], [1, 1, 1, 1], 2)["matthews"] == 0.0
    assert label_scores([1, 1], [1, 1], 2) == {"accuracy": 1.0, "f1": 1.0, "f1_second": 1.0, "matthews": 0.0}
    assert label_scores([0, 0], [0, 0], 2)["f1_second"] == 0.0


def test_multilabel_scores() -> None:
    truth, predicted = [[1, 0, 1], [0, 1, 0], [1, 1, 0]], [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    found = multilabel_scores(truth, predicted)
    # labels 0 and 1: 2 of 2 found; label 2: one missed, one wrong; in all 4 found, 1 wrong, 1 missed
    assert found == pytest.approx({"accuracy": 1 / 3, "f1": 8 / 10, "f1_macro": 2 / 3})
    assert multilabel_scores([[1], [0]], [[1], [1]])["f1"] == pytest.approx(2 / 3)
    assert multilabel_scores([[0, 0]], [[0, 0]]) == {"accuracy": 1.0, "f1": 0.0, "f1_macro": 0.0}


# -- regression -------------------------------------------------------------------------------------------------------


def test_regression_scores() -> None:
    truth, predicted = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 8.0]
    found = regression_scores(truth, predicted)
    assert found["mse"] == pytest.approx((0 + 1 + 1 + 16) / 4)
    assert found["pearson"] == pytest.approx(stats.pearsonr(truth, predicted).statistic)
    assert found["spearman"] == pytest.approx(0.8)  # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("predicted", [[2.0, 2.0, 2.0], [5.0, 5.0, 5.0], [1.0, 1.0000000000000002, 1.0000000000000004]])
def test_correlation_with_a_constant_is_zero(predicted: list[float]) -> None:
    for pair in (([1.0, 2.0, 3.0], predicted), (predicted, [1.0, 2.0, 3.0]), ([1.0], [2.0])):
        assert {name: regression_scores(*pair)[name] for name in ("pearson", "spearman")} == {
            "pearson": 0.0,
            "spearman": 0.0,
        }


@pytest.mark.parametrize("predicted", [[2.5, 1e200], [1.2e154, 1.2e154]])
def test_mean_squared_error_beyond_float_range_is_infinite(predicted: list[float]) -> None:
    assert regression_scores([1.0, 2.0], predicted)["mse"] == math.inf


# -- entities ---------------------------------------------------------------------------------------------------------

ENTITIES = [[("PER", 0, 1), ("LOC", 5, 5)], [], [("ORG", 2, 4)]]


def test_entities_must_match_in_type_and_both_ends() -> None:
    predicted = [[("PER", 0, 1), ("LOC", 5, 6)], [("PER", 3, 3)], [("PER", 2, 4)]]
    found = entity_scores(ENTITIES, predicted)
    assert found == pytest.approx({"precision": 1 / 4, "recall": 1 / 3, "f1": 2 / 7})
    assert entity_scores(ENTITIES, ENTITIES) == {"precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_split_entities_count_as_two() -> None:
    found = entity_scores([[("PER", 0, 3)]], [[("PER", 0, 1), ("PER", 2, 3)]])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    found = entity_scores([[("PER", 0, 1), ("PER", 2, 3)]], [[("PER", 0, 3)]])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_entity_f1_equals_that_of_sets_of_spans() -> None:
    generator = random.Random(0)

    def random_spans() -> list[tuple[str, int, int]]:
        ends = sorted(generator.sample(range(12), 6))
        return [(generator.choice("AB"), ends[i], ends[i + 1] - 1) for i in range(0, 6, 2) if generator.random() < 0.8]

    for _ in range(20):
        truth, predicted = [[random_spans() for _ in range(5)] for _ in range(2)]
        sets = [{(i, *span) for i, spans in enumerate(side) for span in spans} for side in (truth, predicted)]
        assert entity_scores(truth, predicted)["f1"] == pytest.approx(2 * len(sets[0] & sets[1]) / sum(map(len, sets)))


def test_entity_scores_without_entities_are_zero() -> None:
    assert entity_scores([[], []], [[], []]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert entity_scores(ENTITIES, [[], [], []])["f1"] == 0.0


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_are_compared_without_articles_case_and_punctuation() -> None:
    assert normalise_answer(" The  Cat's-paw, an A! ") == "catspaw"
    assert answer_scores([["the Eiffel Tower"]], ["Eiffel tower."]) == {"exact_match": 1.0, "f1": 1.0}


def test_best_score_over_all_right_answers_counts() -> None:
    found = answer_scores([["in Paris", "Paris, France"], ["1889"]], ["Paris, France today", "1888"])
    assert found["exact_match"] == 0.0
    assert found["f1"] == pytest.approx((4 / 5 + 0) / 2)  # 2 shared words, of 3 predicted and 2 true


def test_repeated_words_are_matched_by_their_count() -> None:
    assert answer_scores([["ha ha ha"]], ["ha ha no"])["f1"] == pytest.approx(4 / 6)


def test_empty_answer_is_right_for_a_question_without_an_answer() -> None:
    assert answer_scores([[], [], ["Rome"]], ["", "Rome", ""]) == pytest.approx({"exact_match": 1 / 3, "f1": 1 / 3})


# -- translations -----------------------------------------------------------------------------------------------------

TARGETS = ["Der Hund läuft über die Wiese.", "Zwei Kinder spielen am Strand."]
OUTPUTS = ["Ein Hund läuft über die Wiese.", "Zwei Kinder spielen im Sand am Strand."]


def test_translation_scores_equal_sacrebleu_s() -> None:
    found = translation_scores(TARGETS, OUTPUTS)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(OUTPUTS, [TARGETS]).score) and 20 < found["bleu"] < 90
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(OUTPUTS, [TARGETS]).score)
    assert translation_scores(TARGETS, TARGETS)["bleu"] == pytest.approx(100.0)
    assert translation_scores(["a b c d e f g"], ["a b c d e f g"])["bleu"] == 100.0
    assert translation_scores([], []) == {"bleu": 0.0, "chrf": 0.0}


@pytest.mark.parametrize(
    "target, output, tokenizer",
    [
        ("他在2019年搬到了北京,在Google工作。", "他在2019年搬到了上海,在Google工作。", "zh"),
        ("東京は日本の首都です。", "京都は日本の首都です。", "char"),
        ("กรุงเทพเป็นเมืองหลวง", "กรุงเทพเป็นเมืองหลัก", "char"),
        ("서울은 한국의 수도이고 큰 도시이다", "서울은 한국의 수도이고 큰 마을이다", "13a"),
        ("The word 東京 means the eastern capital", "The word 東京 means the western capital", "13a"),
    ],
)
def test_bleu_of_scripts_without_spaces_counts_characters(target: str, output: str, tokenizer: str) -> None:
    theirs = sacrebleu.corpus_bleu([output], [[target]], tokenize=tokenizer).score
    assert translation_scores([target], [output])["bleu"] == pytest.approx(theirs) and 20 < theirs < 95


def test_perplexity() -> None:
    assert perplexity(0.0) == 1.0 and perplexity(math.log(50)) == pytest.approx(50.0) and perplexity(1e4) == math.inf


# -- missing libraries ------------------------------------------------------------------------------------------------

REQUIRING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "sklearn": (label_scores, ([0, 1], [0, 1], 2), "scikit-learn"),
    "scipy": (regression_scores, ([0.0, 1.0], [0.0, 1.0]), "SciPy"),
    "nervaluate": (entity_scores, (ENTITIES, ENTITIES), "nervaluate"),
    "sacrebleu": (translation_scores, (TARGETS, OUTPUTS), "sacreBLEU"),
}


@pytest.mark.parametrize("library", REQUIRING)
def test_missing_library_is_reported_in_one_sentence(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    score, args, library_name = REQUIRING[library]
    original = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == library else original(name, *rest)
    )
    with pytest.raises(InputError, match=rf"to measure this needs {library_name}: pip install 'pellucid\[train\]'"):
        score(*args)
    for other in REQUIRING.keys() - {library}:
        require_library(other)


def test_scoring_leaves_the_global_random_state() -> None:
    code = "import random\nbefore = random.getstate()\nfrom pellucid.training.metrics import label_scores\n"
    code += "label_scores([0, 1], [0, 1], 2)\nassert random.getstate() == before"
    subprocess.run([sys.executable, "-c", code], check=True)
