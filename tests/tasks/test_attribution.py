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

Made = Callable[[str], "pellucid.Model"]
Number = Callable[["pellucid.Model"], torch.Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Loads a tiny checkpoint by name, in float64."""
    return lambda name: pellucid.load(write(name, tmp_path_factory.mktemp(name)), dtype="float64")


def slopes(model: "pellucid.Model", number: Number, tokens: int, side: str = "") -> list[float]:
    """The derivative of a value by the scale of each embedding in turn, from central differences."""

    def at(place: int, factor: float) -> float:
        scale = torch.ones(place + 1, 1, dtype=torch.float64)
        scale[place] = factor

        def grown(value: torch.Tensor) -> torch.Tensor:
            rest = torch.ones(value.shape[1] - place - 1, 1, dtype=torch.float64)
            return value * torch.cat((scale, rest))

        with model.edit({f"{side}embeddings.output": grown}) as edited, torch.no_grad():
            return float(number(edited))

    return [(at(i, 1 + STEP) - at(i, 1 - STEP)) / (2 * STEP) for i in range(tokens)]


def shares(model: "pellucid.Model", number: Number, ids: list[int], *sides: str) -> list[list[float]]:
    """Integrated gradients of each token on the straight path from padding to the text, at sixty points, by the side
    that reads it: `ids`, or in a decoder these after its start token."""
    tokenizer, sides = model.tokenizer, sides or ("",)
    special = torch.tensor([[one in tokenizer.special_ids - {tokenizer.unk_token_id}] for one in ids])
    blank = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    first, row = torch.ones(1, 1, dtype=torch.bool), model.loaded.module.embeddings.token(torch.tensor([blank]))
    keeps = {side: torch.cat((first, special[:-1])) if side == "decoder." else special for side in sides}

    def ends(padded: bool) -> dict[str, torch.Tensor]:
        seen: dict[str, torch.Tensor] = {}
        edits: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        for side, keep in keeps.items():
            edits[f"{side}embeddings.token"] = lambda value, keep=keep: value.where(keep | (not padded), row)
            edits[f"{side}embeddings.output"] = lambda value, side=side: seen.setdefault(side, value.detach().clone())
        with model.edit(edits) as edited, torch.no_grad():
            number(edited)
        return seen

    start, end = ends(padded=True), ends(padded=False)
    found = {side: torch.zeros(len(ids), dtype=torch.float64) for side in sides}
    for node, weight in zip(*np.polynomial.legendre.leggauss(60)):
        points = {side: (start[side] + (node + 1) / 2 * (end[side] - start[side])).requires_grad_() for side in sides}
        at = {f"{side}embeddings.output": lambda value, side=side: points[side] for side in sides}  # noqa: B023
        with model.edit(at) as edited, torch.enable_grad():
            slopes = torch.autograd.grad(number(edited), list(points.values()))
        for side, slope in zip(sides, slopes):
            found[side] += weight / 2 * (slope * (end[side] - start[side]))[0].sum(dim=-1)
    return [found[side].tolist() for side in sides]


def agree(reason: AnswerAttribution | None, wanted: list[float], description: str, tolerance: float = 1e-4) -> None:
    assert reason is not None and reason.target == description
    assert len(reason.scores) == len(reason.tokens) == len(wanted)
    assert list(reason.scores) == pytest.approx(wanted, abs=tolerance)
    assert max(map(abs, reason.scores)) > 100 * tolerance, "there is something to agree on"


# -- single tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-feelings", "albert-similarity", "gpt2-feelings", "llama-feelings"])
@pytest.mark.parametrize("pair", few([None, "Is it so?"], ["Is it so?"]))
def test_the_logit_of_a_label(made: Made, name: str, pair: str | None) -> None:
    model = made(name)
    answer = pellucid.pipeline("text-classification", model, explain=True)(TEXT if pair is None else (TEXT, pair))
    (row,) = model.tokenizer.encode([TEXT], None if pair is None else [pair])
    number = model.config.labels.index(answer["label"])

    def logit(edited: "pellucid.Model") -> torch.Tensor:
        types = torch.tensor([row.type_ids]) if name.startswith(("bert", "albert")) else None
        return edited([row.ids] if types is None else torch.tensor([row.ids]), token_type_ids=types).logits[0, number]

    by_bytes = model.tokenizer.by_bytes
    assert answer.why is not None and list(answer.why.tokens) == [token_text(token, by_bytes) for token in row.tokens]
    assert not by_bytes or {" dog", "ü"} <= {*answer.why.tokens}
    rough = 5e-3 if name.startswith("llama") else 1e-4  # norms in the branches cancel the small scale of embeddings
    agree(answer.why, shares(model, logit, row.ids)[0], f"logit of {answer['label']!r}", rough)
    assert answer.why.method == "integrated gradients"


def test_a_token_counts_wherever_it_is_read(made: Made) -> None:
    """Both halves of an encoder-decoder read the text, the decoder one position to the right."""
    model = made("bart-nli")
    answer = pellucid.pipeline("text-classification", model, explain=True)(TEXT)
    (row,) = model.tokenizer.encode([TEXT])
    number = model.config.labels.index(answer["label"])

    def logit(edited: "pellucid.Model") -> torch.Tensor:
        return edited([row.ids]).logits[0, number]

    sides = shares(model, logit, row.ids, "encoder.", "decoder.")
    both = [one + other for one, other in zip(sides[0], [*sides[1][1:], 0.0])]
    agree(answer.why, both, f"logit of {answer['label']!r}")


def test_the_logit_of_an_entity(made: Made) -> None:
    model = made("bert-people")
    answers = pellucid.pipeline("ner", model, explain=True, aggregation_strategy="none", ignore_labels=[])(TEXT)
    ids = model.tokenizer.encode([TEXT])[0].ids
    assert len(answers) > 3
    for answer in answers[:3]:
        number = model.config.labels.index(answer["entity"])
        wanted = shares(model, lambda m: m([ids]).logits[0, answer["index"], number], ids)[0]  # noqa: B023
        agree(answer.why, wanted, f"logit of {answer['entity']} at {answer['word']!r}")


@pytest.mark.parametrize("strategy", ["simple", "first"])
def test_the_logit_of_an_entity_that_is_a_space_alone(made: Made, strategy: str) -> None:
    model, how = made("roberta-people"), {"boundaries": "heuristic", "ignore_labels": []}
    tag = pellucid.pipeline("token-classification", model, aggregation_strategy=strategy, **how)
    plain, answers = (tag(TEXT, explain=explain) for explain in (False, True))
    assert list(answers) == list(plain)
    spaces = [answer for answer in answers if answer["start"] == answer["end"]]
    assert spaces and all(one.why.target.startswith(f"logit of {one['entity_group']} at ") for one in spaces)


@pytest.mark.parametrize("rule", ["error", "windows"])
def test_the_logit_of_a_token_that_is_a_space_alone(made: Made, rule: str) -> None:
    model = made("albert-people")
    tag = pellucid.pipeline("token-classification", model, aggregation_strategy="none", ignore_labels=[])
    length = {"max_length": 8, "stride": 2} if rule == "windows" else {}
    plain, answers = tag(TEXT, long=rule, **length), tag(TEXT, explain=True, long=rule, **length)
    (space,) = (answer for answer in answers if answer["start"] == answer["end"])
    assert space["word"] == "" and list(answers) == list(plain)
    assert space.why.target.startswith(f"logit of {space['entity']} at ''")
    if rule == "error":
        (row,) = model.tokenizer.encode([TEXT])
        place, label = space["index"], model.config.labels.index(space["entity"])
        wanted = shares(model, lambda m: m([row.ids]).logits[0, place, label], row.ids)[0]
        agree(space.why, wanted, f"logit of {space['entity']} at ''")


def test_the_logits_of_a_span(made: Made) -> None:
    model = made("bert-reader")
    answer = pellucid.pipeline("question-answering", model, explain=True)(question=QUESTION, context=CONTEXT)
    (row,) = model.tokenizer.encode([QUESTION], [CONTEXT])
    behind = [i for i, kind in enumerate(row.type_ids) if kind and not row.special[i]]
    (first,) = (i for i in behind if row.offsets[i][0] <= answer["start"] < row.offsets[i][1])
    (last,) = (i for i in behind if row.offsets[i][0] < answer["end"] <= row.offsets[i][1])

    def logits(edited: "pellucid.Model") -> torch.Tensor:
        output = edited(torch.tensor([row.ids]), token_type_ids=torch.tensor([row.type_ids])).logits[0]
        return output[first, 0] + output[last, 1]

    agree(answer.why, shares(model, logits, row.ids)[0], f"logits of start and end of {answer['answer']!r}")


def test_the_logit_of_a_word_in_a_mask(made: Made) -> None:
    model = made("roberta-filler")
    text = "The <mask> sleeps in <mask>."
    answers = pellucid.pipeline("fill-mask", model, explain=True, top_k=2)(text)
    (row,) = model.tokenizer.encode([text])
    masks = [i for i, number in enumerate(row.ids) if number == model.tokenizer.mask_token_id]
    assert [answer.mask for answer in answers] == [0, 0, 1, 1]
    for answer in answers[1:3]:
        wanted = shares(model, lambda m: m([row.ids]).logits[0, masks[answer.mask], answer["token"]], row.ids)[0]  # noqa: B023
        agree(answer.why, wanted, f"logit of {answer['token_str']!r}")


def test_the_entailment_of_a_label(made: Made) -> None:
    model = made("mpnet-nli")
    ask = pellucid.pipeline("zero-shot-classification", model, explain=True)
    answer = ask(TEXT, candidate_labels=["animals", "politics"])
    (row,) = model.tokenizer.encode([TEXT], [f"This example is {answer['labels'][0]}."])
    wanted = shares(model, lambda m: m([row.ids]).logits[0, 1], row.ids)[0]
    agree(answer.why, wanted, f"logit of entailment of {answer['labels'][0]!r}")


@pytest.mark.parametrize("way", ["cosine", "euclidean"])
def test_the_likeness_of_two_texts(made: Made, way: str) -> None:
    model = made("bert-body")
    answer = pellucid.pipeline("sentence-similarity", model, explain=True, similarity=way)(TEXT, CONTEXT)
    texts, wanted = (TEXT, CONTEXT), []
    for text, other in (texts, texts[::-1]):
        (row,), fixed = model.tokenizer.encode([text]), model([model.tokenizer.encode([other])[0].ids])
        beside = fixed.last_hidden_state[0].mean(dim=0).detach()

        def score(m: "pellucid.Model", ids: list[int] = row.ids, beside: torch.Tensor = beside) -> torch.Tensor:
            vector = m([ids]).last_hidden_state[0].mean(dim=0)
            return torch.cosine_similarity(vector, beside, dim=0) if way == "cosine" else -(vector - beside).norm()

        wanted += shares(model, score, row.ids)[0]
    agree(answer.why, wanted, f"{way} of the two texts")


def test_the_score_of_a_document(made: Made) -> None:
    model = made("bert-one-label")
    best, *_ = pellucid.pipeline("text-ranking", model, explain=True)(QUESTION, [TEXT, CONTEXT])
    (row,) = model.tokenizer.encode([QUESTION], [best["text"]])
    types = torch.tensor([row.type_ids])
    wanted = shares(model, lambda m: m(torch.tensor([row.ids]), token_type_ids=types).logits[0, 0], row.ids)[0]
    agree(best.why, wanted, "logit of the document")


def test_every_document_has_its_reason(made: Made) -> None:
    answers = pellucid.pipeline("text-ranking", made("bert-body"), explain=True)(TEXT, [CONTEXT, QUESTION])
    for answer in answers:
        pair = pellucid.pipeline("sentence-similarity", made("bert-body"), explain=True)(TEXT, answer["text"])
        assert answer.why is not None and pair.why is not None and answer.why.tokens == pair.why.tokens
        assert answer.why.scores == pytest.approx(pair.why.scores, abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_a_decoder_wrote(made: Made, name: str) -> None:
    model = made(name)
    ask = pellucid.pipeline("text-generation", model, explain=True, max_new_tokens=4, do_sample=False)
    answer = ask(TEXT)
    ids, new = model.tokenizer.encode([TEXT])[0].ids, list(answer.ids)

    def said(edited: "pellucid.Model") -> torch.Tensor:
        every = edited([ids + new]).logits[0].log_softmax(dim=-1)
        return sum(every[len(ids) - 1 + i, token] for i, token in enumerate(new))

    agree(answer.why, slopes(model, said, len(ids)), "log-probability of the generated text")
    assert answer.why.method == "gradient x input"


@pytest.mark.parametrize("name", ["t5-tasks", "bart"])
def test_what_an_encoder_decoder_wrote(made: Made, name: str) -> None:
    model = made(name)
    answer = pellucid.pipeline("text2text-generation", model, explain=True, max_new_tokens=4, num_beams=1)(TEXT)
    (row,), new = model.tokenizer.encode([TEXT]), list(answer.ids)
    start = model.config.decoder.decoder_start_token_id

    def said(edited: "pellucid.Model") -> torch.Tensor:
        read = torch.tensor([[start, *new[:-1]]])
        every = edited([row.ids], decoder_input_ids=read).logits[0].log_softmax(dim=-1)
        return sum(every[i, token] for i, token in enumerate(new))

    wanted = slopes(model, said, len(row.ids), "encoder.")
    agree(answer.why, wanted, "log-probability of the generated text")


# -- all tasks ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def feelings(tmp_path_factory: pytest.TempPathFactory) -> "pellucid.Pipeline":
    return pellucid.pipeline("text-classification", write("bert-feelings", tmp_path_factory.mktemp("feelings")))


def test_only_who_asks_is_told_why(feelings: "pellucid.Pipeline") -> None:
    plain, explained = feelings(TEXT), feelings(TEXT, explain=True)
    assert plain.why is None and "why" not in plain.whole() and plain == explained
    why = json.loads(json.dumps(explained.whole()))["why"]
    assert why["tokens"] == [[token, score] for token, score in zip(explained.why.tokens, explained.why.scores)]
    several = feelings([TEXT, CONTEXT, ""], explain=True)
    assert [len(one.why.tokens) for one in several][2] == 2 and several[0].why == explained.why


def test_the_reason_is_of_the_stretch_in_which_the_label_stands_out(feelings: "pellucid.Pipeline") -> None:
    text = " ".join(f"{TEXT} {CONTEXT}" for _ in range(5))
    setting: dict[str, Any] = {"max_length": 30, "stride": 0, "function_to_apply": "none"}
    answer = feelings(text, long="windows", explain=True, **setting)
    parts = [text[start:end] for start, end in answer.read.windows]
    each = [{one["label"]: one["score"] for one in feelings(part, **setting).all}[answer["label"]] for part in parts]
    assert answer.why is not None
    assert answer.why.target == f"logit of {answer['label']!r} in window {each.index(max(each)) + 1} of {len(parts)}"


LONG = "The dog sleeps in Zürich, and Marie Curie lives in Paris near the sea. " * 8
ASKED: dict[str, tuple[str, Any, dict[str, Any]]] = {
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
OF = {"sentence-similarity": " of the second$", "text-ranking": " of the document$"}
"""How a description ends that names which of two texts was read in windows."""


@pytest.mark.parametrize("rule", ["truncate", "windows"])
@pytest.mark.parametrize("task", few(ASKED, ASKED.keys() - {"token-classification"}))
def test_every_task_tells_why_under_every_rule(tmp_path: Path, task: str, rule: str) -> None:
    name, item, options = ASKED[task]
    ask = pellucid.pipeline(task, write(name, tmp_path / name), explain=True, long=rule, max_length=48, **options)
    if (task, rule) == ("fill-mask", "truncate"):
        item = f"The [MASK] sleeps. {LONG}"
    answer = ask(item)
    for one in [answer] if isinstance(answer, dict) else answer:
        assert one.why is not None and len(one.why.tokens) == len(one.why.scores) > 3
        assert torch.tensor(one.why.scores).isfinite().all() and max(map(abs, one.why.scores)) > 1e-4
        writes = task.endswith("generation") or "summ" in task
        assert writes or len(one.why.tokens) <= 2 * 48
        whole = writes or rule == "truncate" or one.get("text") == TEXT
        assert bool(re.search(r" in window \d+ of \d+( and window .*)?" + OF.get(task, "$"), one.why.target)) != whole
    assert answer


def test_what_makes_a_sure_answer_speaks_for_it() -> None:
    """The gradient at the text itself says the opposite, since the logits are saturated."""
    one, other = pellucid.pipeline("ner", explain=True)("My name is Ada, and I live in London.")
    feeling = pellucid.pipeline("sentiment-analysis", explain=True)("I love this wonderful film")
    assert (one["word"], other["word"], feeling["label"]) == ("Ada", "London", "POSITIVE")
    for answer, words in ((one, ["ada"]), (other, ["london"]), (feeling, ["wonderful", "love"])):
        scores = dict(zip(answer.why.tokens, answer.why.scores))
        assert sorted(scores, key=lambda token: -scores[token])[: len(words)] == words
        assert min(scores[word] for word in words) > 1.0


def test_the_way_is_cut_where_it_is_rough() -> None:
    """A steep step within an interval, which the first nodes sample too coarsely."""
    place = torch.zeros(1, 1, 1, dtype=torch.float64)

    def values(points: dict[str, torch.Tensor]) -> torch.Tensor:
        return (60 * (points["here"][:, 0, 0] - 0.43)).sigmoid()

    begun, whole = (
        IntegrationPath(values, {"here": place}, {"here": place + 1}).integrate(n, False) for n in (STEPS // 2, STEPS)
    )
    assert whole.error < 0.01 * begun.error < 1


def test_a_bar_where_one_answer_takes_long(
    feelings: "pellucid.Pipeline", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pellucid.bars.DELAY", 0)
    monkeypatch.setattr("pellucid.bars.UPDATE_INTERVAL", 0)
    feelings(TEXT, explain=True, progress=True)
    shown = capsys.readouterr().err
    assert "integrating" in shown and "items" not in shown, "one item needs no count of items"
    feelings(TEXT, explain=True)
    assert not capsys.readouterr().err


def test_nothing_is_left_behind(feelings: "pellucid.Pipeline") -> None:
    wanted = feelings(TEXT, explain=True)
    for setting in (torch.no_grad(), torch.inference_mode()):
        with setting:
            assert feelings(TEXT, explain=True).why == wanted.why
    feelings.model.train()
    try:
        assert feelings(TEXT, explain=True).why == wanted.why, "a model in training drops nothing here"
    finally:
        feelings.model.eval()
    assert all(parameter.grad is None for parameter in feelings.model.parameters())
    quick = pellucid.pipeline("text-classification", feelings.model, dtype="bfloat16")(TEXT, explain=True)
    assert quick.why is not None and quick.why.tokens == wanted.why.tokens


def test_a_model_of_four_bits_has_no_gradients(tmp_path: Path) -> None:
    model = pellucid.load(write("bert-feelings", tmp_path / "model"), dtype="int8")
    ask = pellucid.pipeline("text-classification", model)
    assert set(ask(TEXT)) == {"label", "score"}
    with pytest.raises(pellucid.InputError, match="explain=True needs float weights, and this model has 8-bit ones"):
        ask(TEXT, explain=True)
