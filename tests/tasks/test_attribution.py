"""Attribution: a token's score is the change of the explained value on the path from padding to its embedding; for
generated text, the rate of change as the embedding grows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid.tasks.answer import AnswerAttribution
from pellucid.tasks.attribution import STEPS
from pellucid.text.spelling import token_text
from pellucid.trace.explain.integration import IntegrationPath
from tests.parity.tiny import write
from tests.quick import few

TEXT = "The dog sleeps in Zürich."
QUESTION, CONTEXT = "Who lives?", "A dog sleeps, and Marie Curie lives in Paris."
STEP = 1e-6

Load = Callable[[str], "pellucid.Model"]
Scalar = Callable[["pellucid.Model"], torch.Tensor]


@pytest.fixture(scope="module")
def load_float64(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Loads a tiny checkpoint by name, in float64."""
    return lambda name: pellucid.load(write(name, tmp_path_factory.mktemp(name)), dtype="float64")


def scale_derivatives(model: "pellucid.Model", scalar: Scalar, tokens: int, side: str = "") -> list[float]:
    """The derivative of a value by the scale of each embedding in turn, from central differences."""

    def scalar_at(position: int, factor: float) -> float:
        scale = torch.ones(position + 1, 1, dtype=torch.float64)
        scale[position] = factor

        def scaled(value: torch.Tensor) -> torch.Tensor:
            others = torch.ones(value.shape[1] - position - 1, 1, dtype=torch.float64)
            return value * torch.cat((scale, others))

        with model.edit({f"{side}embeddings.output": scaled}) as edited, torch.no_grad():
            return float(scalar(edited))

    return [(scalar_at(i, 1 + STEP) - scalar_at(i, 1 - STEP)) / (2 * STEP) for i in range(tokens)]


def integrated_gradients(model: "pellucid.Model", scalar: Scalar, ids: list[int], *sides: str) -> list[list[float]]:
    """Integrated gradients of each token on the straight path from padding to the text, at sixty points, by the side
    that reads it: `ids`, or in a decoder these after its start token."""
    tokenizer, sides = model.tokenizer, sides or ("",)
    special = torch.tensor([[one in tokenizer.special_ids - {tokenizer.unk_token_id}] for one in ids])
    padding_id = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    first, row = torch.ones(1, 1, dtype=torch.bool), model.loaded.module.embeddings.token(torch.tensor([padding_id]))
    kept_tokens = {side: torch.cat((first, special[:-1])) if side == "decoder." else special for side in sides}

    def embeddings(padded: bool) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = {}
        edits: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        for side, keep in kept_tokens.items():
            edits[f"{side}embeddings.token"] = lambda value, keep=keep: value.where(keep | (not padded), row)
            edits[f"{side}embeddings.output"] = lambda value, side=side: values.setdefault(side, value.detach().clone())
        with model.edit(edits) as edited, torch.no_grad():
            scalar(edited)
        return values

    start, end = embeddings(padded=True), embeddings(padded=False)
    totals = {side: torch.zeros(len(ids), dtype=torch.float64) for side in sides}
    for node, weight in zip(*np.polynomial.legendre.leggauss(60)):
        path_points = {
            side: (start[side] + (node + 1) / 2 * (end[side] - start[side])).requires_grad_() for side in sides
        }
        edits_at = {f"{side}embeddings.output": lambda value, side=side: path_points[side] for side in sides}  # noqa: B023
        with model.edit(edits_at) as edited, torch.enable_grad():
            gradients = torch.autograd.grad(scalar(edited), list(path_points.values()))
        for side, gradient in zip(sides, gradients):
            totals[side] += weight / 2 * (gradient * (end[side] - start[side]))[0].sum(dim=-1)
    return [totals[side].tolist() for side in sides]


