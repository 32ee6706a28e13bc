"""Training on pairs: the formulas of sentence-transformers, micro-batches, columns, and what is learned and saved."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as theirs
from torch import Tensor

import pellucid
from pellucid.checkpoints.save import save_checkpoint
from pellucid.errors import InputError
from pellucid.training.data import read
from pellucid.training.distributed import Ranks
from pellucid.training.learner import Learner
from pellucid.training.pairs import SentenceSimilarity
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from pellucid.training.vector_losses import cosent, cosine, cosines, multiple_negatives, retrieval_accuracy
from tests.tasks.trained import WORDS
from tests.training.courses import ROOT
from tests.training.learned import ready, result, training
from tests.training.ranked import learned
from tests.training.test_distributed import port

Rows = list[dict[str, Any]]
Opened = Callable[..., "pellucid.Model"]

CHANCE = np.random.default_rng(0)
TOPICS = {
    "food": ("bad", "food", "good", "want"),
    "sea": ("sea", "water", "high", "past"),
    "read": ("read", "story", "book"),
}


def texts(many: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts, each with its topic."""
    chance, found = random.Random(seed), []
    plain = [word for word in WORDS if not any(word in words for words in TOPICS.values())]
    for _ in range(many):
        topic = chance.choice(list(TOPICS))
        words = chance.choices(plain, k=4) + chance.choices(TOPICS[topic], k=2)
        chance.shuffle(words)
        found.append((" ".join(words), topic))
    return found


def scored(many: int, seed: int = 0) -> Rows:
    """Pairs with scores from 0.5 to 4.5: at least 4 for texts of the same topic, at most 1 for others."""
    every = texts(2 * many, seed)
    chance = random.Random(seed)
    return [
        {"sentence1": one, "sentence2": two, "score": (4.0 if a == b else 0.5) + chance.random() / 2}
        for (one, a), (two, b) in zip(every[::2], every[1::2])
    ]


def matched(many: int, seed: int = 0, negative: bool = False) -> Rows:
    """Pairs of texts of the same topic, optionally with a negative of another topic."""
    every, found = texts(8 * many, seed), list[dict[str, Any]]()
    for i in range(0, len(every), 8):
        (one, topic), rest = every[i], every[i + 1 : i + 8]
        like = next((text for text, other in rest if other == topic), None)
        unlike = next((text for text, other in rest if other != topic), None)
        if like and unlike:
            found.append({"anchor": one, "positive": like} | ({"negative": unlike} if negative else {}))
    return found


def asked(model: "pellucid.Model", data: Rows, **options: Any) -> tuple[SentenceSimilarity, "pellucid.Model", Learner]:
    settings = Settings(precision="float32")
    objective, loaded = ready(model.loaded, SentenceSimilarity(**options), data, settings)
    return objective, pellucid.Model(loaded), Learner(loaded, settings)


# -- the formulas ------------------------------------------------------------------------------------------------------


