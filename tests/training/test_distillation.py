"""Distillation: the loss, which models are accepted as teachers, and that the student learns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import pellucid
from pellucid.checkpoints.load import open_checkpoint
from pellucid.errors import InputError, NotFoundError
from pellucid.training.causal import TextGeneration
from pellucid.training.classification import TextClassification
from pellucid.training.data import read
from pellucid.training.distillation import distillation_loss, multilabel_distillation_loss
from pellucid.training.learner import Learner
from pellucid.training.masked import FillMask
from pellucid.training.regression import TextRegression
from tests.training.whole_run import NO_DROPOUT, objective_and_model, run_loop, trained_model

LoadTiny = Callable[..., "pellucid.Model"]
Rows = list[dict[str, Any]]

TEXTS = read([{"text": "the good school of the people"}, {"text": "we hate the water in the house"}]).rows


def mean_loss(model: Any, objective: Any, rows: Rows) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
    """The mean loss of all rows, the batch, and the model."""
    objective, loaded = objective_and_model(model, objective, rows)
    batch = objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))
    learner = Learner(loaded, NO_DROPOUT)
    learner.seed_dropout(0, 0)
    return objective.loss(learner, batch) / objective.weight(batch), batch, loaded


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_distillation_loss_is_the_divergence_at_the_temperature() -> None:
    logits, teacher_logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).double()
    ours, theirs = ((part / 3.0).softmax(-1) for part in (logits, teacher_logits))
    torch.testing.assert_close(
        distillation_loss(logits, teacher_logits, 3.0).double(),
        9.0 * (theirs * (theirs / ours).log()).sum(-1),
        rtol=1e-5,
        atol=1e-6,
    )
    assert float(distillation_loss(logits, logits + 4.0, 2.0).abs().max()) < 1e-5


def test_gradient_at_high_temperature_is_the_difference_of_logits() -> None:
    """Hinton et al., 2015, equation 4, for logits of mean 0; times T^2."""
    generator = torch.Generator().manual_seed(1)
    logits, teacher_logits = (part - part.mean() for part in torch.randn(2, 6, generator=generator))
    logits.requires_grad_()
    distillation_loss(logits, teacher_logits, 200.0).backward()
    torch.testing.assert_close(logits.grad, (logits.detach() - teacher_logits) / 6, rtol=0.05, atol=2e-3)


def test_multilabel_loss_treats_each_label_separately() -> None:
    logits, teacher_logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    ours, theirs = ((part / 2.0).sigmoid() for part in (logits, teacher_logits))
    divergence = theirs * (theirs / ours).log() + (1 - theirs) * ((1 - theirs) / (1 - ours)).log()
    torch.testing.assert_close(multilabel_distillation_loss(logits, teacher_logits, 2.0), 4.0 * divergence.mean(-1))


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "distance"),
    [
        (["negative", "neutral", "positive"], distillation_loss),
        ([["negative", "neutral"], [], ["positive"]], multilabel_distillation_loss),
    ],
)
def test_loss_is_weighted_between_labels_and_teacher(load_tiny: LoadTiny, labels: list[Any], distance: Any) -> None:
    teacher = load_tiny("bert-feelings")
    texts = [*(row["text"] for row in TEXTS), "a long day"]
    rows = read([{"text": text, "label": label} for text, label in zip(texts, labels)]).rows
    objective = TextClassification(teacher=teacher, temperature=3.0, teacher_share=0.3)
    mean, batch, loaded = mean_loss(load_tiny("bert-body").loaded, objective, rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    inputs = {name: value for name, value in batch.items() if name in names}
    logits, teacher_logits = (model.module(**inputs)["logits"].detach() for model in (loaded, teacher))
    if distance is distillation_loss:
        label_loss = functional.cross_entropy(logits, batch["labels"], reduction="sum")
    else:
        label_loss = (
            functional.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none").mean(-1).sum()
        )
    expected = (0.7 * label_loss + 0.3 * distance(logits, teacher_logits, 3.0).sum()) / 3
    torch.testing.assert_close(mean.detach(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_class_weights_do_not_change_the_teacher_share(load_tiny: LoadTiny, share: float) -> None:
    """A row's weight also multiplies its loss against the teacher; equal weights change nothing."""
    names = ("negative", "neutral", "positive")
    rows = read([row | {"label": label} for row, label in zip(TEXTS * 2, names)]).rows
    losses = []
    for weights in (None, dict.fromkeys(names, 100.0), {"negative": 9.0}):
        objective = TextClassification(teacher=load_tiny("bert-feelings"), teacher_share=share, class_weights=weights)
        losses.append(mean_loss(load_tiny("bert-body").loaded, objective, rows)[0].detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    assert abs(float(losses[2] - losses[0])) > 1e-3
    unlabelled = [{"text": row["text"]} for row in TEXTS]
    objectives = [TextClassification(teacher=load_tiny("bert-feelings"), teacher_share=1.0, class_weights=one)
             for one in (None, {"negative": 100.0})]  # fmt: skip
    first, second = (mean_loss(load_tiny("bert-body").loaded, one, unlabelled)[0] for one in objectives)
    assert float(first.detach()) == pytest.approx(float(second.detach()), rel=1e-5)


def test_student_learns_from_unlabelled_rows(scratch: "pellucid.Model", sentiments: Callable[..., Rows]) -> None:
    """The student gets rows without labels; its teacher was trained on labelled ones."""
    quick = {"batch_size": 8, "learning_rate": 5e-3, "precision": "float32"}
    loop, _ = run_loop(scratch.loaded, TextClassification(), sentiments(64), **quick, epochs=6)
    teacher = trained_model(loop)
    unlabelled = [{"text": row["text"]} for row in sentiments(64, seed=5)]
    objective = TextClassification(teacher=teacher, teacher_share=1.0)
    loop, events = run_loop(
        scratch.loaded,
        objective,
        unlabelled,
        [{"text": row["text"]} for row in sentiments(24, seed=1)],
        **quick,
        epochs=6,
    )
    evaluations = [one.metrics["accuracy"] for one in events if one.is_evaluation]
    assert evaluations[-1] > 0.9 > evaluations[0], "the student comes to agree with its teacher"
    loaded, held_out = trained_model(loop), sentiments(24, seed=2)
    assert loaded.config.labels == ("negative", "positive")
    evaluated = TextClassification()
    assert evaluated.score(loaded, evaluated.examples(loaded, held_out))["accuracy"] > 0.9


def test_teacher_logits_follow_the_order_of_the_student_s_labels(load_tiny: LoadTiny) -> None:
    teacher = load_tiny("bert-feelings").loaded
    objective = TextClassification(teacher=teacher, classes=("positive", "neutral", "negative"), teacher_share=1.0)
    objective, loaded = objective_and_model(load_tiny("bert-body").loaded, objective, TEXTS)
    assert loaded.config.labels == ("positive", "neutral", "negative")
    for one, text in zip(objective.examples(loaded, TEXTS), [row["text"] for row in TEXTS]):
        ids = torch.tensor([teacher.tokenizer.encode([text])[0].ids])
        torch.testing.assert_close(
            torch.tensor(one.target.teacher_logits),
            teacher.module(ids)["logits"][0].flip(0).detach(),
            rtol=1e-4,
            atol=1e-5,
        )


def test_teacher_uses_its_own_tokenizer(load_tiny: LoadTiny, checkpoint: Callable[[str], Path]) -> None:
    rows = read([row | {"label": label} for row, label in zip(TEXTS, ("NEGATIVE", "POSITIVE"))]).rows
    objective = TextClassification(teacher=str(checkpoint("distilbert-feelings")))
    objective, loaded = objective_and_model(load_tiny("roberta-people").loaded, objective, rows)
    teacher = open_checkpoint(checkpoint("distilbert-feelings"))
    ids = torch.tensor([teacher.tokenizer.encode([TEXTS[0]["text"]])[0].ids])
    teacher_logits = objective.examples(loaded, rows)[0].target.teacher_logits
    torch.testing.assert_close(
        torch.tensor(teacher_logits), teacher.module(ids)["logits"][0].detach(), rtol=1e-4, atol=1e-5
    )


def test_regression_loss_is_weighted_between_labels_and_teacher(load_tiny: LoadTiny, scratch: "pellucid.Model") -> None:
    teacher = load_tiny("albert-similarity")
    rows = read([row | {"label": number} for row, number in zip(TEXTS, (0.5, 2.0))]).rows
    loss, batch, loaded = mean_loss(scratch.loaded, TextRegression(teacher=teacher, teacher_share=0.25), rows)
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "taught")}
    output = loaded.module(**inputs)["logits"].detach()[:, 0]
    expected = 0.75 * (output - batch["labels"]) ** 2 + 0.25 * (output - batch["taught"]) ** 2
    torch.testing.assert_close(loss.detach(), expected.mean(), rtol=1e-5, atol=1e-6)
    unlabelled, _, _ = mean_loss(scratch.loaded, TextRegression(teacher=teacher, teacher_share=1.0), TEXTS)
    assert torch.isfinite(unlabelled)