def assert_attribution(
    attribution: AnswerAttribution | None, expected: list[float], description: str, tolerance: float = 1e-4
) -> None:
    assert attribution is not None and attribution.target == description
    assert len(attribution.scores) == len(attribution.tokens) == len(expected)
    assert list(attribution.scores) == pytest.approx(expected, abs=tolerance)
    assert max(map(abs, attribution.scores)) > 100 * tolerance, "the scores are large enough to compare"


# -- single tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-feelings", "albert-similarity", "gpt2-feelings", "llama-feelings"])
@pytest.mark.parametrize("pair", few([None, "Is it so?"], ["Is it so?"]))
def test_label_attribution_explains_its_logit(load_float64: Load, name: str, pair: str | None) -> None:
    model = load_float64(name)
    answer = pellucid.pipeline("text-classification", model, explain=True)(TEXT if pair is None else (TEXT, pair))
    (row,) = model.tokenizer.encode([TEXT], None if pair is None else [pair])
    label = model.config.labels.index(answer["label"])

    def logit(edited: "pellucid.Model") -> torch.Tensor:
        types = torch.tensor([row.type_ids]) if name.startswith(("bert", "albert")) else None
        return edited([row.ids] if types is None else torch.tensor([row.ids]), token_type_ids=types).logits[0, label]

    by_bytes = model.tokenizer.by_bytes
    assert answer.why is not None and list(answer.why.tokens) == [token_text(token, by_bytes) for token in row.tokens]
    assert not by_bytes or {" dog", "ü"} <= {*answer.why.tokens}
    tolerance = 5e-3 if name.startswith("llama") else 1e-4  # norms in the branches cancel the small scale of embeddings
    assert_attribution(
        answer.why, integrated_gradients(model, logit, row.ids)[0], f"logit of {answer['label']!r}", tolerance
    )
    assert answer.why.method == "integrated gradients"


def test_attribution_sums_over_encoder_and_decoder(load_float64: Load) -> None:
    """Both halves of an encoder-decoder read the text, the decoder one position to the right."""
    model = load_float64("bart-nli")
    answer = pellucid.pipeline("text-classification", model, explain=True)(TEXT)
    (row,) = model.tokenizer.encode([TEXT])
    label = model.config.labels.index(answer["label"])

    def logit(edited: "pellucid.Model") -> torch.Tensor:
        return edited([row.ids]).logits[0, label]

    sides = integrated_gradients(model, logit, row.ids, "encoder.", "decoder.")
    both = [in_encoder + in_decoder for in_encoder, in_decoder in zip(sides[0], [*sides[1][1:], 0.0])]
    assert_attribution(answer.why, both, f"logit of {answer['label']!r}")


def test_entity_attribution_explains_its_logit(load_float64: Load) -> None:
    model = load_float64("bert-people")
    answers = pellucid.pipeline("ner", model, explain=True, aggregation_strategy="none", ignore_labels=[])(TEXT)
    ids = model.tokenizer.encode([TEXT])[0].ids
    assert len(answers) > 3
    for answer in answers[:3]:
        label = model.config.labels.index(answer["entity"])
        expected = integrated_gradients(model, lambda edited: edited([ids]).logits[0, answer["index"], label], ids)[0]  # noqa: B023
        assert_attribution(answer.why, expected, f"logit of {answer['entity']} at {answer['word']!r}")


@pytest.mark.parametrize("strategy", ["simple", "first"])
def test_attribution_of_an_entity_that_is_only_a_space(load_float64: Load, strategy: str) -> None:
    model, options = load_float64("roberta-people"), {"boundaries": "heuristic", "ignore_labels": []}
    tag = pellucid.pipeline("token-classification", model, aggregation_strategy=strategy, **options)
    plain, answers = (tag(TEXT, explain=explain) for explain in (False, True))
    assert list(answers) == list(plain)
    spaces = [answer for answer in answers if answer["start"] == answer["end"]]
    assert spaces and all(one.why.target.startswith(f"logit of {one['entity_group']} at ") for one in spaces)


