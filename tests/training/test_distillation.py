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
from tests.training.learned import PLAIN, ready, result, training

Opened = Callable[..., "pellucid.Model"]
Rows = list[dict[str, Any]]

TEXTS = read([{"text": "the good school of the people"}, {"text": "we hate the water in the house"}]).rows


def step(given: Any, objective: Any, rows: Rows) -> tuple[torch.Tensor, dict[str, torch.Tensor], Any]:
    """The mean loss of all rows, the batch, and the model."""
    objective, loaded = ready(given, objective, rows)
    batch = objective.collate(loaded, objective.examples(loaded, rows), np.random.default_rng(0))
    learner = Learner(loaded, PLAIN)
    learner.seed_dropout(0, 0)
    return objective.loss(learner, batch) / objective.weight(batch), batch, loaded


# -- the loss ---------------------------------------------------------------------------------------------------------


def test_the_distance_is_the_divergence_of_softened_answers() -> None:
    said, taught = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).double()
    ours, theirs = ((one / 3.0).softmax(-1) for one in (said, taught))
    torch.testing.assert_close(
        distillation_loss(said, taught, 3.0).double(),
        9.0 * (theirs * (theirs / ours).log()).sum(-1),
        rtol=1e-5,
        atol=1e-6,
    )
    assert float(distillation_loss(said, said + 4.0, 2.0).abs().max()) < 1e-5


def test_at_high_temperature_its_slope_is_the_difference_of_logits() -> None:
    """Hinton et al., 2015, equation 4, for logits of mean 0; times T^2."""
    chance = torch.Generator().manual_seed(1)
    said, taught = (one - one.mean() for one in torch.randn(2, 6, generator=chance))
    said.requires_grad_()
    distillation_loss(said, taught, 200.0).backward()
    torch.testing.assert_close(said.grad, (said.detach() - taught) / 6, rtol=0.05, atol=2e-3)