# -- tokens -----------------------------------------------------------------------------------------------------------

OVER_VOCABULARY = [(FillMask, "bert-filler"), (TextGeneration, "gpt2")]


@pytest.mark.parametrize(("kind", "name"), OVER_VOCABULARY)
def test_loss_of_a_model_against_itself_is_zero(load_tiny: LoadTiny, kind: Any, name: str) -> None:
    model = load_tiny(name)
    loss, _, _ = mean_loss(model.loaded, kind(teacher=model, teacher_share=1.0), TEXTS * 4)
    assert abs(float(loss.detach())) < 1e-5
    label_loss, _, _ = mean_loss(model.loaded, kind(), TEXTS * 4)
    mixed, _, _ = mean_loss(model.loaded, kind(teacher=model, teacher_share=0.5), TEXTS * 4)
    assert float(mixed.detach()) == pytest.approx(0.5 * float(label_loss.detach()), rel=1e-4)


@pytest.mark.parametrize(("kind", "name"), OVER_VOCABULARY)
def test_token_predictions_are_learned_from_a_teacher(load_tiny: LoadTiny, kind: Any, name: str) -> None:
    teacher = load_tiny(name)
    before = {key: one.clone() for key, one in teacher.module.state_dict().items()}
    student = pellucid.build(teacher.config, seed=4, tokenizer=teacher.tokenizer)
    settings = {"epochs": 12, "batch_size": 8, "learning_rate": 1e-2, "precision": "float32", "dropout": 0.0}
    objective = kind(teacher=teacher, teacher_share=1.0)
    _, events = run_loop(student.loaded, objective, TEXTS * 8, **settings, attention_dropout=0.0)
    assert events[-1].metrics["loss"] < 0.8 * events[0].metrics["loss"]
    assert all(torch.equal(one, before[key]) for key, one in teacher.module.state_dict().items())
    assert all(one.grad is None for one in teacher.parameters())