@pytest.mark.parametrize("rule", ["error", "windows"])
def test_attribution_of_a_token_that_is_only_a_space(load_float64: Load, rule: str) -> None:
    model = load_float64("albert-people")
    tag = pellucid.pipeline("token-classification", model, aggregation_strategy="none", ignore_labels=[])
    length = {"max_length": 8, "stride": 2} if rule == "windows" else {}
    plain, answers = tag(TEXT, long=rule, **length), tag(TEXT, explain=True, long=rule, **length)
    (space,) = (answer for answer in answers if answer["start"] == answer["end"])
    assert space["word"] == "" and list(answers) == list(plain)
    assert space.why.target.startswith(f"logit of {space['entity']} at ''")
    if rule == "error":
        (row,) = model.tokenizer.encode([TEXT])
        position, label = space["index"], model.config.labels.index(space["entity"])
        expected = integrated_gradients(model, lambda edited: edited([row.ids]).logits[0, position, label], row.ids)[0]
        assert_attribution(space.why, expected, f"logit of {space['entity']} at ''")


def test_span_attribution_explains_its_start_and_end_logits(load_float64: Load) -> None:
    model = load_float64("bert-reader")
    answer = pellucid.pipeline("question-answering", model, explain=True)(question=QUESTION, context=CONTEXT)
    (row,) = model.tokenizer.encode([QUESTION], [CONTEXT])
    context_tokens = [i for i, kind in enumerate(row.type_ids) if kind and not row.special[i]]
    (first,) = (i for i in context_tokens if row.offsets[i][0] <= answer["start"] < row.offsets[i][1])
    (last,) = (i for i in context_tokens if row.offsets[i][0] < answer["end"] <= row.offsets[i][1])

    def sum_of_logits(edited: "pellucid.Model") -> torch.Tensor:
        output = edited(torch.tensor([row.ids]), token_type_ids=torch.tensor([row.type_ids])).logits[0]
        return output[first, 0] + output[last, 1]

    assert_attribution(
        answer.why,
        integrated_gradients(model, sum_of_logits, row.ids)[0],
        f"logits of start and end of {answer['answer']!r}",
    )


def test_attribution_of_a_divided_span_explains_both_windows(load_float64: Load) -> None:
    """The cut goes through the answer, between two words."""
    model = load_float64("bert-reader")
    reader = pellucid.pipeline("question-answering", model, long="windows", max_length=18, stride=0, explain=True)
    answer = reader(question=QUESTION, context=CONTEXT)
    parts = [CONTEXT[start:end] for start, end in answer.read.windows]
    assert (answer["answer"], [part[-5:] for part in parts]) == ("Curie lives", ["Curie", "aris."])
    expected = []
    for part, word, column in zip(parts, ("Curie", "lives"), (0, 1)):
        (row,) = model.tokenizer.encode([QUESTION], [part])
        place = part.index(word) + (len(word) if column else 0)
        position = max(i for i, kind in enumerate(row.type_ids) if kind and row.offsets[i][column] == place)

        def logit(
            edited: "pellucid.Model", row: Any = row, index: tuple[int, int] = (position, column)
        ) -> torch.Tensor:
            return edited(torch.tensor([row.ids]), token_type_ids=torch.tensor([row.type_ids])).logits[0][index]

        expected += integrated_gradients(model, logit, row.ids)[0]
    target = "logits of the start and of the end of 'Curie lives' in window 1 of 2 and window 2 of 2"
    assert_attribution(answer.why, expected, target)


def test_mask_attribution_explains_the_logit_of_the_word(load_float64: Load) -> None:
    model = load_float64("roberta-filler")
    text = "The <mask> sleeps in <mask>."
    answers = pellucid.pipeline("fill-mask", model, explain=True, top_k=2)(text)
    (row,) = model.tokenizer.encode([text])
    masks = [i for i, number in enumerate(row.ids) if number == model.tokenizer.mask_token_id]
    assert [answer.mask for answer in answers] == [0, 0, 1, 1]
    for answer in answers[1:3]:
        expected = integrated_gradients(
            model,
            lambda edited: edited([row.ids]).logits[0, masks[answer.mask], answer["token"]],  # noqa: B023
            row.ids,
        )[0]
        assert_attribution(answer.why, expected, f"logit of {answer['token_str']!r}")


