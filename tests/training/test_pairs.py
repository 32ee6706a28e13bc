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
from tests.tasks.planted_facts import WORDS
from tests.training.pairs_process import losses_and_loop
from tests.training.small_runs import ROOT
from tests.training.test_distributed import free_port
from tests.training.whole_run import objective_and_model, run_loop, trained_model

Rows = list[dict[str, Any]]
LoadTiny = Callable[..., "pellucid.Model"]

GENERATOR = np.random.default_rng(0)
TOPICS = {
    "food": ("bad", "food", "good", "want"),
    "sea": ("sea", "water", "high", "past"),
    "read": ("read", "story", "book"),
}


def texts_with_topics(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts, each with its topic."""
    generator, result = random.Random(seed), []
    neutral = [word for word in WORDS if not any(word in words for words in TOPICS.values())]
    for _ in range(count):
        topic = generator.choice(list(TOPICS))
        words = generator.choices(neutral, k=4) + generator.choices(TOPICS[topic], k=2)
        generator.shuffle(words)
        result.append((" ".join(words), topic))
    return result


def scored_pairs(count: int, seed: int = 0) -> Rows:
    """Pairs with scores from 0.5 to 4.5: at least 4 for texts of the same topic, at most 1 for others."""
    texts = texts_with_topics(2 * count, seed)
    generator = random.Random(seed)
    return [
        {"sentence1": one, "sentence2": two, "score": (4.0 if a == b else 0.5) + generator.random() / 2}
        for (one, a), (two, b) in zip(texts[::2], texts[1::2])
    ]


def matching_pairs(count: int, seed: int = 0, negative: bool = False) -> Rows:
    """Pairs of texts of the same topic, optionally with a negative of another topic."""
    texts, found = texts_with_topics(8 * count, seed), list[dict[str, Any]]()
    for i in range(0, len(texts), 8):
        (anchor, topic), others = texts[i], texts[i + 1 : i + 8]
        same_topic = next((text for text, other in others if other == topic), None)
        other_topic = next((text for text, other in others if other != topic), None)
        if same_topic and other_topic:
            found.append({"anchor": anchor, "positive": same_topic} | ({"negative": other_topic} if negative else {}))
    return found


def prepare_training(
    model: "pellucid.Model", data: Rows, **options: Any
) -> tuple[SentenceSimilarity, "pellucid.Model", Learner]:
    settings = Settings(precision="float32")
    objective, loaded = objective_and_model(model.loaded, SentenceSimilarity(**options), data, settings)
    return objective, pellucid.Model(loaded), Learner(loaded, settings)


# -- the formulas ------------------------------------------------------------------------------------------------------


def random_vectors(pairs: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(pairs, columns, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same_loss(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[list[Tensor]], Tensor], vectors: Tensor
) -> None:
    """Checks values and gradients to 1e-9."""
    our_vectors, their_vectors = vectors.clone().requires_grad_(), vectors.clone().requires_grad_()
    first, second = ours(our_vectors), theirs(list(their_vectors.unbind(dim=1)))
    first.backward()
    second.backward()
    assert first.item() == pytest.approx(second.item(), abs=1e-9)
    assert torch.allclose(our_vectors.grad, their_vectors.grad, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_cosent_equals_the_reference_s(scale: float) -> None:
    scores = torch.tensor([0.2, 1.0, 0.2, 0.7, 0.0, 1.0, 0.4], dtype=torch.float64)
    reference = theirs.CoSENTLoss(None, scale=scale)
    assert_same_loss(
        lambda vectors: cosent(vectors, scores, scale),
        lambda columns: reference.compute_loss_from_embeddings(columns, scores),
        random_vectors(7, 2),
    )


def test_cosine_equals_the_reference_s() -> None:
    scores = torch.rand(9, dtype=torch.float64)
    reference = theirs.CosineSimilarityLoss(None)  # the reference compares in float32
    ours = cosine(random_vectors(9, 2).float(), scores.float())
    expected = reference.compute_loss_from_embeddings(list(random_vectors(9, 2).float().unbind(dim=1)), scores)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("text_columns", [2, 3])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_multiple_negatives_equals_the_reference_s(text_columns: int, scale: float) -> None:
    text_numbers = torch.arange(6 * text_columns).view(6, text_columns)
    reference = theirs.MultipleNegativesRankingLoss(None, scale=scale)
    assert_same_loss(
        lambda vectors: multiple_negatives(vectors, text_numbers, scale),
        lambda columns: reference.compute_loss_from_embeddings(columns, None),
        random_vectors(6, text_columns),
    )
    symmetric_reference = theirs.MultipleNegativesRankingLoss(
        None, scale=scale, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    assert_same_loss(
        lambda vectors: multiple_negatives(vectors, text_numbers, scale, symmetric=True),
        lambda columns: symmetric_reference.compute_loss_from_embeddings(columns, None),
        random_vectors(6, text_columns),
    )


def test_equal_texts_are_not_used_as_negatives() -> None:
    """Pair 1 has the anchor of pair 0, and pair 2 its positive as anchor; pair 3 has other texts."""
    text_numbers = torch.tensor([[0, 1, 9], [0, 2, 8], [1, 3, 7], [4, 5, 6]])
    vectors = torch.nn.functional.normalize(random_vectors(4, 3), dim=-1)
    candidates = {(row, column): vectors[row, column] for column in (1, 2) for row in range(4)}
    allowed = {
        0: [(0, 1), (2, 1), (3, 1), *((row, 2) for row in range(4))],
        1: [(1, 1), (2, 1), (3, 1), *((row, 2) for row in range(4))],
        2: [(2, 1), (1, 1), (3, 1), *((row, 2) for row in range(4))],  # the positive of pair 0 is its own anchor
        3: [(3, 1), (0, 1), (1, 1), (2, 1), *((row, 2) for row in range(4))],
    }
    expected = 0.0
    for row, candidate_pairs in allowed.items():
        scores = torch.stack([vectors[row, 0] @ candidates[one] for one in candidate_pairs]) * 20
        expected += float(scores.logsumexp(dim=0) - scores[0]) / 4
    assert multiple_negatives(vectors, text_numbers, 20.0).item() == pytest.approx(expected, abs=1e-9)


def test_retrieval_accuracy_counts_anchors_nearest_to_their_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.nn.functional.one_hot(torch.tensor([[0, 0], [1, 1], [2, 3], [3, 2], [4, 4]])).float()
    numbers = torch.arange(10).view(5, 2)
    assert retrieval_accuracy(vectors, numbers) == 3 / 5
    monkeypatch.setattr("pellucid.training.vector_losses.ROWS", 2)
    assert retrieval_accuracy(vectors, numbers) == 3 / 5


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["cosent", "multiple-negatives", "cosine"])
def test_micro_batches_give_the_gradients_of_the_whole_batch(load_tiny: LoadTiny, criterion: str) -> None:
    """With dropout, which is drawn anew for each micro-batch: the second pass drops what the first one dropped."""
    data = matching_pairs(12, negative=True) if criterion == "multiple-negatives" else scored_pairs(12)
    objective, model, learner = prepare_training(load_tiny("bert-body"), data, criterion=criterion)
    examples = objective.examples(model.loaded, data)

    def step(pieces: list[list[Any]]) -> tuple[float, dict[str, Tensor]]:
        batches = [(i, objective.collate(model.loaded, piece, GENERATOR)) for i, piece in enumerate(pieces)]
        weight, total = sum(objective.weight(piece) for _, piece in batches), 0.0
        model.module.zero_grad()
        for number, piece in objective.link_micro_batches(learner, Ranks(), 0, batches):
            learner.seed_dropout(0, number)
            loss = objective.loss(learner, piece) / weight
            loss.backward()
            total += loss.item()
        return total, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    for dropout in (0.0, 0.1):
        settings = Settings(precision="float32", dropout=dropout, attention_dropout=0.0)
        learner = Learner(
            objective.with_task_settings(model_for_training(load_tiny("bert-body").loaded, objective, settings)),
            settings,
        )
        model = pellucid.Model(learner.loaded)
        pieces = [examples[0::3], examples[1::3], examples[2::3]]
        loss_of_pieces, gradients = step(pieces)
        if dropout == 0.0:
            whole, expected = step([examples])
        else:
            whole, expected = _whole_batch(objective, learner, model, pieces)
        assert loss_of_pieces == pytest.approx(whole, rel=1e-6)
        assert gradients.keys() == expected.keys() and len(expected) > 20
        for name, gradient in gradients.items():
            assert torch.allclose(gradient, expected[name], atol=5e-6), name


def _whole_batch(
    objective: SentenceSimilarity, learner: Learner, model: "pellucid.Model", pieces: list[list[Any]]
) -> tuple[float, dict[str, Tensor]]:
    """The loss over all vectors in one graph, each micro-batch with its own dropout."""
    model.module.zero_grad()
    batches, vectors = [objective.collate(model.loaded, piece, GENERATOR) for piece in pieces], []
    for number, batch in enumerate(batches):
        learner.seed_dropout(0, number)
        vectors.append(objective._vectors(learner, batch))
    scores, numbers = (torch.cat([batch[name] for batch in batches]) for name in ("labels", "texts"))
    loss = objective._criterion_loss(torch.cat(vectors), scores, numbers)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_accumulation_does_not_change_the_training(load_tiny: LoadTiny) -> None:
    settings: dict[str, Any] = {"max_steps": 3, "batch_size": 8, "precision": "float32", "dropout": 0.0}
    settings |= {"attention_dropout": 0.0, "learning_rate": 1e-2, "epsilon": 1e-2}  # so that no rounding decides a step
    whole, events = run_loop(load_tiny("bert-body").loaded, SentenceSimilarity(), scored_pairs(24), **settings)
    accumulated, accumulated_events = run_loop(
        load_tiny("bert-body").loaded, SentenceSimilarity(), scored_pairs(24), accumulation=4, **settings
    )
    assert [a.metrics["loss"] for a in events] == pytest.approx(
        [b.metrics["loss"] for b in accumulated_events], abs=1e-5
    )
    for name, numbers in whole.parameters.items():
        assert torch.allclose(numbers, accumulated.parameters[name], atol=1e-5), name


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"criterion": "multiple-negatives", "symmetric": True}, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_two_processes_train_the_same_model_as_one(
    checkpoint: Callable[[str], Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of seventeen pairs, eight at a time, the last step has one pair, and the second process none."""
    base, data = checkpoint("bert-body"), matching_pairs(40)[:17] if options else scored_pairs(17)
    assert len(data) == 17
    losses, loop = losses_and_loop(base, data, Ranks(), **options)
    command = [
        sys.executable,
        "-m",
        "tests.training.pairs_process",
        base,
        json.dumps(data),
        tmp_path / "n",
        json.dumps(options),
    ]
    environment = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = [
        subprocess.Popen(list(map(str, command)), cwd=ROOT, env=environment | {"RANK": str(rank)}) for rank in (0, 1)
    ]
    assert [one.wait(timeout=120) for one in processes] == [0, 0]
    for rank in (0, 1):
        saved = torch.load(tmp_path / f"n{rank}.pt")
        assert saved["losses"] == pytest.approx(losses, abs=1e-5)
        for name, numbers in loop.parameters.items():
            assert torch.allclose(saved["numbers"][name], numbers, atol=1e-5), name


# -- rows --------------------------------------------------------------------------------------------------------------


def test_scores_are_scaled_and_the_scale_is_reported(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    data = scored_pairs(5)
    objective, model, _ = prepare_training(body, data)
    assert objective.top_score == 5.0 and "divided by 5" in caplog.text
    expected = [row["score"] / 5 for row in data]
    assert [one.target.score for one in objective.examples(model.loaded, data)] == pytest.approx(expected)
    scaled = [row | {"score": str(row["score"] / 5)} for row in data]  # as text, as in a table
    objective, model, _ = prepare_training(body, scaled)
    assert objective.top_score == 1.0
    assert [one.target.score for one in objective.examples(model.loaded, scaled)] == pytest.approx(expected)
    objective, model, _ = prepare_training(body, [row | {"score": 9 - i} for i, row in enumerate(data)], top_score=10.0)
    assert objective.examples(model.loaded, [data[0] | {"score": 9}])[0].target.score == 0.9


def test_equal_texts_have_the_same_number(body: "pellucid.Model") -> None:
    data = [{"anchor": "a dog", "positive": "the dog"}, {"anchor": "the dog", "positive": "good"}]
    objective, model, _ = prepare_training(body, data, criterion="multiple-negatives")
    assert [one.target.texts for one in objective.examples(model.loaded, data)] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"sentence1": "a", "sentence2": "b"}, {}, "row 0 has no 'score', and criterion='cosent' learns from scores"),
        (
            scored_pairs(1)[0],
            {"criterion": "multiple-negatives"},
            "row 0 has a score, and criterion='multiple-negatives'",
        ),
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
def test_invalid_rows_are_refused_by_number(
    body: "pellucid.Model", row: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    rows = read([row]).rows
    with pytest.raises(InputError, match=message):
        objective, model, _ = prepare_training(body, rows, **options)
        objective.examples(model.loaded, rows)


def test_pairs_with_equal_scores_are_refused_for_cosent(body: "pellucid.Model") -> None:
    """The loss was 0 at every step, and training was reported as finished."""
    alike = [row | {"score": 4} for row in scored_pairs(6)]
    with pytest.raises(InputError, match=r"every pair has the score 4: .*mean alike pass criterion='multiple-neg"):
        prepare_training(body, alike)
    assert prepare_training(body, alike, criterion="cosine") and prepare_training(body, scored_pairs(1))


def test_columns_of_later_rows_are_checked(body: "pellucid.Model") -> None:
    mixed = read([*matching_pairs(2), *matching_pairs(1, 1, negative=True)]).rows
    objective, model, _ = prepare_training(body, mixed, criterion="multiple-negatives")
    with pytest.raises(InputError, match="row 0: no column 'negative'"):
        objective.examples(model.loaded, mixed)
    with pytest.raises(InputError, match="row 1 has a score, and criterion='multiple-negatives'"):
        prepare_training(
            body, read([{"sentence1": "a", "sentence2": "b"}, *scored_pairs(1)]).rows, criterion="multiple-negatives"
        )


def test_unused_columns_of_any_row_are_reported(body: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    pairs = matching_pairs(2)
    prepare_training(body, [*pairs, pairs[0] | {"score": 0.0}], criterion="multiple-negatives")
    assert "'score' is not read: 'multiple-negatives' takes each pair as one that means alike" in caplog.text
    prepare_training(body, [*scored_pairs(2), scored_pairs(1)[0] | {"negative": "z"}])
    assert "'negative' is not read: 'cosent' learns from scores" in caplog.text


@pytest.mark.parametrize("criterion", ["cosent", "multiple-negatives", "cosine"])
def test_batch_of_one_pair_is_refused_for_contrastive_losses(body: "pellucid.Model", criterion: str) -> None:
    """Its loss would be 0, and weight decay would still shrink the weights."""
    rows: list[dict[str, Any]] = [{"sentence1": f"good {word}", "sentence2": word} for word in WORDS[:6]]
    if criterion != "multiple-negatives":
        rows = [row | {"score": i / 8} for i, row in enumerate(rows)]
    settings: dict[str, Any] = {"criterion": criterion, "batch_size": 1, "epochs": 1, "validation": 0}
    if criterion == "cosine":
        assert pellucid.train(body, rows, "similarity", **settings).report.log[0]["loss"] > 0
        return
    with pytest.raises(InputError, match="the loss compares the rows of a step: pass batch_size=2 or more"):
        pellucid.train(body, rows, "similarity", **settings)
    with pytest.raises(InputError, match=r"there is 1 row to learn from, and .* of a step: give 2"):
        pellucid.train(body, rows[:1], "similarity", **settings | {"batch_size": None})
    if criterion == "multiple-negatives":
        odd = pellucid.train(
            body, rows[:5], "similarity", **settings | {"batch_size": 4, "epochs": 3}, evaluate_every=1
        )
        assert len(odd.report.log) == 3 and all(
            step["loss"] > 0 for step in odd.report.log
        )  # no step holds the fifth pair alone
        triplets = [{"anchor": f"good {word}", "positive": word, "negative": "hate"} for word in WORDS[:6]]
        assert pellucid.train(body, triplets, "similarity", **settings).report.log[0]["loss"] > 0


@pytest.mark.parametrize("criterion", ["cosent", "cosine"])
def test_held_out_rows_without_a_score_are_refused_by_line(
    body: "pellucid.Model", tmp_path: Path, criterion: str
) -> None:
    (tmp_path / "dev.csv").write_text("sentence1,sentence2\na dog,the dog\n", encoding="utf-8")
    objective, model, _ = prepare_training(body, scored_pairs(4), criterion=criterion)
    with pytest.raises(InputError, match=r"^dev\.csv, line 2: no column 'score'"):
        objective.examples(model.loaded, read(tmp_path / "dev.csv").rows)


# -- training results --------------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 5e-3,
    "precision": "float32",
    "keep_best": False,
}


@pytest.mark.parametrize("criterion", ["cosent", "cosine"])
def test_trained_model_predicts_scores_and_loads_in_the_reference(
    scratch: "pellucid.Model", tmp_path: Path, criterion: str
) -> None:
    objective = SentenceSimilarity(criterion=criterion)
    held_out = scored_pairs(60, 2)
    loop, events = run_loop(scratch.loaded, objective, scored_pairs(400, 1), held_out, **SETTINGS)
    evaluations = [one.metrics for one in events if one.is_evaluation]
    assert evaluations[-1]["pearson"] > 0.7 and evaluations[-1]["spearman"] > 0.3
    save_checkpoint(trained_model(loop), tmp_path / "out")
    reference, reloaded = SentenceTransformer(str(tmp_path / "out"), device="cpu"), pellucid.load(tmp_path / "out")
    sentences = [row["sentence1"] for row in held_out]
    vectors = reloaded.embed(sentences)
    assert torch.allclose(reference.encode(sentences, convert_to_tensor=True), vectors, atol=1e-5)
    vector_pairs = torch.stack((vectors, reloaded.embed([row["sentence2"] for row in held_out])), dim=1)
    expected = stats.spearmanr(cosines(vector_pairs).numpy(), [row["score"] for row in held_out]).statistic
    assert evaluations[-1]["spearman"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("negative", [False, True])
def test_multiple_negatives_training_improves_the_scores(scratch: "pellucid.Model", negative: bool) -> None:
    objective = SentenceSimilarity(criterion="multiple-negatives", symmetric=not negative)
    held_out = matching_pairs(3, 5)
    loop, events = run_loop(scratch.loaded, objective, matching_pairs(300, 1, negative), held_out, **SETTINGS)
    steps = [one.metrics["loss"] for one in events if not one.is_evaluation]
    assert sum(steps[-5:]) < 0.88 * sum(steps[:5])
    assert (
        loop.objective.best_metric == "accuracy"
        and "accuracy" in [one for one in events if one.is_evaluation][-1].metrics
    )
    scorer = SentenceSimilarity().fitted(scored_pairs(40, 3))
    found = scorer.score(loop.loaded, scorer.examples(loop.loaded, scored_pairs(60, 4)))
    assert found["pearson"] > 0.7


@pytest.mark.parametrize("name", ["distilbert-body", "roberta-body", "gpt2-body", "llama-body", "t5-tied", "bart-body"])
def test_other_families_are_trained_and_saved(load_tiny: LoadTiny, tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"max_steps": 2, "batch_size": 6, "precision": "float32", "accumulation": 2}
    loop, events = run_loop(load_tiny(name, head=None).loaded, SentenceSimilarity(), scored_pairs(12, 1), **settings)
    assert events[0].metrics["gradient_norm"] > 0 and len(events) == 2
    reloaded = pellucid.load(save_checkpoint(trained_model(loop), tmp_path / "out"))
    held_out = scored_pairs(8, 2)
    vectors = [reloaded.embed([row[column] for row in held_out]) for column in ("sentence1", "sentence2")]
    expected = stats.pearsonr(
        cosines(torch.stack(vectors, dim=1)).numpy(), [row["score"] for row in held_out]
    ).statistic
    found = loop.objective.score(loop.loaded, loop.objective.examples(loop.loaded, held_out))
    assert found["pearson"] == pytest.approx(expected, abs=1e-4)


def test_other_pooling_is_trained_and_saved(scratch: "pellucid.Model", tmp_path: Path) -> None:
    objective, held_out = SentenceSimilarity(pooling="cls", max_length=20), scored_pairs(30, 2)
    loop, events = run_loop(scratch.loaded, objective, scored_pairs(60, 1), held_out, **SETTINGS | {"epochs": 1})
    save_checkpoint(trained_model(loop), tmp_path / "out")
    reloaded, reference = pellucid.load(tmp_path / "out"), SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (
        reloaded.loaded.pooling.modes == ("cls",)
        and reloaded.loaded.pooling.max_length == 20 == reference.max_seq_length
    )
    sentences = [row["sentence1"] for row in held_out]
    assert torch.allclose(reference.encode(sentences, convert_to_tensor=True), reloaded.embed(sentences), atol=1e-5)
    expected = stats.spearmanr(
        cosines(
            torch.stack((reloaded.embed(sentences), reloaded.embed([row["sentence2"] for row in held_out])), dim=1)
        ).numpy(),
        [row["score"] for row in held_out],
    ).statistic
    assert events[-1].metrics["spearman"] == pytest.approx(expected, abs=1e-6)


def test_training_reads_a_file_and_saves_a_folder(scratch: "pellucid.Model", tmp_path: Path) -> None:
    lines = [",".join(map(str, row.values())) for row in scored_pairs(60, 1)]
    (tmp_path / "pairs.csv").write_text("\n".join(["first,second,likeness", *lines]), encoding="utf-8")
    columns = {"sentence1": "first", "sentence2": "second", "score": "likeness"}
    settings: dict[str, Any] = {"epochs": 1, "precision": "float32", "accumulation": 2, "top_score": 5.0}
    model = pellucid.train(scratch, tmp_path / "pairs.csv", "embed", columns=columns, out=tmp_path / "out", **settings)
    assert model.report.scores.keys() == {"spearman", "pearson"}
    found = pellucid.evaluate(tmp_path / "out", tmp_path / "pairs.csv", "similarity", columns=columns)
    assert found.keys() == {"spearman", "pearson"}
    options = {"columns": columns, "criterion": "multiple-negatives"}
    other = pellucid.evaluate(tmp_path / "out", tmp_path / "pairs.csv", "similarity", **options)
    assert other.keys() == {"spearman", "pearson", "accuracy"} and other["pearson"] == found["pearson"]
    assert model.embed("a dog").shape == (32,)


def test_negatives_beside_scores_are_ignored_and_reported(
    body: "pellucid.Model", caplog: pytest.LogCaptureFixture
) -> None:
    data = [row | {"score": i / 8} for i, row in enumerate(matching_pairs(8, negative=True))]
    objective, prepared, _ = prepare_training(body, data)
    examples = objective.examples(prepared.loaded, data)
    assert objective.min_examples(examples) == 2 and all(len(one.ids) == 2 for one in examples)
    assert "'negative' is not read: 'cosent' learns from scores" in caplog.text
