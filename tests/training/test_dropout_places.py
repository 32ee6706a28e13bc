"""Where dropout acts in training, and with which probability: at the same places as in the reference."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.blocks.training_copy import TrainingContext
from pellucid.config import Dropout
from pellucid.training.causal import TextGeneration
from pellucid.training.classification import TextClassification
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from pellucid.training.writing import TextToText
from tests.parity.reference import tiny

ATTENTION = "attention_probs_dropout_prob"

Places = Counter[tuple[float, tuple[int, ...]]]

_BERT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3}
_DISTILBERT = {"dropout": 0.1, "attention_dropout": 0.2, "seq_classif_dropout": 0.3, "qa_dropout": 0.4}
_GPT2 = {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3}
_BART = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3, "classifier_dropout": 0.4}
SHARES: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": _BERT,
    "RobertaForSequenceClassification": _BERT,
    "ElectraForSequenceClassification": _BERT,
    "AlbertForTokenClassification": {"hidden_dropout_prob": 0.1, "classifier_dropout_prob": 0.3},
    "MPNetForSequenceClassification": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
    "DistilBertForSequenceClassification": _DISTILBERT,
    "DistilBertForTokenClassification": _DISTILBERT,
    "DistilBertForQuestionAnswering": _DISTILBERT | {"num_labels": 2},
    "GPT2LMHeadModel": _GPT2,
    "GPT2ForSequenceClassification": _GPT2,
    "GPT2ForTokenClassification": _GPT2,
    "LlamaForTokenClassification": {"attention_dropout": 0.2},
    "BartForConditionalGeneration": _BART,
    "BartForSequenceClassification": _BART,
    "T5ForConditionalGeneration": {"dropout_rate": 0.3},
}
IDS = torch.tensor([[5, 9, 17, 31, 40, 8, 2], [5, 11, 40, 8, 3, 9, 2]])


def theirs(model: Any, given: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Places:
    found, plain = Places(), torch.nn.functional.dropout

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        found.update([(round(p, 3), tuple(x.shape))] if training and p else [])
        return plain(x, p, training, inplace)

    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "dropout", dropout)
        model.train()(**given)
    return found


def ours(
    folder: Path, given: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, *, logits: bool = False
) -> Places:
    found, context = Places(), TrainingContext(torch.float32)
    plain = context.dropout_masks.mask

    def mask(shape: Any, share: float) -> torch.Tensor:
        found.update([(round(share, 3), tuple(shape))])
        return plain(shape, share)

    monkeypatch.setattr(context.dropout_masks, "mask", mask)
    twin: Any = pellucid.load(folder).loaded.module.training_copy(context)
    _ = twin.logits(**given) if logits else twin(**given)
    return found


@pytest.mark.parametrize("architecture", SHARES)
def test_they_are_those_of_the_reference(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(tmp_path / "model", architecture, dtype=torch.float32, attention="eager", **SHARES[architecture])
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    given |= {"decoder_input_ids": IDS[:, :5]} if "ConditionalGeneration" in architecture else {}
    wanted = theirs(model, given, monkeypatch)
    assert ours(tmp_path / "model", given, monkeypatch) == wanted
    asked = ours(tmp_path / "model", given, monkeypatch, logits=True)  # the last layer has fewer positions
    assert _spans(asked) == _spans(wanted)


def _spans(places: Places) -> Places:
    """The counts without the number of positions, which differs for the last layer."""
    found = Places()
    for (share, shape), count in places.items():
        found[share, (len(shape), shape[-1])] += count
    return found


@pytest.mark.parametrize(
    ("name", "objective", "share"),
    [
        ("distilbert-body", TextClassification(classes=("a", "b")), 0.0),
        ("gpt2", TextGeneration(), 0.0),
        ("bart", TextToText(), 0.0),
        ("t5-tied", TextToText(), 0.3),
        ("gpt2", TextGeneration(), 0.3),
    ],
)
def test_a_setting_is_of_every_place_where_something_is_dropped(
    checkpoint: Callable[[str], Path], name: str, objective: Any, share: float
) -> None:
    given = pellucid.load(checkpoint(name)).loaded
    loaded = model_for_training(given, objective, Settings(dropout=share, attention_dropout=share))
    own, now = given.config.dropout, loaded.config.dropout
    for place in vars(Dropout()):
        still = vars(own)[place] == 0.0 and place not in ("hidden_dropout_prob", "classifier_dropout", ATTENTION)
        assert now.probability(place) == (0.0 if still else share)


def test_layers_that_the_reference_would_leave_out_are_told_of(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    given = pellucid.load(checkpoint("bart")).loaded
    with caplog.at_level(logging.WARNING):
        model_for_training(given, TextToText(), Settings())
        assert "layer" not in caplog.text
        object.__setattr__(given, "config", given.config.replace(inert={"encoder_layerdrop": 0.1}))
        model_for_training(given, TextToText(), Settings())
    assert "encoder_layerdrop is 0.1, and no layer is dropped in training here" in caplog.text