def test_zero_shot_attribution_explains_the_entailment_logit(load_float64: Load) -> None:
    model = load_float64("mpnet-nli")
    classify = pellucid.pipeline("zero-shot-classification", model, explain=True)
    answer = classify(TEXT, candidate_labels=["animals", "politics"])
    (row,) = model.tokenizer.encode([TEXT], [f"This example is {answer['labels'][0]}."])
    expected = integrated_gradients(model, lambda edited: edited([row.ids]).logits[0, 1], row.ids)[0]
    assert_attribution(answer.why, expected, f"logit of entailment of {answer['labels'][0]!r}")


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_similarity_attribution_explains_the_similarity(load_float64: Load, similarity: str) -> None:
    model = load_float64("bert-body")
    answer = pellucid.pipeline("sentence-similarity", model, explain=True, similarity=similarity)(TEXT, CONTEXT)
    texts, expected = (TEXT, CONTEXT), []
    for text, other in (texts, texts[::-1]):
        (row,), output = model.tokenizer.encode([text]), model([model.tokenizer.encode([other])[0].ids])
        other_vector = output.last_hidden_state[0].mean(dim=0).detach()

        def score(
            edited: "pellucid.Model", ids: list[int] = row.ids, other_vector: torch.Tensor = other_vector
        ) -> torch.Tensor:
            vector = edited([ids]).last_hidden_state[0].mean(dim=0)
            return (
                torch.cosine_similarity(vector, other_vector, dim=0)
                if similarity == "cosine"
                else -(vector - other_vector).norm()
            )

        expected += integrated_gradients(model, score, row.ids)[0]
    assert_attribution(answer.why, expected, f"{similarity} of the two texts")


def test_ranking_attribution_explains_the_logit_of_the_document(load_float64: Load) -> None:
    model = load_float64("bert-one-label")
    best, *_ = pellucid.pipeline("text-ranking", model, explain=True)(QUESTION, [TEXT, CONTEXT])
    (row,) = model.tokenizer.encode([QUESTION], [best["text"]])
    types = torch.tensor([row.type_ids])
    expected = integrated_gradients(
        model, lambda edited: edited(torch.tensor([row.ids]), token_type_ids=types).logits[0, 0], row.ids
    )[0]
    assert_attribution(best.why, expected, "logit of the document")


