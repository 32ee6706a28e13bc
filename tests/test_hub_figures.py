"""The study documents' own figures, on the real checkpoints of the hub: PELLUCID_HUB=1 python -m pytest -m hub."""

import os

import pytest
import torch
from torch import Tensor

from pellucid import compat
from tests.document_cells import BERT, COURSE, EAGLES, GAMES, PAIR, SENTIMENT

pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.environ.get("PELLUCID_HUB") != "1", reason="asks the real hub: set PELLUCID_HUB=1"),
]

LOGITS = {
    "course": (COURSE, [[-1.5607, 1.6123], [4.1692, -3.3464]]),
    "eagles": (EAGLES, [[-4.0651, 4.2943], [3.5058, -2.9462]]),
    "games": (GAMES, [[-4.2865, 4.6021], [4.4335, -3.6342]]),
}
SCORES = {
    "course": (COURSE, [0.9598050713539124, 0.9994558691978455]),
    "eagles": (EAGLES, [0.999765932559967, 0.9984251260757446]),
}
JOBS = {
    "man": ["waiter", "carpenter", "lawyer", "mechanic", "doctor"],
    "woman": ["nurse", "maid", "waitress", "cook", "teacher"],
}
PRINTED = {"rtol": 0, "atol": 1.1e-4}
"""The documents print four digits."""


def assert_near(found: Tensor, expected: list[float] | list[list[float]]) -> None:
    torch.testing.assert_close(found.detach(), torch.tensor(expected), **PRINTED)


@pytest.mark.parametrize("name", LOGITS)
def test_logits_of_the_sentiment_model(name: str) -> None:
    texts, expected = LOGITS[name]
    tokenizer = compat.AutoTokenizer.from_pretrained(SENTIMENT)
    model = compat.AutoModelForSequenceClassification.from_pretrained(SENTIMENT)
    assert_near(model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits, expected)
    assert model.config.id2label == {0: "NEGATIVE", 1: "POSITIVE"}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_the_sentiment_pipeline(name: str) -> None:
    texts, expected = SCORES[name]
    found = compat.pipeline("sentiment-analysis")(texts)
    assert [one["label"] for one in found] == ["POSITIVE", "NEGATIVE"]
    assert [one["score"] for one in found] == pytest.approx(expected, abs=1e-5)


def test_hidden_states_of_the_sentiment_model() -> None:
    inputs = compat.AutoTokenizer.from_pretrained(SENTIMENT)(GAMES, padding=True, truncation=True, return_tensors="pt")
    assert inputs.input_ids.tolist()[0] == [101, 1045, 2293, 1996, 17174, 102]
    states = compat.AutoModel.from_pretrained(SENTIMENT)(**inputs).last_hidden_state
    assert_near(states[:, 0, :3], [[0.5472, 0.0722, 0.0797], [-0.3951, 0.7698, -0.2996]])


def test_bert_outputs_for_a_pair() -> None:
    tokenizer, model = compat.AutoTokenizer.from_pretrained(BERT), compat.BertModel.from_pretrained(BERT)
    inputs = tokenizer(*PAIR, return_tensors="pt")
    assert inputs.input_ids.tolist() == [[101, 2051, 10029, 2066, 2019, 8612, 102, 5909, 10029, 2066, 1037, 15212, 102]]
    output = model(**inputs, output_attentions=True)
    assert_near(output.last_hidden_state[0, 0, :3], [-0.5540, 0.4613, -0.3415])
    assert_near(output.attentions[0][0, 0, 0, :3], [5.0308e-02, 4.8489e-02, 3.3783e-02])
    assert_near(output.attentions[0][0, 1, 0, :3], [8.5989e-01, 1.3223e-02, 4.4054e-03])


@pytest.mark.parametrize("who", JOBS)
def test_filled_masks(who: str) -> None:
    found = compat.pipeline("fill-mask", model="bert-base-cased")(f"The {who} works as a [MASK].")
    assert [one["token_str"] for one in found] == JOBS[who]
