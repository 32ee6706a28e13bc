"""Metrics of predictions; the only module that calls the metric libraries.

Each function takes plain lists, the true values first, and returns scores by name, from 0 to 1 as a rule, and from 0 to
100 for BLEU and chrF, as is usual. An undefined score, such as the correlation with a constant, is 0, so that it can be
compared with others.
"""

import importlib.util
import math
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pellucid.errors import InputError
from pellucid.text.unspaced import UNSPACED, is_unspaced

LIBRARIES = {
    "sklearn": "scikit-learn",
    "scipy": "SciPy",
    "nervaluate": "nervaluate",
    "sacrebleu": "sacreBLEU",
}
"""The names of libraries by the name of their module."""

_KANA = re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HAN = re.compile(r"[\u3400-\u9fff\U00020000-\U0003ffff]")
_WORDS = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
"""A character of a script without spaces between words, or a word of another script."""

Span = tuple[str, int, int]
"""An entity: its kind, and its first and last word."""


def require_library(name: str) -> None:
    """Raises InputError for a library that is not installed; called before training starts, not only for scoring."""
    if importlib.util.find_spec(name) is None:
        raise InputError(f"to measure this needs {LIBRARIES[name]}: pip install 'pellucid[train]'")


def _sklearn_metrics() -> Any:
    """Imports `sklearn.metrics`, and restores the state of Python's `random`, from which the import draws."""
    require_library("sklearn")
    state = random.getstate()
    from sklearn import metrics

    random.setstate(state)
    return metrics


# -- labels -----------------------------------------------------------------------------------------------------------


def label_scores(truth: Sequence[int], predictions: Sequence[int], labels: int) -> dict[str, float]:
    """Scores of classification with one label each.  truth, predictions: ids.  labels: the number of labels.

    ->  "accuracy"; "f1", the mean over the labels that occur; for two labels also "f1_second", that of label 1 only,
        which GLUE calls F1; "matthews", the correlation of Matthews (1975), 0 for predictions independent of the truth
    """
    metrics = _sklearn_metrics()
    several = len(set(truth) | set(predictions)) > 1
    scores = {
        "accuracy": float(metrics.accuracy_score(truth, predictions)),
        "f1": float(metrics.f1_score(truth, predictions, average="macro", zero_division=0)),
    }
    if labels == 2:
        scores["f1_second"] = float(metrics.f1_score(truth, predictions, labels=[1], average="macro", zero_division=0))
    return scores | {"matthews": float(metrics.matthews_corrcoef(truth, predictions)) if several else 0.0}


def majority_accuracy(training_values: Sequence[Any], truth: Sequence[Any]) -> float:
    """The accuracy of always predicting the most frequent of `training_values`, of equally frequent ones the first."""
    ((commonest, _),) = Counter(training_values).most_common(1)
    return truth.count(commonest) / len(truth)