def test_every_document_has_an_attribution(load_float64: Load) -> None:
    answers = pellucid.pipeline("text-ranking", load_float64("bert-body"), explain=True)(TEXT, [CONTEXT, QUESTION])
    for answer in answers:
        pair = pellucid.pipeline("sentence-similarity", load_float64("bert-body"), explain=True)(TEXT, answer["text"])
        assert answer.why is not None and pair.why is not None and answer.why.tokens == pair.why.tokens
        assert answer.why.scores == pytest.approx(pair.why.scores, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_decoder_attribution_explains_the_log_probability(load_float64: Load, name: str) -> None:
    model = load_float64(name)
    generate = pellucid.pipeline("text-generation", model, explain=True, max_new_tokens=4, do_sample=False)
    answer = generate(TEXT)
    ids, new = model.tokenizer.encode([TEXT])[0].ids, list(answer.ids)

    def log_probability(edited: "pellucid.Model") -> torch.Tensor:
        log_probabilities = edited([ids + new]).logits[0].log_softmax(dim=-1)
        return sum(log_probabilities[len(ids) - 1 + i, token] for i, token in enumerate(new))

    assert_attribution(
        answer.why, scale_derivatives(model, log_probability, len(ids)), "log-probability of the generated text"
    )
    assert answer.why.method == "gradient x input"


@pytest.mark.parametrize("name", ["t5-tasks", "bart"])
def test_encoder_decoder_attribution_explains_the_log_probability(load_float64: Load, name: str) -> None:
    model = load_float64(name)
    answer = pellucid.pipeline("text2text-generation", model, explain=True, max_new_tokens=4, num_beams=1)(TEXT)
    (row,), new = model.tokenizer.encode([TEXT]), list(answer.ids)
    start = model.config.decoder.decoder_start_token_id

    def log_probability(edited: "pellucid.Model") -> torch.Tensor:
        decoder_ids = torch.tensor([[start, *new[:-1]]])
        log_probabilities = edited([row.ids], decoder_input_ids=decoder_ids).logits[0].log_softmax(dim=-1)
        return sum(log_probabilities[i, token] for i, token in enumerate(new))

    expected = scale_derivatives(model, log_probability, len(row.ids), "encoder.")
    assert_attribution(answer.why, expected, "log-probability of the generated text")


# -- all tasks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Pipeline":
    return pellucid.pipeline("text-classification", write("bert-feelings", tmp_path_factory.mktemp("feelings")))


def test_attribution_is_computed_only_on_request(classifier: "pellucid.Pipeline") -> None:
    plain, explained = classifier(TEXT), classifier(TEXT, explain=True)
    assert plain.why is None and "why" not in plain.whole() and plain == explained
    why = json.loads(json.dumps(explained.whole()))["why"]
    assert why["tokens"] == [[token, score] for token, score in zip(explained.why.tokens, explained.why.scores)]
    several = classifier([TEXT, CONTEXT, ""], explain=True)
    assert [len(one.why.tokens) for one in several][2] == 2 and several[0].why == explained.why


def test_attribution_explains_the_window_with_the_highest_score(classifier: "pellucid.Pipeline") -> None:
    text = " ".join(f"{TEXT} {CONTEXT}" for _ in range(5))
    setting: dict[str, Any] = {"max_length": 30, "stride": 0, "function_to_apply": "none"}
    answer = classifier(text, long="windows", explain=True, **setting)
    windows = [text[start:end] for start, end in answer.read.windows]
    scores = [
        {one["label"]: one["score"] for one in classifier(part, **setting).all}[answer["label"]] for part in windows
    ]
    assert answer.why is not None
    assert (
        answer.why.target == f"logit of {answer['label']!r} in window {scores.index(max(scores)) + 1} of {len(windows)}"
    )


LONG = "The dog sleeps in Zürich, and Marie Curie lives in Paris near the sea. " * 8
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "text-classification": ("bart-nli", LONG, {}),
    "token-classification": ("roberta-people", LONG, {"aggregation_strategy": "simple"}),
    "question-answering": ("albert-reader", (QUESTION, LONG), {"top_k": 3}),
    "fill-mask": ("bert-filler", f"{LONG} The [MASK] sleeps.", {}),
    "zero-shot-classification": ("roberta-nli", LONG, {"candidate_labels": ["animals", "politics"]}),
    "sentence-similarity": ("bert-body", (TEXT, LONG), {}),
    "text-ranking": ("gpt2-body", (QUESTION, [LONG, TEXT]), {}),
    "text-generation": ("gpt2", LONG, {"max_new_tokens": 3}),
    "text2text-generation": ("t5-tasks", LONG, {"max_new_tokens": 3}),
    "summarization": ("bart-summary", LONG, {"max_new_tokens": 3}),
}
"""For each task: a model, an item with a long text, and options."""
ENDINGS = {"sentence-similarity": " of the second$", "text-ranking": " of the document$"}
"""How a description ends that names which of two texts was read in windows."""


