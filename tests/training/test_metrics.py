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


def test_two_labels() -> None:
    found = label_scores([0, 0, 1, 1, 1], [0, 1, 1, 1, 0], 2)
    # label 1: 2 true positives, 1 false positive, 1 false negative; label 0: 1, 1, 1
    assert found == pytest.approx({"accuracy": 0.6, "f1": (2 / 3 + 1 / 2) / 2, "f1_second": 2 / 3, "matthews": 1 / 6})


def test_three_labels() -> None:
    truth, said = [0, 1, 2, 2, 1, 0], [0, 2, 2, 2, 1, 1]
    found = label_scores(truth, said, 3)
    assert set(found) == {"accuracy", "f1", "matthews"}
    assert found["f1"] == pytest.approx((2 / 3 + 1 / 2 + 4 / 5) / 3)
    assert found["matthews"] == pytest.approx(theirs.matthews_corrcoef(truth, said))


def test_whoever_always_says_the_same_gets_no_correlation() -> None:
    assert label_scores([0, 1, 1, 0], [1, 1, 1, 1], 2)["matthews"] == 0.0
    assert label_scores([1, 1], [1, 1], 2) == {"accuracy": 1.0, "f1": 1.0, "f1_second": 1.0, "matthews": 0.0}
    assert label_scores([0, 0], [0, 0], 2)["f1_second"] == 0.0


def test_several_labels_at_once() -> None:
    truth, said = [[1, 0, 1], [0, 1, 0], [1, 1, 0]], [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    found = multilabel_scores(truth, said)
    # labels 0 and 1: 2 of 2 found; label 2: one missed, one wrong; in all 4 found, 1 wrong, 1 missed
    assert found == pytest.approx({"accuracy": 1 / 3, "f1": 8 / 10, "f1_macro": 2 / 3})
    assert multilabel_scores([[1], [0]], [[1], [1]])["f1"] == pytest.approx(2 / 3)
    assert multilabel_scores([[0, 0]], [[0, 0]]) == {"accuracy": 1.0, "f1": 0.0, "f1_macro": 0.0}


# -- regression -------------------------------------------------------------------------------------------------------


def test_numbers() -> None:
    truth, said = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 8.0]
    found = regression_scores(truth, said)
    assert found["mse"] == pytest.approx((0 + 1 + 1 + 16) / 4)
    assert found["pearson"] == pytest.approx(stats.pearsonr(truth, said).statistic)
    assert found["spearman"] == pytest.approx(0.8)  # 1 - 6 * (0 + 1 + 1 + 0) / (4 * 15)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("said", [[2.0, 2.0, 2.0], [5.0, 5.0, 5.0], [1.0, 1.0000000000000002, 1.0000000000000004]])
def test_a_constant_correlates_with_nothing(said: list[float]) -> None:
    for pair in (([1.0, 2.0, 3.0], said), (said, [1.0, 2.0, 3.0]), ([1.0], [2.0])):
        assert {name: regression_scores(*pair)[name] for name in ("pearson", "spearman")} == {
            "pearson": 0.0,
            "spearman": 0.0,
        }


@pytest.mark.parametrize("said", [[2.5, 1e200], [1.2e154, 1.2e154]])
def test_what_is_far_beyond_every_number_is_infinitely_wrong(said: list[float]) -> None:
    assert regression_scores([1.0, 2.0], said)["mse"] == math.inf


# -- entities ---------------------------------------------------------------------------------------------------------

TRUTH = [[("PER", 0, 1), ("LOC", 5, 5)], [], [("ORG", 2, 4)]]