# -- accepted teachers ------------------------------------------------------------------------------------------------


def assert_refused(model: Any, objective: Any, rows: Rows, message: str, kind: type[Exception] = InputError) -> None:
    with pytest.raises(kind, match=message):
        objective_and_model(model, objective, rows)


def test_unsuitable_teachers_are_refused(load_tiny: LoadTiny, body: "pellucid.Model") -> None:
    rows = read([row | {"label": label} for row, label in zip(TEXTS, ("ham", "spam"))]).rows
    other = "the teacher's labels are negative, neutral, positive, expected those to be learned, ham, spam"
    assert_refused(body.loaded, TextClassification(teacher=load_tiny("bert-feelings")), rows, other)
    assert_refused(
        body.loaded, TextClassification(teacher=3), rows, "teacher is int, expected a model, or its name or folder"
    )
    assert_refused(body.loaded, TextClassification(teacher="nobody/here"), rows, "nobody/here", NotFoundError)
    fresh = load_tiny("bert-body", head="sequence-classification")
    assert_refused(body.loaded, TextClassification(teacher=fresh), rows, r"the teacher is not trained \(head\)")
    several = "the teacher has 3 labels, expected a model of one number"
    numbers = read([row | {"label": i} for i, row in enumerate(TEXTS)]).rows
    assert_refused(body.loaded, TextRegression(teacher=load_tiny("bert-feelings")), numbers, several)


def test_teacher_with_another_vocabulary_is_refused(load_tiny: LoadTiny) -> None:
    filler = load_tiny("bert-filler").loaded
    head = "the teacher has no head, expected masked-lm, as what it teaches"
    assert_refused(filler, FillMask(teacher=load_tiny("bert-body")), TEXTS, head)
    size = "the teacher knows 601 tokens, expected 600, as what it teaches"
    assert_refused(filler, FillMask(teacher=load_tiny("roberta-filler")), TEXTS, size)
    other = replace(load_tiny("bert-filler").loaded, tokenizer=load_tiny("bert-cased-body").tokenizer)
    assert_refused(filler, FillMask(teacher=other), TEXTS, "the teacher has another vocabulary than its student")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0, expected above 0"),
        ({"teacher_share": 1.5}, r"teacher_share is 1\.5, expected at least 0 and at most 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    for kind in (TextClassification, TextRegression, FillMask, TextGeneration):
        with pytest.raises(InputError, match=message):
            kind(**options)