@pytest.mark.parametrize("rule", ["truncate", "windows"])
@pytest.mark.parametrize("task", few(CASES, CASES.keys() - {"token-classification"}))
def test_every_task_has_attributions_under_every_rule(tmp_path: Path, task: str, rule: str) -> None:
    name, item, options = CASES[task]
    pipe = pellucid.pipeline(task, write(name, tmp_path / name), explain=True, long=rule, max_length=48, **options)
    if (task, rule) == ("fill-mask", "truncate"):
        item = f"The [MASK] sleeps. {LONG}"
    answer = pipe(item)
    for one in [answer] if isinstance(answer, dict) else answer:
        assert one.why is not None and len(one.why.tokens) == len(one.why.scores) > 3
        assert torch.tensor(one.why.scores).isfinite().all() and max(map(abs, one.why.scores)) > 1e-4
        writes = task.endswith("generation") or "summ" in task
        assert writes or len(one.why.tokens) <= 2 * 48
        single = writes or rule == "truncate" or one.get("text") == TEXT
        assert (
            bool(re.search(r" in window \d+ of \d+( and window .*)?" + ENDINGS.get(task, "$"), one.why.target))
            != single
        )
    assert answer


def test_decisive_words_of_a_confident_answer_have_the_highest_scores() -> None:
    """The gradient at the text itself gives the opposite order, since the logits are saturated."""
    person, city = pellucid.pipeline("ner", explain=True)("My name is Ada, and I live in London.")
    sentiment = pellucid.pipeline("sentiment-analysis", explain=True)("I love this wonderful film")
    assert (person["word"], city["word"], sentiment["label"]) == ("Ada", "London", "POSITIVE")
    for answer, words in ((person, ["ada"]), (city, ["london"]), (sentiment, ["wonderful", "love"])):
        scores = dict(zip(answer.why.tokens, answer.why.scores))
        assert sorted(scores, key=lambda token: -scores[token])[: len(words)] == words
        assert min(scores[word] for word in words) > 1.0


def test_integration_refines_steep_intervals() -> None:
    """A steep step within an interval, which the first nodes sample too coarsely."""
    start = torch.zeros(1, 1, 1, dtype=torch.float64)

    def values(points: dict[str, torch.Tensor]) -> torch.Tensor:
        return (60 * (points["here"][:, 0, 0] - 0.43)).sigmoid()

    coarse, fine = (
        IntegrationPath(values, {"here": start}, {"here": start + 1}).integrate(n, False) for n in (STEPS // 2, STEPS)
    )
    assert fine.error < 0.01 * coarse.error < 1


def test_progress_bar_shows_the_integration_of_one_item(
    classifier: "pellucid.Pipeline", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pellucid.bars.DELAY", 0)
    monkeypatch.setattr("pellucid.bars.UPDATE_INTERVAL", 0)
    classifier(TEXT, explain=True, progress=True)
    stderr = capsys.readouterr().err
    assert "integrating" in stderr and "items" not in stderr, "one item needs no count of items"
    classifier(TEXT, explain=True)
    assert not capsys.readouterr().err


def test_attribution_leaves_no_gradients_and_works_in_any_grad_mode(classifier: "pellucid.Pipeline") -> None:
    expected = classifier(TEXT, explain=True)
    for setting in (torch.no_grad(), torch.inference_mode()):
        with setting:
            assert classifier(TEXT, explain=True).why == expected.why
    classifier.model.train()
    try:
        assert classifier(TEXT, explain=True).why == expected.why, "a model in training drops nothing here"
    finally:
        classifier.model.eval()
    assert all(parameter.grad is None for parameter in classifier.model.parameters())
    quick = pellucid.pipeline("text-classification", classifier.model, dtype="bfloat16")(TEXT, explain=True)
    assert quick.why is not None and quick.why.tokens == expected.why.tokens


def test_attribution_of_a_quantized_model_is_refused(tmp_path: Path) -> None:
    model = pellucid.load(write("bert-feelings", tmp_path / "model"), dtype="int8")
    classify = pellucid.pipeline("text-classification", model)
    assert set(classify(TEXT)) == {"label", "score"}
    with pytest.raises(pellucid.InputError, match="explain=True needs float weights, and this model has 8-bit ones"):
        classify(TEXT, explain=True)