def test_of_several_labels_each_is_a_question_of_its_own() -> None:
    said, taught = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(2))
    ours, theirs = ((one / 2.0).sigmoid() for one in (said, taught))
    each = theirs * (theirs / ours).log() + (1 - theirs) * ((1 - theirs) / (1 - ours)).log()
    torch.testing.assert_close(multilabel_distillation_loss(said, taught, 2.0), 4.0 * each.mean(-1))


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "distance"),
    [
        (["negative", "neutral", "positive"], distillation_loss),
        ([["negative", "neutral"], [], ["positive"]], multilabel_distillation_loss),
    ],
)
def test_the_loss_is_shared_between_truth_and_teacher(opened: Opened, labels: list[Any], distance: Any) -> None:
    knows = opened("bert-feelings")
    texts = [*(row["text"] for row in TEXTS), "a long day"]
    rows = read([{"text": text, "label": label} for text, label in zip(texts, labels)]).rows
    objective = TextClassification(teacher=knows, temperature=3.0, teacher_share=0.3)
    mean, batch, loaded = step(opened("bert-body").loaded, objective, rows)
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = {name: value for name, value in batch.items() if name in names}
    said, theirs = (one.module(**given)["logits"].detach() for one in (loaded, knows))
    if distance is distillation_loss:
        own = functional.cross_entropy(said, batch["labels"], reduction="sum")
    else:
        own = functional.binary_cross_entropy_with_logits(said, batch["labels"], reduction="none").mean(-1).sum()
    wanted = (0.7 * own + 0.3 * distance(said, theirs, 3.0).sum()) / 3
    torch.testing.assert_close(mean.detach(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_weights_of_labels_leave_the_teacher_its_share(opened: Opened, share: float) -> None:
    """A row's weight also multiplies its loss against the teacher; equal weights change nothing."""
    names = ("negative", "neutral", "positive")
    rows = read([row | {"label": label} for row, label in zip(TEXTS * 2, names)]).rows
    losses = []
    for weights in (None, dict.fromkeys(names, 100.0), {"negative": 9.0}):
        objective = TextClassification(teacher=opened("bert-feelings"), teacher_share=share, class_weights=weights)
        losses.append(step(opened("bert-body").loaded, objective, rows)[0].detach())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    assert abs(float(losses[2] - losses[0])) > 1e-3
    plain = [{"text": row["text"]} for row in TEXTS]
    alone = [TextClassification(teacher=opened("bert-feelings"), teacher_share=1.0, class_weights=one)
             for one in (None, {"negative": 100.0})]  # fmt: skip
    first, second = (step(opened("bert-body").loaded, one, plain)[0] for one in alone)
    assert float(first.detach()) == pytest.approx(float(second.detach()), rel=1e-5)


def test_a_student_learns_from_answers_alone(scratch: "pellucid.Model", feelings: Callable[..., Rows]) -> None:
    """The student gets rows without labels; its teacher was trained on labelled ones."""
    quick = {"batch_size": 8, "learning_rate": 5e-3, "precision": "float32"}
    loop, _ = training(scratch.loaded, TextClassification(), feelings(64), **quick, epochs=6)
    knows = result(loop)
    plain = [{"text": row["text"]} for row in feelings(64, seed=5)]
    objective = TextClassification(teacher=knows, teacher_share=1.0)
    loop, events = training(
        scratch.loaded, objective, plain, [{"text": row["text"]} for row in feelings(24, seed=1)], **quick, epochs=6
    )
    looks = [one.metrics["accuracy"] for one in events if one.is_evaluation]
    assert looks[-1] > 0.9 > looks[0], "the student comes to agree with its teacher"
    loaded, held = result(loop), feelings(24, seed=2)
    assert loaded.config.labels == ("negative", "positive")
    measured = TextClassification()
    assert measured.score(loaded, measured.examples(loaded, held))["accuracy"] > 0.9


def test_labels_in_another_order_are_the_same_labels(opened: Opened) -> None:
    knows = opened("bert-feelings").loaded
    objective = TextClassification(teacher=knows, classes=("positive", "neutral", "negative"), teacher_share=1.0)
    objective, loaded = ready(opened("bert-body").loaded, objective, TEXTS)
    assert loaded.config.labels == ("positive", "neutral", "negative")
    for one, text in zip(objective.examples(loaded, TEXTS), [row["text"] for row in TEXTS]):
        ids = torch.tensor([knows.tokenizer.encode([text])[0].ids])
        torch.testing.assert_close(
            torch.tensor(one.target.teacher_logits),
            knows.module(ids)["logits"][0].flip(0).detach(),
            rtol=1e-4,
            atol=1e-5,
        )


def test_a_teacher_reads_with_its_own_tokenizer(opened: Opened, checkpoint: Callable[[str], Path]) -> None:
    rows = read([row | {"label": label} for row, label in zip(TEXTS, ("NEGATIVE", "POSITIVE"))]).rows
    objective = TextClassification(teacher=str(checkpoint("distilbert-feelings")))
    objective, loaded = ready(opened("roberta-people").loaded, objective, rows)
    knows = open_checkpoint(checkpoint("distilbert-feelings"))
    ids = torch.tensor([knows.tokenizer.encode([TEXTS[0]["text"]])[0].ids])
    taught = objective.examples(loaded, rows)[0].target.teacher_logits
    torch.testing.assert_close(torch.tensor(taught), knows.module(ids)["logits"][0].detach(), rtol=1e-4, atol=1e-5)


def test_a_number_is_shared_as_well(opened: Opened, scratch: "pellucid.Model") -> None:
    knows = opened("albert-similarity")
    rows = read([row | {"label": number} for row, number in zip(TEXTS, (0.5, 2.0))]).rows
    loss, batch, loaded = step(scratch.loaded, TextRegression(teacher=knows, teacher_share=0.25), rows)
    given = {name: value for name, value in batch.items() if name not in ("labels", "taught")}
    said = loaded.module(**given)["logits"].detach()[:, 0]
    wanted = 0.75 * (said - batch["labels"]) ** 2 + 0.25 * (said - batch["taught"]) ** 2
    torch.testing.assert_close(loss.detach(), wanted.mean(), rtol=1e-5, atol=1e-6)
    alone, _, _ = step(scratch.loaded, TextRegression(teacher=knows, teacher_share=1.0), TEXTS)
    assert torch.isfinite(alone)


# -- tokens -----------------------------------------------------------------------------------------------------------

OVER_VOCABULARY = [(FillMask, "bert-filler"), (TextGeneration, "gpt2")]


@pytest.mark.parametrize(("kind", "name"), OVER_VOCABULARY)
def test_whoever_is_its_own_teacher_has_nothing_to_learn(opened: Opened, kind: Any, name: str) -> None:
    model = opened(name)
    loss, _, _ = step(model.loaded, kind(teacher=model, teacher_share=1.0), TEXTS * 4)
    assert abs(float(loss.detach())) < 1e-5
    own, _, _ = step(model.loaded, kind(), TEXTS * 4)
    half, _, _ = step(model.loaded, kind(teacher=model, teacher_share=0.5), TEXTS * 4)
    assert float(half.detach()) == pytest.approx(0.5 * float(own.detach()), rel=1e-4)


@pytest.mark.parametrize(("kind", "name"), OVER_VOCABULARY)
def test_tokens_are_learned_from_a_teacher(opened: Opened, kind: Any, name: str) -> None:
    knows = opened(name)
    before = {key: one.clone() for key, one in knows.module.state_dict().items()}
    student = pellucid.build(knows.config, seed=4, tokenizer=knows.tokenizer)
    settings = {"epochs": 12, "batch_size": 8, "learning_rate": 1e-2, "precision": "float32", "dropout": 0.0}
    objective = kind(teacher=knows, teacher_share=1.0)
    _, events = training(student.loaded, objective, TEXTS * 8, **settings, attention_dropout=0.0)
    assert events[-1].metrics["loss"] < 0.8 * events[0].metrics["loss"]
    assert all(torch.equal(one, before[key]) for key, one in knows.module.state_dict().items())
    assert all(one.grad is None for one in knows.parameters())


# -- accepted teachers ------------------------------------------------------------------------------------------------


def refused(given: Any, objective: Any, rows: Rows, sentence: str, kind: type[Exception] = InputError) -> None:
    with pytest.raises(kind, match=sentence):
        ready(given, objective, rows)


def test_who_cannot_be_a_teacher(opened: Opened, body: "pellucid.Model") -> None:
    rows = read([row | {"label": label} for row, label in zip(TEXTS, ("ham", "spam"))]).rows
    other = "the teacher's labels are negative, neutral, positive, expected those to be learned, ham, spam"
    refused(body.loaded, TextClassification(teacher=opened("bert-feelings")), rows, other)
    refused(body.loaded, TextClassification(teacher=3), rows, "teacher is int, expected a model, or its name or folder")
    refused(body.loaded, TextClassification(teacher="nobody/here"), rows, "nobody/here", NotFoundError)
    fresh = opened("bert-body", head="sequence-classification")
    refused(body.loaded, TextClassification(teacher=fresh), rows, r"the teacher is not trained \(head\)")
    several = "the teacher has 3 labels, expected a model of one number"
    numbers = read([row | {"label": i} for i, row in enumerate(TEXTS)]).rows
    refused(body.loaded, TextRegression(teacher=opened("bert-feelings")), numbers, several)


def test_a_teacher_of_tokens_knows_the_same_vocabulary(opened: Opened) -> None:
    filler = opened("bert-filler").loaded
    head = "the teacher has no head, expected masked-lm, as what it teaches"
    refused(filler, FillMask(teacher=opened("bert-body")), TEXTS, head)
    size = "the teacher knows 601 tokens, expected 600, as what it teaches"
    refused(filler, FillMask(teacher=opened("roberta-filler")), TEXTS, size)
    other = replace(opened("bert-filler").loaded, tokenizer=opened("bert-cased-body").tokenizer)
    refused(filler, FillMask(teacher=other), TEXTS, "the teacher has another vocabulary than its student")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": 0.0}, r"temperature is 0\.0, expected above 0"),
        ({"teacher_share": 1.5}, r"teacher_share is 1\.5, expected at least 0 and at most 1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    for kind in (TextClassification, TextRegression, FillMask, TextGeneration):
        with pytest.raises(InputError, match=sentence):
            kind(**options)