def drawn(pairs: int, many: int, seed: int = 0) -> Tensor:
    return torch.randn(pairs, many, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(own: Callable[[Tensor], Tensor], reference: Callable[[list[Tensor]], Tensor], vectors: Tensor) -> None:
    """Checks values and gradients to 1e-9."""
    one, two = vectors.clone().requires_grad_(), vectors.clone().requires_grad_()
    first, second = own(one), reference(list(two.unbind(dim=1)))
    first.backward()
    second.backward()
    assert first.item() == pytest.approx(second.item(), abs=1e-9)
    assert torch.allclose(one.grad, two.grad, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_cosent_is_the_references(scale: float) -> None:
    scores = torch.tensor([0.2, 1.0, 0.2, 0.7, 0.0, 1.0, 0.4], dtype=torch.float64)
    reference = theirs.CoSENTLoss(None, scale=scale)
    same(
        lambda vectors: cosent(vectors, scores, scale),
        lambda columns: reference.compute_loss_from_embeddings(columns, scores),
        drawn(7, 2),
    )


def test_cosine_is_the_references() -> None:
    scores = torch.rand(9, dtype=torch.float64)
    reference = theirs.CosineSimilarityLoss(None)  # the reference compares in float32
    one = cosine(drawn(9, 2).float(), scores.float())
    two = reference.compute_loss_from_embeddings(list(drawn(9, 2).float().unbind(dim=1)), scores)
    assert one.item() == pytest.approx(two.item(), abs=1e-6)


@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_multiple_negatives_is_the_references(many: int, scale: float) -> None:
    texts_ = torch.arange(6 * many).view(6, many)
    reference = theirs.MultipleNegativesRankingLoss(None, scale=scale)
    same(
        lambda vectors: multiple_negatives(vectors, texts_, scale),
        lambda columns: reference.compute_loss_from_embeddings(columns, None),
        drawn(6, many),
    )
    both = theirs.MultipleNegativesRankingLoss(
        None, scale=scale, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    same(
        lambda vectors: multiple_negatives(vectors, texts_, scale, symmetric=True),
        lambda columns: both.compute_loss_from_embeddings(columns, None),
        drawn(6, many),
    )


def test_the_same_text_is_no_negative() -> None:
    """Pair 1 has the anchor of pair 0, and pair 2 its positive as anchor; pair 3 has other texts."""
    texts_ = torch.tensor([[0, 1, 9], [0, 2, 8], [1, 3, 7], [4, 5, 6]])
    vectors = torch.nn.functional.normalize(drawn(4, 3), dim=-1)
    candidates = {(row, column): vectors[row, column] for column in (1, 2) for row in range(4)}
    open_ = {
        0: [(0, 1), (2, 1), (3, 1), *((row, 2) for row in range(4))],
        1: [(1, 1), (2, 1), (3, 1), *((row, 2) for row in range(4))],
        2: [(2, 1), (1, 1), (3, 1), *((row, 2) for row in range(4))],  # the positive of pair 0 is its own anchor
        3: [(3, 1), (0, 1), (1, 1), (2, 1), *((row, 2) for row in range(4))],
    }
    wanted = 0.0
    for row, held in open_.items():
        scores = torch.stack([vectors[row, 0] @ candidates[one] for one in held]) * 20
        wanted += float(scores.logsumexp(dim=0) - scores[0]) / 4
    assert multiple_negatives(vectors, texts_, 20.0).item() == pytest.approx(wanted, abs=1e-9)


def test_nearest_counts_anchors_that_find_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.nn.functional.one_hot(torch.tensor([[0, 0], [1, 1], [2, 3], [3, 2], [4, 4]])).float()
    numbers = torch.arange(10).view(5, 2)
    assert retrieval_accuracy(vectors, numbers) == 3 / 5
    monkeypatch.setattr("pellucid.training.vector_losses.ROWS", 2)
    assert retrieval_accuracy(vectors, numbers) == 3 / 5


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["cosent", "multiple-negatives", "cosine"])
def test_a_step_in_pieces_is_the_same_step(opened: Opened, criterion: str) -> None:
    """With dropout, which is drawn anew for each micro-batch: the second pass drops what the first one dropped."""
    data = matched(12, negative=True) if criterion == "multiple-negatives" else scored(12)
    objective, model, learner = asked(opened("bert-body"), data, criterion=criterion)
    examples = objective.examples(model.loaded, data)

    def step(pieces: list[list[Any]]) -> tuple[float, dict[str, Tensor]]:
        held = [(i, objective.collate(model.loaded, piece, CHANCE)) for i, piece in enumerate(pieces)]
        weight, total = sum(objective.weight(piece) for _, piece in held), 0.0
        model.module.zero_grad()
        for number, piece in objective.link_micro_batches(learner, Ranks(), 0, held):
            learner.seed_dropout(0, number)
            loss = objective.loss(learner, piece) / weight
            loss.backward()
            total += loss.item()
        return total, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    for dropout in (0.0, 0.1):
        settings = Settings(precision="float32", dropout=dropout, attention_dropout=0.0)
        learner = Learner(
            objective.with_task_settings(model_for_training(opened("bert-body").loaded, objective, settings)), settings
        )
        model = pellucid.Model(learner.loaded)
        pieces = [examples[0::3], examples[1::3], examples[2::3]]
        parts, gradients = step(pieces)
        if dropout == 0.0:
            whole, wanted = step([examples])
        else:
            whole, wanted = _whole(objective, learner, model, pieces)
        assert parts == pytest.approx(whole, rel=1e-6)
        assert gradients.keys() == wanted.keys() and len(wanted) > 20
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, wanted[name], atol=5e-6), name


def _whole(
    objective: SentenceSimilarity, learner: Learner, model: "pellucid.Model", pieces: list[list[Any]]
) -> tuple[float, dict[str, Tensor]]:
    """The loss over all vectors in one graph, each micro-batch with its own dropout."""
    model.module.zero_grad()
    batches, vectors = [objective.collate(model.loaded, piece, CHANCE) for piece in pieces], []
    for number, batch in enumerate(batches):
        learner.seed_dropout(0, number)
        vectors.append(objective._vectors(learner, batch))
    scores, numbers = (torch.cat([batch[name] for batch in batches]) for name in ("labels", "texts"))
    loss = objective._criterion_loss(torch.cat(vectors), scores, numbers)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_accumulation_changes_no_training(opened: Opened) -> None:
    how: dict[str, Any] = {"max_steps": 3, "batch_size": 8, "precision": "float32", "dropout": 0.0}
    how |= {"attention_dropout": 0.0, "learning_rate": 1e-2, "epsilon": 1e-2}  # so that no rounding decides a step
    one, events = training(opened("bert-body").loaded, SentenceSimilarity(), scored(24), **how)
    other, also = training(opened("bert-body").loaded, SentenceSimilarity(), scored(24), accumulation=4, **how)
    assert [a.metrics["loss"] for a in events] == pytest.approx([b.metrics["loss"] for b in also], abs=1e-5)
    for name, numbers in one.parameters.items():
        assert torch.allclose(numbers, other.parameters[name], atol=1e-5), name


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"criterion": "multiple-negatives", "symmetric": True}, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_two_processes_learn_what_one_learns(
    checkpoint: Callable[[str], Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of seventeen pairs, eight at a time, the last step has one pair, and the second process none."""
    base, data = checkpoint("bert-body"), matched(40)[:17] if options else scored(17)
    assert len(data) == 17
    losses, loop = learned(base, data, Ranks(), **options)
    command = [
        sys.executable,
        "-m",
        "tests.training.ranked",
        base,
        json.dumps(data),
        tmp_path / "n",
        json.dumps(options),
    ]
    around = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    both = [subprocess.Popen(list(map(str, command)), cwd=ROOT, env=around | {"RANK": str(rank)}) for rank in (0, 1)]
    assert [one.wait(timeout=120) for one in both] == [0, 0]
    for rank in (0, 1):
        found = torch.load(tmp_path / f"n{rank}.pt")
        assert found["losses"] == pytest.approx(losses, abs=1e-5)
        for name, numbers in loop.parameters.items():
            assert torch.allclose(found["numbers"][name], numbers, atol=1e-5), name


# -- rows --------------------------------------------------------------------------------------------------------------


def test_scores_are_scaled_and_told(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    data = scored(5)
    objective, model, _ = asked(body, data)
    assert objective.top_score == 5.0 and "divided by 5" in caplog.text
    wanted = [row["score"] / 5 for row in data]
    assert [one.target.score for one in objective.examples(model.loaded, data)] == pytest.approx(wanted)
    small = [row | {"score": str(row["score"] / 5)} for row in data]  # as text, as in a table
    objective, model, _ = asked(body, small)
    assert objective.top_score == 1.0
    assert [one.target.score for one in objective.examples(model.loaded, small)] == pytest.approx(wanted)
    objective, model, _ = asked(body, [row | {"score": 9 - i} for i, row in enumerate(data)], top_score=10.0)
    assert objective.examples(model.loaded, [data[0] | {"score": 9}])[0].target.score == 0.9


def test_texts_are_known_by_a_number(body: "pellucid.Model") -> None:
    data = [{"anchor": "a dog", "positive": "the dog"}, {"anchor": "the dog", "positive": "good"}]
    objective, model, _ = asked(body, data, criterion="multiple-negatives")
    assert [one.target.texts for one in objective.examples(model.loaded, data)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        ({"sentence1": "a", "sentence2": "b"}, {}, "row 0 has no 'score', and criterion='cosent' learns from scores"),
        (scored(1)[0], {"criterion": "multiple-negatives"}, "row 0 has a score, and criterion='multiple-negatives'"),
        ({"text": "a"}, {}, "row 0 holds no texts to compare: expected columns sentence1 and sentence2, or anchor"),
        ({"sentence1": "a", "sentence": "b", "score": 1}, {}, r"row 0: no column 'sentence2' \(did you mean sentence"),
        ({"sentence1": "a", "sentence2": "b", "score": "x"}, {}, "row 0: score is 'x', expected a number"),
        ({"sentence1": "a", "sentence2": "b", "score": 10**400}, {}, "row 0: score is 10{58}…, expected a number"),
        (
            {"sentence1": "a", "sentence2": "b", "score": 7},
            {},
            "row 0: score is 7, expected one from 0 to 5: pass top_",
        ),
        ({"sentence1": "a", "sentence2": "", "score": 1}, {}, "row 0: 'sentence2' is empty"),
        ({"sentence1": "a", "sentence2": "b", "score": 1}, {"symmetric": True}, "symmetric=True is for criterion="),
        ({"sentence1": "a", "sentence2": "b", "score": 1}, {"criterion": "cosin"}, "did you mean cosine"),
        ({"sentence1": "a", "sentence2": "b", "score": 1}, {"pooling": "men"}, "pooling is 'men'"),
    ],
)
def test_bad_rows_are_named(body: "pellucid.Model", row: dict[str, Any], options: dict[str, Any], said: str) -> None:
    rows = read([row]).rows
    with pytest.raises(InputError, match=said):
        objective, model, _ = asked(body, rows, **options)
        objective.examples(model.loaded, rows)


def test_pairs_of_one_score_teach_nothing(body: "pellucid.Model") -> None:
    """The loss was 0 at every step, and training was reported as finished."""
    alike = [row | {"score": 4} for row in scored(6)]
    with pytest.raises(InputError, match=r"every pair has the score 4: .*mean alike pass criterion='multiple-neg"):
        asked(body, alike)
    assert asked(body, alike, criterion="cosine") and asked(body, scored(1))


def test_what_a_later_row_alone_has_is_not_passed_over(body: "pellucid.Model") -> None:
    some = read([*matched(2), *matched(1, 1, negative=True)]).rows
    objective, model, _ = asked(body, some, criterion="multiple-negatives")
    with pytest.raises(InputError, match="row 0: no column 'negative'"):
        objective.examples(model.loaded, some)
    with pytest.raises(InputError, match="row 1 has a score, and criterion='multiple-negatives'"):
        asked(body, read([{"sentence1": "a", "sentence2": "b"}, *scored(1)]).rows, criterion="multiple-negatives")


def test_what_is_not_read_is_told_of_in_whichever_row_it_stands(
    body: "pellucid.Model", caplog: pytest.LogCaptureFixture
) -> None:
    pairs = matched(2)
    asked(body, [*pairs, pairs[0] | {"score": 0.0}], criterion="multiple-negatives")
    assert "'score' is not read: 'multiple-negatives' takes each pair as one that means alike" in caplog.text
    asked(body, [*scored(2), scored(1)[0] | {"negative": "z"}])
    assert "'negative' is not read: 'cosent' learns from scores" in caplog.text


@pytest.mark.parametrize("criterion", ["cosent", "multiple-negatives", "cosine"])
def test_a_step_of_one_pair_is_refused_where_pairs_are_compared(body: "pellucid.Model", criterion: str) -> None:
    """Its loss would be 0, and weight decay would still shrink the weights."""
    rows: list[dict[str, Any]] = [{"sentence1": f"good {word}", "sentence2": word} for word in WORDS[:6]]
    if criterion != "multiple-negatives":
        rows = [row | {"score": i / 8} for i, row in enumerate(rows)]
    said: dict[str, Any] = {"criterion": criterion, "batch_size": 1, "epochs": 1, "validation": 0}
    if criterion == "cosine":
        assert pellucid.train(body, rows, "similarity", **said).report.log[0]["loss"] > 0
        return
    with pytest.raises(InputError, match="the loss compares the rows of a step: pass batch_size=2 or more"):
        pellucid.train(body, rows, "similarity", **said)
    with pytest.raises(InputError, match=r"there is 1 row to learn from, and .* of a step: give 2"):
        pellucid.train(body, rows[:1], "similarity", **said | {"batch_size": None})
    if criterion == "multiple-negatives":
        five = pellucid.train(body, rows[:5], "similarity", **said | {"batch_size": 4, "epochs": 3}, evaluate_every=1)
        assert len(five.report.log) == 3 and all(
            step["loss"] > 0 for step in five.report.log
        )  # no step holds the fifth pair alone
        three = [{"anchor": f"good {word}", "positive": word, "negative": "hate"} for word in WORDS[:6]]
        assert pellucid.train(body, three, "similarity", **said).report.log[0]["loss"] > 0


@pytest.mark.parametrize("criterion", ["cosent", "cosine"])
def test_held_out_rows_without_a_score_are_named(body: "pellucid.Model", tmp_path: Path, criterion: str) -> None:
    (tmp_path / "dev.csv").write_text("sentence1,sentence2\na dog,the dog\n", encoding="utf-8")
    objective, model, _ = asked(body, scored(4), criterion=criterion)
    with pytest.raises(InputError, match=r"^dev\.csv, line 2: no column 'score'"):
        objective.examples(model.loaded, read(tmp_path / "dev.csv").rows)


# -- training results --------------------------------------------------------------------------------------------------

HOW: dict[str, Any] = {"epochs": 3, "batch_size": 32, "learning_rate": 5e-3, "precision": "float32", "keep_best": False}


@pytest.mark.parametrize("criterion", ["cosent", "cosine"])
def test_scores_are_learned_and_the_folder_is_the_references(
    scratch: "pellucid.Model", tmp_path: Path, criterion: str
) -> None:
    objective = SentenceSimilarity(criterion=criterion)
    held = scored(60, 2)
    loop, events = training(scratch.loaded, objective, scored(400, 1), held, **HOW)
    looks = [one.metrics for one in events if one.is_evaluation]
    assert looks[-1]["pearson"] > 0.7 and looks[-1]["spearman"] > 0.3
    save_checkpoint(result(loop), tmp_path / "out")
    reference, own = SentenceTransformer(str(tmp_path / "out"), device="cpu"), pellucid.load(tmp_path / "out")
    some = [row["sentence1"] for row in held]
    vectors = own.embed(some)
    assert torch.allclose(reference.encode(some, convert_to_tensor=True), vectors, atol=1e-5)
    both = torch.stack((vectors, own.embed([row["sentence2"] for row in held])), dim=1)
    wanted = stats.spearmanr(cosines(both).numpy(), [row["score"] for row in held]).statistic
    assert looks[-1]["spearman"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("negative", [False, True])
def test_multiple_negatives_are_learned(scratch: "pellucid.Model", negative: bool) -> None:
    objective = SentenceSimilarity(criterion="multiple-negatives", symmetric=not negative)
    held = matched(3, 5)
    loop, events = training(scratch.loaded, objective, matched(300, 1, negative), held, **HOW)
    steps = [one.metrics["loss"] for one in events if not one.is_evaluation]
    assert sum(steps[-5:]) < 0.88 * sum(steps[:5])
    assert (
        loop.objective.best_metric == "accuracy"
        and "accuracy" in [one for one in events if one.is_evaluation][-1].metrics
    )
    scores = SentenceSimilarity().fitted(scored(40, 3))
    found = scores.score(loop.loaded, scores.examples(loop.loaded, scored(60, 4)))
    assert found["pearson"] > 0.7


@pytest.mark.parametrize("name", ["distilbert-body", "roberta-body", "gpt2-body", "llama-body", "t5-tied", "bart-body"])
def test_other_families_learn(opened: Opened, tmp_path: Path, name: str) -> None:
    how: dict[str, Any] = {"max_steps": 2, "batch_size": 6, "precision": "float32", "accumulation": 2}
    loop, events = training(opened(name, head=None).loaded, SentenceSimilarity(), scored(12, 1), **how)
    assert events[0].metrics["gradient_norm"] > 0 and len(events) == 2
    own = pellucid.load(save_checkpoint(result(loop), tmp_path / "out"))
    held = scored(8, 2)
    both = [own.embed([row[column] for row in held]) for column in ("sentence1", "sentence2")]
    wanted = stats.pearsonr(cosines(torch.stack(both, dim=1)).numpy(), [row["score"] for row in held]).statistic
    found = loop.objective.score(loop.loaded, loop.objective.examples(loop.loaded, held))
    assert found["pearson"] == pytest.approx(wanted, abs=1e-4)


def test_another_pooling_is_learned_and_kept(scratch: "pellucid.Model", tmp_path: Path) -> None:
    objective, held = SentenceSimilarity(pooling="cls", max_length=20), scored(30, 2)
    loop, events = training(scratch.loaded, objective, scored(60, 1), held, **HOW | {"epochs": 1})
    save_checkpoint(result(loop), tmp_path / "out")
    own, reference = pellucid.load(tmp_path / "out"), SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert own.loaded.pooling.modes == ("cls",) and own.loaded.pooling.max_length == 20 == reference.max_seq_length
    some = [row["sentence1"] for row in held]
    assert torch.allclose(reference.encode(some, convert_to_tensor=True), own.embed(some), atol=1e-5)
    wanted = stats.spearmanr(
        cosines(torch.stack((own.embed(some), own.embed([row["sentence2"] for row in held])), dim=1)).numpy(),
        [row["score"] for row in held],
    ).statistic
    assert events[-1].metrics["spearman"] == pytest.approx(wanted, abs=1e-6)


def test_from_a_file_to_a_folder(scratch: "pellucid.Model", tmp_path: Path) -> None:
    lines = [",".join(map(str, row.values())) for row in scored(60, 1)]
    (tmp_path / "pairs.csv").write_text("\n".join(["first,second,likeness", *lines]), encoding="utf-8")
    columns = {"sentence1": "first", "sentence2": "second", "score": "likeness"}
    how: dict[str, Any] = {"epochs": 1, "precision": "float32", "accumulation": 2, "top_score": 5.0}
    model = pellucid.train(scratch, tmp_path / "pairs.csv", "embed", columns=columns, out=tmp_path / "out", **how)
    assert model.report.scores.keys() == {"spearman", "pearson"}
    found = pellucid.evaluate(tmp_path / "out", tmp_path / "pairs.csv", "similarity", columns=columns)
    assert found.keys() == {"spearman", "pearson"}
    same_ = {"columns": columns, "criterion": "multiple-negatives"}
    other = pellucid.evaluate(tmp_path / "out", tmp_path / "pairs.csv", "similarity", **same_)
    assert other.keys() == {"spearman", "pearson", "accuracy"} and other["pearson"] == found["pearson"]
    assert model.embed("a dog").shape == (32,)


def test_negatives_are_not_read_where_scores_are_learned_from(
    body: "pellucid.Model", caplog: pytest.LogCaptureFixture
) -> None:
    data = [row | {"score": i / 8} for i, row in enumerate(matched(8, negative=True))]
    objective, begun, _ = asked(body, data)
    examples = objective.examples(begun.loaded, data)
    assert objective.min_examples(examples) == 2 and all(len(one.ids) == 2 for one in examples)
    assert "'negative' is not read: 'cosent' learns from scores" in caplog.text