def test_entities_are_right_in_kind_and_both_ends() -> None:
    said = [[("PER", 0, 1), ("LOC", 5, 6)], [("PER", 3, 3)], [("PER", 2, 4)]]
    found = entity_scores(TRUTH, said)
    assert found == pytest.approx({"precision": 1 / 4, "recall": 1 / 3, "f1": 2 / 7})
    assert entity_scores(TRUTH, TRUTH) == {"precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_entities_cut_in_two_count_as_two() -> None:
    found = entity_scores([[("PER", 0, 3)]], [[("PER", 0, 1), ("PER", 2, 3)]])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    found = entity_scores([[("PER", 0, 1), ("PER", 2, 3)]], [[("PER", 0, 3)]])
    assert found == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_entities_are_counted_as_sets_of_spans() -> None:
    chance = random.Random(0)

    def text() -> list[tuple[str, int, int]]:
        ends = sorted(chance.sample(range(12), 6))
        return [(chance.choice("AB"), ends[i], ends[i + 1] - 1) for i in range(0, 6, 2) if chance.random() < 0.8]

    for _ in range(20):
        truth, said = [[text() for _ in range(5)] for _ in range(2)]
        sets = [{(i, *span) for i, spans in enumerate(side) for span in spans} for side in (truth, said)]
        assert entity_scores(truth, said)["f1"] == pytest.approx(2 * len(sets[0] & sets[1]) / sum(map(len, sets)))


def test_no_entities_at_all() -> None:
    assert entity_scores([[], []], [[], []]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert entity_scores(TRUTH, [[], [], []])["f1"] == 0.0


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_are_compared_without_articles_case_and_punctuation() -> None:
    assert normalise_answer(" The  Cat's-paw, an A! ") == "catspaw"
    assert answer_scores([["the Eiffel Tower"]], ["Eiffel tower."]) == {"exact_match": 1.0, "f1": 1.0}


def test_the_best_of_the_right_answers_counts() -> None:
    found = answer_scores([["in Paris", "Paris, France"], ["1889"]], ["Paris, France today", "1888"])
    assert found["exact_match"] == 0.0
    assert found["f1"] == pytest.approx((4 / 5 + 0) / 2)  # 2 shared words, of 3 predicted and 2 true


def test_shared_words_count_as_often_as_they_stand_on_both_sides() -> None:
    assert answer_scores([["ha ha ha"]], ["ha ha no"])["f1"] == pytest.approx(4 / 6)


def test_no_answer_is_right_where_the_text_does_not_tell() -> None:
    assert answer_scores([[], [], ["Rome"]], ["", "Rome", ""]) == pytest.approx({"exact_match": 1 / 3, "f1": 1 / 3})


# -- translations -----------------------------------------------------------------------------------------------------

RIGHT = ["Der Hund läuft über die Wiese.", "Zwei Kinder spielen am Strand."]
SAID = ["Ein Hund läuft über die Wiese.", "Zwei Kinder spielen im Sand am Strand."]


def test_translations_are_scored_as_sacrebleu_does() -> None:
    found = translation_scores(RIGHT, SAID)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(SAID, [RIGHT]).score) and 20 < found["bleu"] < 90
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(SAID, [RIGHT]).score)
    assert translation_scores(RIGHT, RIGHT)["bleu"] == pytest.approx(100.0)
    assert translation_scores(["a b c d e f g"], ["a b c d e f g"])["bleu"] == 100.0
    assert translation_scores([], []) == {"bleu": 0.0, "chrf": 0.0}


@pytest.mark.parametrize(
    "right, said, tokenizer",
    [
        ("他在2019年搬到了北京,在Google工作。", "他在2019年搬到了上海,在Google工作。", "zh"),
        ("東京は日本の首都です。", "京都は日本の首都です。", "char"),
        ("กรุงเทพเป็นเมืองหลวง", "กรุงเทพเป็นเมืองหลัก", "char"),
        ("서울은 한국의 수도이고 큰 도시이다", "서울은 한국의 수도이고 큰 마을이다", "13a"),
        ("The word 東京 means the eastern capital", "The word 東京 means the western capital", "13a"),
    ],
)
def test_bleu_counts_letters_where_no_space_stands_between_words(right: str, said: str, tokenizer: str) -> None:
    theirs = sacrebleu.corpus_bleu([said], [[right]], tokenize=tokenizer).score
    assert translation_scores([right], [said])["bleu"] == pytest.approx(theirs) and 20 < theirs < 95


def test_perplexity() -> None:
    assert perplexity(0.0) == 1.0 and perplexity(math.log(50)) == pytest.approx(50.0) and perplexity(1e4) == math.inf


# -- missing libraries ------------------------------------------------------------------------------------------------

ASKING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "sklearn": (label_scores, ([0, 1], [0, 1], 2), "scikit-learn"),
    "scipy": (regression_scores, ([0.0, 1.0], [0.0, 1.0]), "SciPy"),
    "nervaluate": (entity_scores, (TRUTH, TRUTH), "nervaluate"),
    "sacrebleu": (translation_scores, (RIGHT, SAID), "sacreBLEU"),
}


@pytest.mark.parametrize("library", ASKING)
def test_a_missing_library_is_one_sentence(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, given, called = ASKING[library]
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == library else there(name, *more)
    )
    with pytest.raises(InputError, match=rf"to measure this needs {called}: pip install 'pellucid\[train\]'"):
        asked(*given)
    for other in ASKING.keys() - {library}:
        require_library(other)


def test_measuring_draws_none_of_a_callers_random_numbers() -> None:
    code = "import random\nbefore = random.getstate()\nfrom pellucid.training.metrics import label_scores\n"
    code += "label_scores([0, 1], [0, 1], 2)\nassert random.getstate() == before"
    subprocess.run([sys.executable, "-c", code], check=True)