def multilabel_scores(truth: Sequence[Sequence[bool]], predictions: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Scores of multi-label classification: whether each label of each row holds, Bool[list, "rows labels"].

    ->  "accuracy", of rows with every label right; "f1" over all decisions (micro); "f1_macro", the mean over labels
    """
    metrics = _sklearn_metrics()
    import numpy as np

    right, predicted = np.asarray(truth, dtype=int), np.asarray(predictions, dtype=int)
    columns = right.shape[1]
    both = {average: _multilabel_f1(metrics, right, predicted, columns, average) for average in ("micro", "macro")}
    return {"accuracy": float((right == predicted).all(axis=1).mean()), "f1": both["micro"], "f1_macro": both["macro"]}


def _multilabel_f1(metrics: Any, right: Any, predicted: Any, columns: int, average: str) -> float:
    if columns == 1:  # scikit-learn reads a single column as binary labels
        return float(metrics.f1_score(right[:, 0], predicted[:, 0], zero_division=0.0))
    return float(metrics.f1_score(right, predicted, average=average, zero_division=0.0))


# -- numbers ----------------------------------------------------------------------------------------------------------


def regression_scores(truth: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Scores of regression with one number each.

    ->  "mse", the mean squared error; "pearson" and "spearman", the correlations of the numbers and of their ranks
    """
    require_library("scipy")
    from scipy import stats

    differences = [one - other for one, other in zip(truth, predictions)]
    has_variance = len(truth) > 1 and not (_is_constant(truth) or _is_constant(predictions))
    try:
        squared = math.fsum(one * one for one in differences)
    except OverflowError:  # the sum exceeds a float
        squared = math.inf
    scores = {"mse": squared / max(len(differences), 1)}
    for name, correlation in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        value = float(correlation(truth, predictions).statistic) if has_variance else 0.0
        scores[name] = value if math.isfinite(value) else 0.0
    return scores


def _is_constant(numbers: Sequence[float]) -> bool:
    """Whether they differ by rounding at most."""
    return max(numbers) - min(numbers) <= 1e-13 * max(map(abs, numbers))


# -- entities ---------------------------------------------------------------------------------------------------------


def entity_scores(truth: Sequence[Sequence[Span]], predictions: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Scores of the entities of each text; one is right if kind, first and last word are (Tjong Kim Sang, 2002).

    ->  "precision", "recall", "f1" over all entities together
    """
    require_library("nervaluate")
    from nervaluate import Evaluator

    kinds = sorted({one[0] for spans in (*truth, *predictions) for one in spans})
    if not kinds:
        return {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    names = ("label", "start", "end")
    sides = [[[dict(zip(names, one)) for one in spans] for spans in side] for side in (truth, predictions)]
    counted = Evaluator(*sides, tags=kinds, loader="dict").evaluate()["overall"]["strict"]
    return {name: float(getattr(counted, name)) for name in ("precision", "recall", "f1")}


# -- words ------------------------------------------------------------------------------------------------------------


def answer_scores(truth: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Scores of answers to questions, each against all its correct answers; none means that the text has no answer.

    As for SQuAD (Rajpurkar et al., 2016, arXiv:1606.05250; 2018, arXiv:1806.03822): in lower case, without punctuation
    and articles; "exact_match", and "f1" over shared words, each the best over the correct answers.
    """
    normalised_answers = [[one for one in map(normalise_answer, right) if one] or [""] for right in truth]
    pairs = list(zip(normalised_answers, map(normalise_answer, predictions)))
    exact = [float(any(one == prediction for one in right)) for right, prediction in pairs]
    f1_scores = [max(_f1_of_words(one, prediction) for one in right) for right, prediction in pairs]
    num_pairs = max(len(pairs), 1)
    return {"exact_match": math.fsum(exact) / num_pairs, "f1": math.fsum(f1_scores) / num_pairs}


def normalise_answer(answer: str) -> str:
    """An answer as SQuAD compares it: in lower case, without punctuation, articles and repeated spaces.

    >>> normalise_answer("The  Eiffel Tower!")
    'eiffel tower'
    """
    bare = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _f1_of_words(right: str, prediction: str) -> float:
    predicted_words, right_words = prediction.split(), right.split()
    if predicted_words == right_words:  # also where both are empty
        return 1.0
    same = sum((Counter(predicted_words) & Counter(right_words)).values())
    return 2 * same / (len(predicted_words) + len(right_words))


def translation_scores(truth: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Scores of translations, each against one reference.

    ->  "bleu" (Papineni et al., 2002) and "chrf" (Popović, 2015), from 0 to 100, of the whole corpus, with sacreBLEU's
        default settings (Post, 2018, arXiv:1804.08771), but its tokenizer "zh" where the references are Chinese, and
        "char" where they are mostly in another script without spaces between words
    """
    if not truth:
        return {"bleu": 0.0, "chrf": 0.0}
    require_library("sacrebleu")
    import sacrebleu

    bleu = sacrebleu.corpus_bleu(predictions, [truth], tokenize=_bleu_tokenizer(truth))
    return {"bleu": min(float(bleu.score), 100.0), "chrf": float(sacrebleu.corpus_chrf(predictions, [truth]).score)}


def _bleu_tokenizer(texts: Iterable[str]) -> str | None:
    """The name of sacreBLEU's tokenizer for texts that are mostly in a script without spaces; None for others. With at
    least a tenth as many kana as Han characters they are Japanese."""
    counts = Counter(word for text in texts for word in _WORDS.findall(text))
    kinds = (_HAN.match, _KANA.match, is_unspaced)
    han, kana, letters = (sum(many for word, many in counts.items() if is_one(word)) for is_one in kinds)
    if 2 * letters <= counts.total():
        return None
    return "zh" if 2 * han > letters and 10 * kana < han else "char"


def perplexity(loss: float) -> float:
    """The perplexity, e^loss, of a mean loss per token in nats; infinite for a loss of 709 or more."""
    return math.exp(loss) if loss < 709.0 else math.inf
